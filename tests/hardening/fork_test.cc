// fork(): threads and devices stay behind, so a parent's handle answers nothing in the child; a new one works there.
#include <sys/wait.h>
#include <unistd.h>
#include <functional>
#include "workload.h"

namespace hardening {
namespace {

constexpr int64_t kRows = 400;  // the parent runs a team of threads

// Runs the body in a child. What it returns is the number of things that went wrong there.
int wrong_in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "the child died of signal " << WTERMSIG(status);
    return WEXITSTATUS(status);
}

int check(bool ok, const char* what) {
    if (!ok) fprintf(stderr, "in the child: %s (%s)\n", what, fa_last_error(nullptr));
    return !ok;
}

class Fork : public ::testing::Test {
  protected:
    void SetUp() override {
        handle = make_handle();
        ASSERT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 3), FA_OK);
        ASSERT_EQ(work.run(handle), FA_OK) << fa_last_error(handle);
    }
    void TearDown() override {
        EXPECT_EQ(work.run(handle), FA_OK) << "the parent's handle is no worse for it";
        EXPECT_EQ(work.result(), expected);
        EXPECT_EQ(fa_destroy(handle), FA_OK);
    }
    const std::vector<float> expected = reference(Op::forward, kRows);
    Workload work{Op::forward, kRows};
    fa_handle_t handle = nullptr;
};

TEST_F(Fork, ParentsHandleAnswersNothingButDestroy) {
    EXPECT_EQ(wrong_in_child([&] {
                  int wrong = check(work.run(handle) == FA_INVALID_STATE, "run");
                  wrong += check(std::string(fa_last_error(handle)).find("forked child") != std::string::npos, "sentence");
                  int64_t value;
                  wrong += check(fa_param_get(handle, FA_PARAM_THREADS, &value) == FA_INVALID_STATE, "get");
                  wrong += check(fa_supports(handle, &work.desc, FA_OP_FORWARD) == FA_INVALID_STATE, "supports");
                  wrong += check(fa_synchronize(handle) == FA_INVALID_STATE, "synchronize");
                  return wrong + check(fa_destroy(handle) == FA_OK, "destroy");
              }),
              0);
}

TEST_F(Fork, NewHandleInTheChildWorks) {
    EXPECT_EQ(wrong_in_child([&] {
                  fa_handle_t mine;
                  int wrong = check(fa_create(&mine, nullptr) == FA_OK, "create");
                  wrong += check(fa_param_set(mine, FA_PARAM_THREADS, 3) == FA_OK, "threads");
                  wrong += check(work.run(mine) == FA_OK, "run");
                  wrong += check(work.result() == expected, "result");
                  return wrong + check(fa_destroy(mine) == FA_OK, "destroy");
              }),
              0);
}

TEST_F(Fork, GrandchildWorksToo) {
    EXPECT_EQ(wrong_in_child([&] {
                  fa_handle_t mine;
                  if (fa_create(&mine, nullptr) != FA_OK || work.run(mine) != FA_OK) return 1;
                  const pid_t grandchild = fork();
                  if (grandchild == 0) _exit(work.run(mine) != FA_INVALID_STATE || fa_destroy(mine) != FA_OK);
                  int status = 0;
                  waitpid(grandchild, &status, 0);
                  return check(status == 0, "grandchild");
              }),
              0);
}

fa_status_t serial(void* calls, int64_t n, void (*body)(void*, int64_t), void* arg) {
    ++*static_cast<int*>(calls);
    for (int64_t i = 0; i < n; i++) body(arg, i);
    return FA_OK;
}

TEST_F(Fork, CallersPoolIsUsedInTheChild) {
    EXPECT_EQ(wrong_in_child([&] {
                  int calls = 0;
                  const fa_handle_t mine = make_handle([&](fa_create_info_t& info) {
                      info.parallel_for = serial;
                      info.parallel_user = &calls;
                  });
                  int wrong = check(fa_param_set(mine, FA_PARAM_THREADS, 3) == FA_OK, "threads");
                  wrong += check(work.run(mine) == FA_OK && calls > 0, "run");
                  return wrong + check(work.result() == expected, "result");
              }),
              0);
}

// A server's worker forks while another of its threads is inside a call: the copy of the handle says "busy" for ever.
TEST_F(Fork, HandleThatWasBusyCanBeDestroyed) {
    struct Inside {
        fa_handle_t handle = nullptr;
        int wrong = -1;
    } inside;
    inside.handle = make_handle([&](fa_create_info_t& info) {
        info.log_level = FA_LOG_ERROR;
        info.log_user = &inside;
        info.log = [](void* user, int32_t, const char*) {
            Inside& i = *static_cast<Inside*>(user);
            i.wrong = wrong_in_child([&] { return check(fa_destroy(i.handle) == FA_OK, "destroy"); });
        };
    });
    EXPECT_EQ(fa_param_set(inside.handle, 4711, 0), FA_INVALID_ARGUMENT);
    EXPECT_EQ(inside.wrong, 0);
    EXPECT_EQ(fa_destroy(inside.handle), FA_OK);
}

}  // namespace
}  // namespace hardening
