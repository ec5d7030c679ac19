#include "picture.h"
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include "library.h"

namespace tool {
namespace {

bool ends_in(const std::string& path, const std::string& end) {
    return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

const std::string& checked(const std::string& path) {
    if (path != kStandard && !ends_in(path, ".svg") && !ends_in(path, ".png") && !ends_in(path, ".pdf"))
        misuse("--plot is ", shown(path), "; expected a name that ends in .svg, .png or .pdf, or - for SVG on standard output");
    return path;
}

bool can_convert() { return std::system("rsvg-convert --version >/dev/null 2>&1") == 0; }

// options: the format, and what belongs to it.
std::string converted(const std::string& svg, const char* options) {
    // A file without a name: nothing of it can stay behind.
    const std::unique_ptr<FILE, int (*)(FILE*)> source(std::tmpfile(), std::fclose);
    if (!source || std::fwrite(svg.data(), 1, svg.size(), source.get()) != svg.size() || std::fflush(source.get()) != 0)
        fail("a temporary file cannot be written");
    FILE* pipe = popen(text_of("rsvg-convert ", options, " </dev/fd/", fileno(source.get())).c_str(), "r");
    if (!pipe) fail("rsvg-convert cannot be run");
    std::string made;
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) made.append(part, n);
    if (pclose(pipe) != 0 || made.empty()) fail("rsvg-convert has failed");
    return made;
}

}  // namespace

Picture::Picture(const std::string& path)
    : conversion_(ends_in(path, ".png")   ? "--format=png --zoom=2"
                  : ends_in(path, ".pdf") ? "--format=pdf"
                                          : nullptr),
      file_(checked(path)) {
    if (conversion_ && !can_convert())
        fail(path, ": a PNG or PDF needs the command rsvg-convert; expected a name that ends in .svg, or librsvg's tools");
}

void Picture::draw(const std::string& svg) {
    file_.write(conversion_ ? converted(svg, conversion_) : svg);
    file_.commit();
}

}  // namespace tool
