// A drawing's file: SVG, or PNG or PDF where its name ends so.
#pragma once
#include <string>
#include "files.h"

namespace tool {

class Picture {
  public:
    // Refused at once if it can't be written: PNG and PDF are made by librsvg's command.
    explicit Picture(const std::string& path);
    void draw(const std::string& svg);

  private:
    const char* conversion_;  // options of that command; nullptr: none, an SVG
    OutputFile file_;
};

}  // namespace tool
