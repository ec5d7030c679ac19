// The log: who gets which line.
#include <utility>
#include "workload.h"

namespace hardening {
namespace {

using Lines = std::vector<std::pair<int32_t, std::string>>;

void keep(void* user, int32_t level, const char* line) { static_cast<Lines*>(user)->emplace_back(level, line); }

fa_handle_t handle_that_logs(Lines& lines, int32_t level) {
    return make_handle([&](fa_create_info_t& info) {
        info.log = keep;
        info.log_user = &lines;
        info.log_level = level;
    });
}

// One call that works, one that fails, one question answered with a refusal.
void make_calls(fa_handle_t handle) {
    Workload w(Op::forward);
    EXPECT_EQ(w.run(handle), FA_OK);
    w.desc.dim_qk = 0;
    EXPECT_EQ(w.run(handle), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_supports(handle, &w.desc, FA_OP_FORWARD), FA_INVALID_ARGUMENT);
}

TEST(Log, ErrorLevelTellsFailuresOnly) {
    Lines lines;
    const fa_handle_t handle = handle_that_logs(lines, FA_LOG_ERROR);
    make_calls(handle);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].first, FA_LOG_ERROR);
    EXPECT_EQ(lines[0].second.find("fa_forward_ex: FA_INVALID_ARGUMENT: "), 0u) << lines[0].second;
    EXPECT_TRUE(holds(lines[0].second, "dim_qk is 0"));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Log, InfoLevelTellsTheChoice) {
    Lines lines;
    const fa_handle_t handle = handle_that_logs(lines, FA_LOG_INFO);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].first, FA_LOG_INFO);
    EXPECT_EQ(lines[0].second.find("backend cpu, device 0 "), 0u) << lines[0].second;
    EXPECT_TRUE(holds(lines[0].second, ", device memory"));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Log, DebugLevelTellsEveryCall) {
    Lines lines;
    const fa_handle_t handle = handle_that_logs(lines, FA_LOG_DEBUG);
    make_calls(handle);
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[1].first, FA_LOG_DEBUG);
    EXPECT_EQ(lines[1].second.find("fa_forward_ex: batch 1, heads 2/2, seqlen 5/8, dim 16/16: kernel cpu_"), 0u) << lines[1].second;
    EXPECT_TRUE(holds(lines[1].second, ": FA_OK"));
    EXPECT_EQ(lines[2].first, FA_LOG_ERROR);
    EXPECT_EQ(lines[3].first, FA_LOG_DEBUG);
    EXPECT_EQ(lines[3].second.find("fa_supports: FA_INVALID_ARGUMENT: "), 0u) << lines[3].second;
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Log, LevelIsAParameter) {
    Lines lines;
    const fa_handle_t handle = handle_that_logs(lines, FA_LOG_ERROR);
    int64_t level = -1;
    EXPECT_EQ(fa_param_get(handle, FA_PARAM_LOG_LEVEL, &level), FA_OK);
    EXPECT_EQ(level, FA_LOG_ERROR);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_LOG_LEVEL, FA_LOG_NONE), FA_OK);
    make_calls(handle);
    EXPECT_TRUE(lines.empty());
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_LOG_LEVEL, FA_LOG_DEBUG), FA_OK);
    make_calls(handle);
    EXPECT_EQ(lines.size(), 3u);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Log, LevelWithoutACallbackIsSilent) {
    const fa_handle_t handle = make_handle([](fa_create_info_t& info) { info.log_level = FA_LOG_DEBUG; });
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    make_calls(handle);
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

}  // namespace
}  // namespace hardening
