// A decode loop as engines run it: append and attention for one token captured in one graph, replayed token by token over a growing paged
// cache, gives what one prefill gives.
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class DecodeLoop : public Gpu {};

constexpr int64_t kBatch = 3, kHeads = 8, kHeadsKv = 2, kTokens = 90, kDim = 64, kPage = 16, kColumns = (kTokens + kPage - 1) / kPage;

void upload(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    cuda(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, stream));
}

// Rows of [batch][tokens][heads][dim] one token at a time: in `step`, [batch][1][heads][dim].
void copy_token(void* step, const void* all, int64_t heads, int64_t t, bool back, cudaStream_t stream) {
    const size_t row = size_t(heads * kDim * 2);
    char* const at = static_cast<char*>(const_cast<void*>(all)) + size_t(t) * row;
    cuda(cudaMemcpy2DAsync(back ? at : step, back ? row * kTokens : row, back ? step : at, back ? row : row * kTokens, row, kBatch,
                           cudaMemcpyDefault, stream));
}

TEST_F(DecodeLoop, OneGraphTokenByTokenIsOnePrefill) {
    const Stream stream;
    const Handle handle = make_handle(FA_MEMORY_DEVICE, 0, stream);
    Rng rng(261);
    Case whole = shaped({kBatch, kHeads, kHeadsKv, kTokens, kTokens, kDim, kDim}, FA_BF16);
    causal(whole, FA_ALIGN_BOTTOM_RIGHT);
    whole.bind(rng);
    whole.fill_normal(rng);
    Moved<fa_forward_args_t> prefill = moved(whole);
    prefill.upload();

    Case step = shaped({kBatch, kHeads, kHeadsKv, 1, kTokens, kDim, kDim}, FA_BF16);
    causal(step, FA_ALIGN_BOTTOM_RIGHT);
    step.d.operands = FA_OPERAND_SEQUSED_K | FA_OPERAND_PAGE_TABLE;
    step.d.page_size = kPage, step.d.num_pages = kBatch * kColumns;
    std::vector<int32_t> table, lengths;
    for (int64_t n = 0; n < kBatch * kColumns; n++) table.push_back(int32_t(kBatch * kColumns - 1 - n));
    for (int64_t t = 0; t <= kTokens; t++) lengths.insert(lengths.end(), kBatch, int32_t(t));
    const int64_t cache = step.d.num_pages * kPage * kHeadsKv * kDim * 2, token = kBatch * kDim * 2;
    const Memory q(token * kHeads), k(token * kHeadsKv), v(token * kHeadsKv), o(token * kHeads), k_cache(cache), v_cache(cache);
    const Memory pages(int64_t(table.size() * 4)), all_lengths(int64_t(lengths.size() * 4)), used(2 * kBatch * 4);
    upload(pages.as(), table.data(), pages.bytes(), stream);
    upload(all_lengths.as(), lengths.data(), all_lengths.bytes(), stream);
    for (const Memory* m : {&k_cache, &v_cache}) cuda(cudaMemsetAsync(m->as(), 0xff, size_t(cache), stream));  // NaN where nothing is yet

    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    append.k_new = k.as(), append.v_new = v.as(), append.seqlen_new = 1, append.k = k_cache.as(), append.v = v_cache.as();
    append.seqused_k = used.as<int32_t>(), append.page_table = pages.as<int32_t>();
    fa_forward_args_t attend = FA_FORWARD_ARGS_INIT;
    attend.q = q.as(), attend.k = k_cache.as(), attend.v = v_cache.as(), attend.o = o.as();
    attend.seqused_k = used.as<int32_t>() + kBatch, attend.page_table = pages.as<int32_t>();
    ASSERT_EQ(fa_workspace_size(handle, &step.d, FA_OP_FORWARD, &attend.workspace_size), FA_OK) << handle.error();
    const Memory workspace(std::max<int64_t>(int64_t(attend.workspace_size), 256));
    if (attend.workspace_size > 0) attend.workspace = workspace.as();

    const Graph graph(stream, [&] {
        ASSERT_EQ(fa_append_kv(handle, &step.d, &append), FA_OK) << handle.error();
        ASSERT_EQ(fa_forward_ex(handle, &step.d, &attend), FA_OK) << handle.error();
    });
    cuda(cudaMemsetAsync(prefill.device.o, 0xff, size_t(whole.o.bytes()), stream));
    for (int64_t t = 0; t < kTokens; t++) {
        copy_token(q.as(), prefill.device.q, kHeads, t, false, stream);
        copy_token(k.as(), prefill.device.k, kHeadsKv, t, false, stream);
        copy_token(v.as(), prefill.device.v, kHeadsKv, t, false, stream);
        upload(used.as(), all_lengths.as<int32_t>() + t * kBatch, 2 * kBatch * 4, stream);  // before the token, and with it
        graph.replay(stream);
        copy_token(o.as(), prefill.device.o, kHeads, t, true, stream);
    }
    stream.wait();
    prefill.fetch();
    whole.d.operands = 0;  // LSE belongs to the prefill
    EXPECT_EQ(check_against_oracle(whole, FA_BF16), "") << "token by token";

    whole.d.operands = FA_OPERAND_LSE;
    ASSERT_EQ(fa_forward_ex(handle, &whole.d, &prefill.device), FA_OK) << handle.error();
    stream.wait();
    prefill.fetch();
    EXPECT_EQ(check_against_oracle(whole, FA_BF16), "") << "prefill";
}

}  // namespace
}  // namespace test::gpu
