// Files that are read whole or not at all, and written whole or not at all. Every failure is an Error that begins with the path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>
#include "signals.h"

namespace tool {

constexpr char kStandard[] = "-";

class InputFile {
  public:
    explicit InputFile(const std::string& path);  // kStandard: standard input
    ~InputFile() { std::fclose(file_); }
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    std::vector<std::byte> read(uint64_t bytes);  // fewer at the end of the file

  private:
    std::string path_;
    FILE* file_;
};

// Appears under its name only when all of it has been written. It is opened at once, so that a path that cannot be written is refused
// before any work, and it is removed if the work fails or a signal ends it. A link stays one, and what it names is written; a file
// that is replaced leaves its mode to the new one.
class OutputFile {
  public:
    explicit OutputFile(const std::string& path);  // kStandard: standard output
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    void write(const void* data, size_t bytes);
    void write(const std::string& text) { write(text.data(), text.size()); }
    void commit();

  private:
    [[noreturn]] void stop(int error);
    int open_path();
    std::string path_;
    std::optional<Unfinished> partial_;
    FILE* file_ = nullptr;
};

// Would a file that is written to one path replace what was written to the other? Links and folders count by what they name.
bool same_file(const std::string& one, const std::string& other);

}  // namespace tool
