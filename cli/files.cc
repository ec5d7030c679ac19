#include "files.h"
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include "library.h"

namespace tool {
namespace {

// What the path names once links at its end have been followed, which need not exist. A loop is left to whoever opens it.
std::filesystem::path target_of(std::filesystem::path path) {
    namespace fs = std::filesystem;
    constexpr int kMostLinks = 40;  // as many as the kernel follows
    std::error_code ignored;
    for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, ignored)); ++i)
        path = path.parent_path() / fs::read_symlink(path, ignored);
    return path;
}

// Beside the target, where it can be renamed from, under a name that nobody can foresee, to put a link there.
std::string partial_of(const std::filesystem::path& target) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != ssize_t(sizeof random)) fail("no random numbers: ", std::strerror(errno));
    char name[64];
    std::snprintf(name, sizeof name, "flashattn-%016llx.partial", static_cast<unsigned long long>(random));
    return (target.parent_path() / name).string();
}

// The old file's owner and group, as far as this process may give them, and its mode; what was for one group is not for another.
void keep_access(int file, const struct stat& old) {
    [[maybe_unused]] const int ignored = fchown(file, old.st_uid, gid_t(-1));
    const bool same_group = fchown(file, uid_t(-1), old.st_gid) == 0;
    fchmod(file, old.st_mode & (same_group ? 0777 : 0707));
}

}  // namespace

InputFile::InputFile(const std::string& path)
    : path_(path), file_(path == kStandard ? fdopen(dup(STDIN_FILENO), "rb") : std::fopen(path.c_str(), "rb")) {
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

OutputFile::OutputFile(const std::string& path) : path_(path == kStandard ? "standard output" : path) {
    const int file = path == kStandard ? dup(STDOUT_FILENO) : open_path();
    file_ = file < 0 ? nullptr : fdopen(file, "wb");
    if (!file_) stop(errno);
}

int OutputFile::open_path() {
    struct stat old{};
    const bool exists = stat(path_.c_str(), &old) == 0;
    if (!exists && errno != ENOENT) return -1;
    // A device or a pipe cannot be replaced by a new file: it is written to as it is.
    if (exists && !S_ISREG(old.st_mode)) return open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    path_ = target_of(path_).string();
    partial_.emplace(partial_of(path_));
    const int file = open(partial_->path(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, exists ? 0600 : 0666);
    if (file >= 0 && exists) keep_access(file, old);
    return file;
}

OutputFile::~OutputFile() {
    if (file_) std::fclose(file_);
}

void OutputFile::stop(int error) { fail(path_, ": cannot be written: ", std::strerror(error)); }

void OutputFile::write(const void* data, size_t bytes) {
    if ((bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) || std::fflush(file_) != 0) stop(errno);
}

void OutputFile::commit() {
    FILE* file = file_;
    file_ = nullptr;
    if (std::fclose(file) != 0) stop(errno);
    if (partial_ && std::rename(partial_->path(), path_.c_str()) != 0) stop(errno);
    partial_.reset();
}

bool same_file(const std::string& one, const std::string& other) {
    namespace fs = std::filesystem;
    if (one == kStandard || other == kStandard) return one == other;
    std::error_code unknown;
    const auto place = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(target_of(path)), unknown); };
    return place(one) == place(other) && !unknown;
}

}  // namespace tool
