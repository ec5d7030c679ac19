// How far a long command has come, on standard error: standard output is for what it finds.
#pragma once
#include <cstddef>
#include <string>

namespace tool {

// On a terminal one line that is drawn again and again, elsewhere a line for each step.
class Progress {
  public:
    explicit Progress(size_t steps);
    ~Progress() { clear(); }
    void show(size_t step, const std::string& name);
    void clear();  // before anything else is written, as that may go to the same terminal

  private:
    size_t steps_;
    bool terminal_;
};

}  // namespace tool
