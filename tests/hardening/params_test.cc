// Parameters: the bounds that are told are the bounds that hold.
#include "workload.h"

namespace hardening {
namespace {

constexpr int32_t kWritable[] = {FA_PARAM_THREADS, FA_PARAM_MAX_ISA, FA_PARAM_LOG_LEVEL, FA_PARAM_COUNT_WORK, FA_PARAM_THREAD_POOL};
constexpr int32_t kFigures[] = {FA_STAT_TILE_ROWS,  FA_STAT_TILE_KEYS,     FA_STAT_FLOPS,
                                FA_STAT_BYTES_READ, FA_STAT_BYTES_WRITTEN, FA_STAT_EXTRA_BYTES};

class Params : public ::testing::Test {
  protected:
    ~Params() override { EXPECT_EQ(fa_destroy(handle), FA_OK); }
    const fa_handle_t handle = make_handle();
    int64_t min = 0, max = 0, value = 0, now = 0;
};

TEST_F(Params, StartAtTheirDefaults) {
    for (const int32_t key : kWritable) {
        ASSERT_EQ(fa_param_bounds(key, nullptr, nullptr, &value), FA_OK);
        ASSERT_EQ(fa_param_get(handle, key, &now), FA_OK) << fa_last_error(handle);
        EXPECT_EQ(now, value) << fa_param_name(key);
    }
}

TEST_F(Params, BoundsHold) {
    for (const int32_t key : kWritable) {
        ASSERT_EQ(fa_param_bounds(key, &min, &max, &value), FA_OK);
        EXPECT_LE(min, value);
        EXPECT_LE(value, max);
        for (const int64_t outside : {min - 1, max + 1, INT64_MIN, INT64_MAX}) {
            EXPECT_EQ(fa_param_set(handle, key, outside), FA_INVALID_ARGUMENT);
            EXPECT_EQ(std::string(fa_last_error(handle)), std::string(fa_param_name(key)) + " is " + std::to_string(outside) +
                                                              ": expected " + std::to_string(min) + " to " + std::to_string(max));
            ASSERT_EQ(fa_param_get(handle, key, &now), FA_OK);
            EXPECT_EQ(now, value) << "a refused value changed " << fa_param_name(key);
        }
        for (const int64_t inside : {min, value, max}) {
            const fa_status_t status = fa_param_set(handle, key, inside);
            if (key == FA_PARAM_MAX_ISA && status == FA_UNSUPPORTED) continue;           // this CPU lacks it
            if (key == FA_PARAM_THREAD_POOL && status == FA_INVALID_ARGUMENT) continue;  // this handle has no parallel_for
            EXPECT_EQ(status, FA_OK) << fa_last_error(handle);
            ASSERT_EQ(fa_param_get(handle, key, &now), FA_OK);
            EXPECT_EQ(now, inside) << fa_param_name(key);
        }
        EXPECT_EQ(fa_param_set(handle, key, value), FA_OK);
    }
}

TEST_F(Params, FiguresAreReadOnly) {
    for (const int32_t key : kFigures) {
        EXPECT_EQ(fa_param_get(handle, key, &now), FA_OK) << fa_last_error(handle);
        EXPECT_GE(now, 0);
        EXPECT_EQ(fa_param_set(handle, key, 0), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(fa_last_error(handle)), std::string(fa_param_name(key)) + " is read-only");
    }
}

TEST_F(Params, CountingIsOffUntilAskedFor) {
    Workload w(Op::forward);
    EXPECT_EQ(w.run(handle), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_STAT_FLOPS, &now), FA_OK);
    EXPECT_EQ(now, 0);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_COUNT_WORK, 1), FA_OK);
    EXPECT_EQ(w.run(handle), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_STAT_FLOPS, &now), FA_OK);
    EXPECT_GT(now, 0);
    // Counted calls are computed by the kernels that the formulas are about, which may round otherwise.
    const std::vector<float>& want = reference(Op::forward);
    ASSERT_EQ(w.result().size(), want.size());
    for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(w.result()[i], want[i], 1e-5f) << i;
}

TEST_F(Params, UnknownKeys) {
    for (const int32_t key : {0, -1, 6, 99, 105, 199, 206, INT32_MAX, INT32_MIN}) {
        EXPECT_EQ(fa_param_set(handle, key, 0), FA_INVALID_ARGUMENT);
        EXPECT_TRUE(holds(fa_last_error(handle), "key is " + std::to_string(key)));
        EXPECT_EQ(fa_param_get(handle, key, &now), FA_INVALID_ARGUMENT);
        EXPECT_EQ(fa_param_bounds(key, &min, &max, &value), FA_INVALID_ARGUMENT);
        EXPECT_TRUE(holds(fa_last_error(nullptr), "key is " + std::to_string(key)));
        EXPECT_EQ(fa_param_name(key), nullptr);
        EXPECT_EQ(fa_param_doc(key), nullptr);
    }
}

TEST(ParamTable, EveryKeyHasANameAndADoc) {
    for (const int32_t key : kWritable) EXPECT_NE(std::string(fa_param_doc(key)), "");
    for (const int32_t key : kFigures) EXPECT_NE(std::string(fa_param_doc(key)), "");
    EXPECT_STREQ(fa_param_name(FA_PARAM_THREADS), "threads");
    EXPECT_STREQ(fa_param_name(FA_STAT_EXTRA_BYTES), "extra_bytes");
}

}  // namespace
}  // namespace hardening
