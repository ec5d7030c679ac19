// A drawing's file: SVG, or PNG where its name ends so.
#pragma once
#include <string>
#include "files.h"

namespace tool {

class Picture {
  public:
    // Refused at once if it can't be written: a PNG is made by librsvg's command.
    explicit Picture(const std::string& path);
    void draw(const std::string& svg);

  private:
    bool png_;
    OutputFile file_;
};

}  // namespace tool
