// The calls that take rows one by one: fa_merge, fa_append_kv and fa_rotary.
#pragma once
#include "gpu/append.h"
#include "gpu/context.h"
#include "gpu/merge_partials.h"
#include "gpu/rotary.h"

namespace fa {
namespace gpu {
namespace {

rt::Status prepare_rows(const rt::Device& d) {
    const rt::Status all[] = {rt::prepare(merge_rows, d), rt::prepare(append_rows, d), rt::prepare(rotate_rows, d)};
    for (const rt::Status s : all)
        if (s != rt::kSuccess) return s;
    return rt::kSuccess;
}

// On the stream that the call names by `flags` and `named`, for kernels whose grid covers rows.
template <class Params>
fa_status_t launch_rows(Context* c, uint32_t flags, void* named, void (*kernel)(Params), int64_t rows, int rows_per_block,
                        int threads, const Params& x, const char* name, Message* m) {
    OnDevice on(c->device);
    rt::Stream stream;
    const fa_status_t status = stream_of(c, flags, named, &stream, m);
    if (status != FA_OK) return status;
    const int64_t blocks = ceil_div(rows, rows_per_block);
    if (blocks >= kMaxBlocks)
        return fail(m, FA_UNSUPPORTED, "%lld rows and heads: %s takes fewer than %lld in one launch", (long long)rows, name,
                    (long long)(kMaxBlocks * rows_per_block));
    return blocks == 0 ? FA_OK : launched(m, rt::launch_after(kernel, blocks, threads, 0, stream, x), name);
}

fa_status_t merge(Context* c, const Problem* p, const fa_merge_args_t* a, Message* m) {
    const int64_t rows = p->d.batch * p->d.heads_q * p->d.seqlen_q;
    return launch_rows(c, a->flags, a->stream, merge_rows, rows, 1, kRowThreads, merge_params(*p, *a), "merge_rows", m);
}

fa_status_t append_kv(Context* c, const Problem* p, const fa_append_kv_args_t* a, Message* m) {
    const int64_t rows = p->d.batch * a->seqlen_new * p->d.heads_k;  // of k, and as many of v
    return launch_rows(c, a->flags, a->stream, append_rows, rows, kTeams / 2, kMoveThreads, append_params(*p, *a), "append_rows",
                       m);
}

fa_status_t rotary(Context* c, const Problem* p, const fa_rotary_args_t* a, Message* m) {
    const int64_t rows = p->d.batch * p->d.seqlen_q * p->d.heads_q;
    return launch_rows(c, a->flags, a->stream, rotate_rows, rows, kTeams, kMoveThreads, rotary_params(*p, *a), "rotate_rows", m);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
