#include "progress.h"
#include <unistd.h>
#include <iostream>

namespace tool {

Progress::Progress(size_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO)) {}

void Progress::clear() {
    if (terminal_) std::cerr << "\r\33[K";
}

void Progress::show(size_t step, const std::string& name) {
    constexpr size_t kWidth = 40;
    if (!terminal_) {
        std::cerr << step << "/" << steps_ << " " << name << "\n";
        return;
    }
    const size_t filled = kWidth * step / steps_;
    std::cerr << "\r\33[K[" << std::string(filled, '#') << std::string(kWidth - filled, '.') << "] " << step << "/" << steps_ << " " << name
              << std::flush;
}

}  // namespace tool
