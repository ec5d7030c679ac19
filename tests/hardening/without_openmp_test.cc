// A build without OpenMP: its pool cannot be chosen, and the library's own is there.
#include "workload.h"

namespace hardening {
namespace {

TEST(WithoutOpenMP, ItsPoolIsUnsupported) {
    const fa_handle_t handle = make_handle();
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, FA_POOL_OPENMP), FA_UNSUPPORTED);
    EXPECT_TRUE(holds(fa_last_error(handle), "thread_pool is 1, OpenMP: this library was built without it"));
    for (const int64_t pool : {FA_POOL_AUTO, FA_POOL_OWN}) {
        EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, pool), FA_OK);
        Workload w(Op::forward, 400);
        EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
        EXPECT_EQ(w.result(), reference(Op::forward, 400));
    }
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

}  // namespace
}  // namespace hardening
