#include "picture.h"
#include <stdlib.h>
#include <unistd.h>
#include <cstdio>
#include "library.h"

namespace tool {
namespace {

bool ends_in(const std::string& path, const std::string& end) {
    return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

bool can_convert() { return std::system("rsvg-convert --version >/dev/null 2>&1") == 0; }

// A file of its own while it lives. The path has no byte that a shell would read differently.
class Temporary {
  public:
    explicit Temporary(const std::string& text) {
        const int file = mkstemp(path_);
        const bool written = file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size());
        if (file >= 0) close(file);
        if (!written) fail(path_, ": cannot be written");
    }
    ~Temporary() { unlink(path_); }
    const char* path() const { return path_; }

  private:
    char path_[32] = "/tmp/flashattn-XXXXXX";
};

std::string converted(const std::string& svg) {
    const Temporary source(svg);
    FILE* pipe = popen(text_of("rsvg-convert --format=png --zoom=2 ", source.path()).c_str(), "r");
    if (!pipe) fail("rsvg-convert cannot be run");
    std::string png;
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) png.append(part, n);
    if (pclose(pipe) != 0 || png.empty()) fail("rsvg-convert has failed");
    return png;
}

}  // namespace

Picture::Picture(const std::string& path) : png_(ends_in(path, ".png")), file_(path) {
    if (png_ && !can_convert())
        fail(path, ": a PNG needs the command rsvg-convert; expected a name that ends in .svg, or librsvg's tools");
}

void Picture::draw(const std::string& svg) {
    file_.write(png_ ? converted(svg) : svg);
    file_.commit();
}

}  // namespace tool
