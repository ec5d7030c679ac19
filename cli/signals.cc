#include "signals.h"
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <climits>

namespace tool {
namespace {

struct Watched {
    int number;
    bool may_wait;
};
constexpr Watched kWatched[] = {{SIGHUP, true}, {SIGINT, true}, {SIGTERM, true}, {SIGPIPE, false}, {SIGQUIT, false}};

// All that the handler touches: it may run on any thread, between any two instructions, and calls nothing but what POSIX allows there.
struct Slot {
    std::atomic<int> taken, named;
    char path[PATH_MAX];
} slots[4];  // more than any command writes at a time
std::atomic<int> patient;
std::atomic<int> asked;  // the signal that was waited with; 0: none
static_assert(std::atomic<int>::is_always_lock_free, "a handler must not wait for a lock");

void on_signal(int number) {
    const auto* const watched =
        std::find_if(std::begin(kWatched), std::end(kWatched), [=](const Watched& watched) { return watched.number == number; });
    int none = 0;
    if (patient && watched->may_wait && asked.compare_exchange_strong(none, number)) return;
    for (const Slot& slot : slots)
        if (slot.named) unlink(slot.path);
    signal(number, SIG_DFL);
    raise(number);  // takes effect when the handler returns
}

}  // namespace

void watch_signals() {
    for (const Watched& w : kWatched) {
        struct sigaction action{};
        if (sigaction(w.number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        sigaction(w.number, &action, nullptr);
    }
}

Unfinished::Unfinished(const std::string& path) : path_(path) {
    for (slot_ = 0; slot_ < std::size(slots) && slots[slot_].taken.exchange(true);) ++slot_;
    if (slot_ == std::size(slots)) fail(path, ": too many files at a time");
    if (path.size() >= sizeof slots[slot_].path) return;  // no such file can be made
    std::copy_n(path.c_str(), path.size() + 1, slots[slot_].path);
    slots[slot_].named = true;
}

Unfinished::~Unfinished() {
    unlink(path());
    slots[slot_].named = false;
    slots[slot_].taken = false;
}

Patience::Patience() { patient = true; }
Patience::~Patience() { patient = false; }

bool interrupted() { return asked != 0; }

void end_by_signal() {
    if (interrupted()) raise(asked);
}

}  // namespace tool
