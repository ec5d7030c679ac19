// Modules are code: whoever can choose the file runs with the program's rights. So a path is walked from the root on, link by link,
// and each folder is judged before anything is looked up in it. Where only root and the effective user may change a folder's entries,
// what was found there stays what it is, now and later; by induction the name that comes out leads to the file that was judged, and
// dlopen may take it. It gets no descriptor (/proc/self/fd/…): a module's own dependencies ($ORIGIN) and debuggers go by its
// name, and under a number that is used again glibc hands out the module that it has loaded by that name before.
#include "os/linux/module_file.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "backend/module_note.h"
#include "os/linux/module_seal.h"
#include "os/path.h"

namespace fa {
namespace os {
namespace {

constexpr int kMaxLinks = 40;  // as many as the kernel follows

fa_status_t unreadable(Message* message, const char* path, int error) {
    return fail(message, FA_BACKEND_INCOMPATIBLE, "%s cannot be examined: %s", path, strerror(error));
}

// A place on the walk as a message names it; "" is the root.
const char* shown(const char* place) { return place[0] == 0 ? "/" : place; }

bool others_may_write(mode_t mode) { return (mode & (S_IWGRP | S_IWOTH)) != 0; }

fa_status_t open_to_others(Message* message, const char* path, mode_t mode) {
    return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is not trusted: its group or others may write to it (mode %o)", path, mode & 07777);
}

// In a sticky folder others cannot move what is not theirs, but they can add links: it may hold further folders, and nothing else.
fa_status_t check_owner_and_mode(const char* path, const struct stat& s, Message* message) {
    if (s.st_uid != 0 && s.st_uid != geteuid())
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is not trusted: user %u owns it, neither root nor user %u", path, s.st_uid,
                    geteuid());
    const bool sticky = S_ISDIR(s.st_mode) && (s.st_mode & S_ISVTX) != 0;
    return others_may_write(s.st_mode) && !sticky ? open_to_others(message, path, s.st_mode) : FA_OK;
}

// Takes the first name off `rest`, which is empty or begins with a slash, and goes there from `place`.
bool next_name(char* place, char* rest) {
    const char* name = rest + strspn(rest, "/");
    const size_t length = strcspn(name, "/"), used = strlen(place);
    if (length == 2 && memcmp(name, "..", 2) == 0) {
        if (used != 0) *strrchr(place, '/') = 0;
    } else if (length != 1 || name[0] != '.') {
        if (used + 1 + length >= kMaxPath) return false;
        place[used] = '/';
        memcpy(place + used + 1, name, length);
        place[used + 1 + length] = 0;
    }
    memmove(rest, name + length, strlen(name + length) + 1);
    return true;
}

// Puts what the link at `place` says before the rest, and goes back to where that begins.
fa_status_t follow_link(char* place, char* rest, Message* message) {
    char target[kMaxPath];
    const ssize_t length = readlink(place, target, sizeof target);
    const size_t left = strlen(rest);
    if (length < 0) return unreadable(message, place, errno);
    if (1 + size_t(length) + left >= kMaxPath) return unreadable(message, place, ENAMETOOLONG);
    memmove(rest + 1 + length, rest, left + 1);
    memcpy(rest + 1, target, size_t(length));
    rest[0] = '/';
    *(target[0] == '/' ? place : strrchr(place, '/')) = 0;
    return FA_OK;
}

fa_status_t walk(const char* path, char* place, Message* message) {
    char rest[kMaxPath];
    struct stat s;
    mode_t folder = 0;  // of the last one
    snprintf(rest, sizeof rest, "%s", path);
    place[0] = 0;
    for (int links = 0;;) {
        const char* here = shown(place);
        if (lstat(here, &s) != 0) return unreadable(message, here, errno);
        if (!S_ISDIR(s.st_mode) && others_may_write(folder)) {
            *strrchr(place, '/') = 0;
            return open_to_others(message, shown(place), folder);
        }
        if (S_ISLNK(s.st_mode)) {
            if (++links > kMaxLinks) return unreadable(message, place, ELOOP);
            const fa_status_t status = follow_link(place, rest, message);
            if (status != FA_OK) return status;
            continue;
        }
        const fa_status_t status = check_owner_and_mode(here, s, message);
        if (status != FA_OK) return status;
        const bool at_end = rest[strspn(rest, "/")] == 0;
        if (at_end && !S_ISREG(s.st_mode)) return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is not trusted: it is no regular file", here);
        if (at_end) return FA_OK;
        if (!S_ISDIR(s.st_mode)) return unreadable(message, here, ENOTDIR);
        folder = s.st_mode;
        if (!next_name(place, rest)) return unreadable(message, here, ENAMETOOLONG);
    }
}

fa_status_t check_note(const char* file, const Image& image, const ModuleNote& note, Message* message) {
    if (note.interface != kBackendAbi)
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is of another version: it has interface %u, this library %u", file,
                    note.interface, kBackendAbi);
    const uint64_t seal = note.seal[0] | uint64_t(note.seal[1]) << 32;
    if (seal == 0 || seal == seal_of(image)) return FA_OK;
    return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is damaged: the checksum of its code or data does not match", file);
}

// dlopen maps what the headers name, and touching what is not there is the program's end, as is much else in a file that was damaged.
fa_status_t check_image(const char* file, Message* message) {
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return unreadable(message, file, errno);
    struct stat s;
    const bool known = fstat(fd, &s) == 0;
    void* const bytes = known && s.st_size > 0 ? mmap(nullptr, size_t(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
    const int error = errno;
    close(fd);
    if (!known || bytes == MAP_FAILED) return unreadable(message, file, error);
    if (bytes == nullptr) return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is empty", file);
    const Image image = {static_cast<const char*>(bytes), uint64_t(s.st_size)};
    fa_status_t status = FA_OK;
    if (is_elf(image)) {
        if (bytes_named(image) > image.size)
            status = fail(message, FA_BACKEND_INCOMPATIBLE, "%s is truncated: its headers name parts beyond its %lld bytes", file,
                          (long long)s.st_size);
        else if (const char* part = damaged_part(image))
            status = fail(message, FA_BACKEND_INCOMPATIBLE, "%s is damaged: its %s is not as a linker writes it", file, part);
        else if (const uint64_t at = note_of(image)) status = check_note(file, image, read<ModuleNote>(image, at), message);
    }
    munmap(bytes, size_t(s.st_size));
    return status;
}

}  // namespace

fa_status_t examine_module(const char* path, char* real, Message* message) {
    const fa_status_t status = walk(path, real, message);
    if (status != FA_OK) return status;
    // dlopen replaces $ORIGIN, $LIB and $PLATFORM in a name, and would load another file than this.
    if (strchr(real, '$') != nullptr) return fail(message, FA_BACKEND_INCOMPATIBLE, "%s cannot be loaded: expected a path without $", real);
    return check_image(real, message);
}

}  // namespace os
}  // namespace fa
