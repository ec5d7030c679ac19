#include "files.h"
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include "library.h"

namespace tool {

InputFile::InputFile(const std::string& path)
    : path_(path), file_(path == "-" ? fdopen(dup(STDIN_FILENO), "rb") : std::fopen(path.c_str(), "rb")) {
    if (!file_) fail(path, ": ", std::strerror(errno));
}

// In pieces: a corrupted size must not ask for memory that the file could never fill.
std::vector<std::byte> InputFile::read(uint64_t bytes) {
    constexpr uint64_t kPiece = 16 << 20;
    std::vector<std::byte> data;
    while (data.size() < bytes) {
        const size_t had = data.size(), want = size_t(std::min(kPiece, bytes - had));
        data.resize(had + want);
        const size_t got = std::fread(data.data() + had, 1, want, file_);
        if (std::ferror(file_)) fail(path_, ": ", std::strerror(errno));
        data.resize(had + got);
        if (got < want) break;
    }
    return data;
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    // A device or a pipe cannot be replaced by a new file: it is written to as it is. A link keeps pointing to where it did.
    if (!fs::exists(path, ignored) || fs::is_regular_file(path, ignored)) {
        const fs::path real = fs::weakly_canonical(path, ignored);
        if (!real.empty()) path_ = real.string();
        partial_ = text_of(path_, ".", getpid(), ".partial");
    }
    file_ = std::fopen(partial_.empty() ? path_.c_str() : partial_.c_str(), "wb");
    if (file_) return;
    partial_.clear();
    stop(errno);
}

OutputFile::~OutputFile() {
    if (file_) std::fclose(file_);
    if (!partial_.empty()) std::remove(partial_.c_str());
}

void OutputFile::stop(int error) { fail(path_, ": cannot be written: ", std::strerror(error)); }

void OutputFile::write(const void* data, size_t bytes) {
    if ((bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) || std::fflush(file_) != 0) stop(errno);
}

void OutputFile::commit() {
    FILE* file = file_;
    file_ = nullptr;
    if (std::fclose(file) != 0) stop(errno);
    if (!partial_.empty() && std::rename(partial_.c_str(), path_.c_str()) != 0) stop(errno);
    partial_.clear();
}

}  // namespace tool
