// What must not happen while a program looks for modules: that the code of another user runs, or that a broken file ends the process.
// Each attempt is a process of its own.
#include <fcntl.h>
#include <flashattn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>
#include "folder.h"

namespace {

constexpr uid_t kStranger = 65534;

// A stranger who may write to a folder above the module's, and exchanges the module's folder for his own all the time.
class Race : public ::testing::TestWithParam<bool> {
  protected:
    enum Outcome { refused, ours, theirs, other };

    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "only root can give files away and become another user";
        ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
        above = folder.subfolder("above");
        folder.subfolder("above/ours");
        folder.put(built("good"), "above/ours/" + std::string(kCuda));
        folder.subfolder("above/theirs");
        const std::string module = folder.put(built("refuses"), "above/theirs/" + std::string(kCuda));
        for (const std::string& path : {above + "/theirs", module})
            if (chown(path.c_str(), kStranger, kStranger) != 0) GTEST_SKIP() << "files cannot be given away here";
        if (GetParam()) {  // the folder is named by a link, and the link is exchanged
            folder.subfolder("behind");
            std::filesystem::rename(above + "/ours", folder.path("behind/ours"));
            std::filesystem::create_directory_symlink("../behind/ours", above + "/ours");
        }
        if (!exchange() || !exchange()) GTEST_SKIP() << "this file system cannot exchange two folders at once";
    }
    void TearDown() override {
        if (stranger <= 0) return;
        kill(stranger, SIGKILL);
        waitpid(stranger, nullptr, 0);
    }

    bool exchange() const {
        return renameat2(AT_FDCWD, (above + "/ours").c_str(), AT_FDCWD, (above + "/theirs").c_str(), RENAME_EXCHANGE) == 0;
    }
    void start_stranger() {
        int ready[2];
        ASSERT_EQ(pipe(ready), 0);
        stranger = fork();
        if (stranger == 0) {
            const bool changed = setresgid(kStranger, kStranger, kStranger) == 0 && setresuid(kStranger, kStranger, kStranger) == 0;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(60);
            if (write(ready[1], &changed, 1) != 1 || !changed) _exit(1);
            for (;;) {
                exchange();
                for (volatile int i = 0; i < 3000; i = i + 1) {
                }
            }
        }
        bool changed = false;
        EXPECT_EQ(read(ready[0], &changed, 1), 1);
        close(ready[0]);
        close(ready[1]);
        if (!changed) GTEST_SKIP() << "no process can become another user here";
    }

    // Programs look for the module for a second, one after the other.
    std::map<int, int> outcomes() {
        std::map<int, int> count;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        while (std::chrono::steady_clock::now() < end) {
            struct stat s;
            if (stat((above + "/ours").c_str(), &s) == 0) seen[s.st_uid]++;
            count[in_child([this] {
                std::string sentence;
                const fa_status_t status = create(above + "/ours", FA_BACKEND_CUDA, &sentence);
                if (sentence.find("refuses to serve") != std::string::npos) return theirs;
                if (sentence.find("is not trusted") != std::string::npos) return refused;
                return status == FA_OK ? ours : other;
            })]++;
        }
        return count;
    }

    Folder folder;
    std::string above;
    pid_t stranger = 0;
    std::map<uid_t, int> seen;  // the owners of "ours"
};

TEST_P(Race, IsLostWhereTheStrangerMayWrite) {
    ASSERT_EQ(chmod(above.c_str(), 0777), 0);
    start_stranger();
    if (IsSkipped()) return;
    std::map<int, int> count = outcomes();
    EXPECT_GT(seen[0], 0);
    EXPECT_GT(seen[kStranger], 0) << "nothing was exchanged";
    EXPECT_EQ(count[theirs], 0) << "of " << count[refused] + count[ours] + count[theirs];
    EXPECT_GT(count[refused], 0);
    EXPECT_EQ(count[other], 0);
}

TEST_P(Race, DoesNotBeginInAStickyFolder) {
    ASSERT_EQ(chmod(above.c_str(), 01777), 0);
    start_stranger();
    if (IsSkipped()) return;
    std::map<int, int> count = outcomes();
    EXPECT_EQ(seen[kStranger], 0);
    EXPECT_GT(count[GetParam() ? refused : ours], 0) << "a folder there is trusted, a link is not";
    EXPECT_EQ(count.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Modules, Race, ::testing::Bool(), [](const auto& named) { return named.param ? "Link" : "Folder"; });

// A copy that was interrupted: the file ends early, or, where the copy reserves the space first, is zero from there on.
TEST(CutOff, ModuleIsRefusedAtAnyLength) {
    std::ifstream in(built("good"), std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    ASSERT_GT(whole.size(), 4096u);
    std::vector<size_t> lengths = {0, 1, 4, 16, 40, 57, 58, 60, 63, 64, 65, 120, whole.size() - 64, whole.size() - 1};
    for (size_t i = 1; i < 40; i++) lengths.push_back(i * whole.size() / 40);
    for (const size_t length : lengths)
        for (const bool reserved : {false, true}) {
            const std::string left = whole.substr(0, length) + std::string(reserved ? whole.size() - length : 0, '\0');
            if (left == whole) continue;  // the last bytes are zeros
            Folder folder;
            std::ofstream(folder.path(kCuda), std::ios::binary) << left;
            ASSERT_EQ(chmod(folder.path(kCuda).c_str(), 0755), 0);
            const int status = in_child([&] {
                const fa_status_t named = create(folder.path());
                return create(folder.path(), FA_BACKEND_AUTO) == FA_OK ? named : FA_INTERNAL;
            });
            EXPECT_EQ(status, FA_BACKEND_INCOMPATIBLE) << length << (reserved ? " bytes, then zeros" : " bytes");
        }
}

}  // namespace
