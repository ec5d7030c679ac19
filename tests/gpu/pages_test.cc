// Page tables that nobody has checked: ids beyond the cache remove their keys, whatever kernel takes the call, and lead nowhere.
#include <limits>
#include <numeric>
#include <set>
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class Pages : public Gpu {};

// The oracle takes a sound table and a mask without those keys; the device takes the table alone, with ids that do not exist.
std::string run_with_holes(const Handle& handle, Case& test_case, const std::vector<int64_t>& holes) {
    const int64_t columns = (test_case.d.seqlen_k + test_case.d.page_size - 1) / test_case.d.page_size;
    const std::set<int64_t> missing(holes.begin(), holes.end());
    test_case.set_mask([&](int64_t, int64_t, int64_t, int64_t key) { return missing.count(key / test_case.d.page_size) == 0; });
    Moved<fa_forward_args_t> moved_args = moved(test_case);
    for (const Buffer* output : {&test_case.o, &test_case.lse}) memset(output->as(), kPoison, size_t(output->bytes()));
    moved_args.upload();
    std::vector<int32_t> table = test_case.metadata.page_table;
    const int32_t wrong[] = {-1, int32_t(test_case.d.num_pages), 1 << 30, std::numeric_limits<int32_t>::min()};
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (size_t n = 0; n < holes.size(); n++) table[size_t(b * columns + holes[n])] = wrong[n % 4];
    cuda(cudaMemcpy(const_cast<int32_t*>(moved_args.device.page_table), table.data(), table.size() * 4, cudaMemcpyHostToDevice));
    fa_attention_desc_t d = test_case.d;
    d.operands &= ~uint32_t(FA_OPERAND_MASK);
    memset(d.mask_stride, 0, sizeof d.mask_stride);
    moved_args.device.mask = nullptr;
    if (fa_forward_ex(handle, &d, &moved_args.device) != FA_OK) return handle.error();
    cuda(cudaDeviceSynchronize());
    moved_args.fetch();
    return check_device_output(handle, test_case, d);
}

TEST_F(Pages, ThatDoNotExistRemoveTheirKeys) {
    enum { dense, causal_mask, softcap, alibi, list, options };
    const Handle handle = make_handle();
    Rng rng(241);
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_E4M3})
        for (const int64_t dim : {64, 128})
            for (const int64_t rows : {3, 200})
                for (const int64_t size : {16, 48, 64})
                    for (int option = dense; option < options; option++) {
                        const int64_t keys = option == softcap ? 1500 : 500;  // some kernels are for many keys
                        Case c = shaped({2, 2, 1, rows, keys, dim, dim}, dtype);
                        paged(c, size);
                        c.d.operands |= FA_OPERAND_SEQUSED_K | FA_OPERAND_MASK;
                        dense_pairs(c.d, c.d.mask_stride);
                        c.metadata.seqused_k = {int32_t(keys - 10), 300};
                        if (option != dense) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                        if (option == softcap) c.d.softcap = 4, c.d.num_splits = 1;  // or they are cut into splits
                        if (option == alibi) c.d.operands |= FA_OPERAND_ALIBI;
                        const int64_t blocks = (keys + 63) / 64;
                        if (option == list) {
                            c.d.operands |= FA_OPERAND_KEY_LIST;
                            c.d.list_rows = c.d.list_keys = 64, c.d.list_max = blocks;
                            c.d.list_stride[3] = 1;
                        }
                        c.bind(rng);
                        c.fill_normal(rng);
                        if (option == alibi) fa_alibi_slopes(c.d.heads_q, 0, c.alibi.as<float>());
                        if (option == list)
                            c.set_key_lists([&](int64_t, int64_t, int64_t) {
                                std::vector<int32_t> all(static_cast<size_t>(blocks));
                                std::iota(all.begin(), all.end(), 0);
                                return Case::Lists{all, {}};
                            });
                        ASSERT_EQ(run_with_holes(handle, c, {0, 3, 4, 6}), "") << c.describe();
                    }
}

}  // namespace
}  // namespace test::gpu
