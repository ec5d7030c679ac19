// A folder of our own in which a test arranges modules as an administrator, or an attacker, would.
#pragma once
#include <flashattn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <filesystem>
#include <functional>
#include <string>

class Folder {
  public:
    Folder() {
        char name[] = "/tmp/flashattn-modules-XXXXXX";
        path_ = mkdtemp(name);
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    Folder(const Folder&) = delete;

    std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }

    // Copies a file in; the mode does not depend on the umask of whoever runs the tests.
    std::string put(const std::string& from, const std::string& name, mode_t mode = 0755) const {
        const std::string to = path(name);
        std::filesystem::copy_file(from, to);
        EXPECT_EQ(chmod(to.c_str(), mode), 0);
        return to;
    }
    std::string subfolder(const std::string& name, mode_t mode = 0755) const {
        const std::string to = path(name);
        std::filesystem::create_directories(to);
        EXPECT_EQ(chmod(to.c_str(), mode), 0);
        return to;
    }

  private:
    std::string path_;
};

constexpr char kCuda[] = "libflashattn-cuda.so";
constexpr char kHip[] = "libflashattn-hip.so";

inline std::string built(const std::string& folder, const std::string& file = kCuda) {
    return std::string(FA_MODULES) + "/" + folder + "/" + file;
}

inline fa_status_t create(const std::string& folder, int32_t backend = FA_BACKEND_CUDA, std::string* sentence = nullptr) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.backend_dir = folder.c_str();
    fa_handle_t handle;
    const fa_status_t status = fa_create(&handle, &info);
    if (sentence != nullptr) *sentence = fa_last_error(nullptr);
    fa_destroy(handle);
    return status;
}

// What the body returns in a process of its own; its signal, negative, where one ends it.
inline int in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
