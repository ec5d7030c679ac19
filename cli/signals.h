// Signals that end the process: what it must not leave behind, and what it still has to say.
#pragma once
#include <cstddef>
#include <string>
#include "library.h"

namespace tool {

// From here on the guards below work. A signal that whoever started the process has set to be ignored stays ignored.
void watch_signals();

// The name of a file that is not to stay: from before it is made, until this goes, it is removed by whatever comes. What has been
// renamed by then is safe.
class Unfinished {
  public:
    explicit Unfinished(const std::string& path);
    ~Unfinished();
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;
    const char* path() const { return path_.c_str(); }

  private:
    std::string path_;
    size_t slot_;
};

// While one lives, the first SIGINT, SIGTERM or SIGHUP ends nothing: whoever works asks interrupted() between two pieces of work, stops,
// and tells what is done. A second one ends the process at once.
class Patience {
  public:
    Patience();
    ~Patience();
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;
};
bool interrupted();

// What main makes of it: the sentence, and then an end by that signal, so that a shell sees why.
struct Interrupted : Error {
    using Error::Error;
};
void end_by_signal();

}  // namespace tool
