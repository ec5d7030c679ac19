// Ranks that are processes, over sockets whose buffers are full most of the time: right results, and a status within the limit where a
// process is killed in the middle of a call.
#include <gtest/gtest.h>
#include "pipes.h"
#include "support/handle.h"

namespace test {
namespace {

enum { kRows = 250, kHeads = 4, kDim = 32, kRow = kHeads * kDim, kRanks = 4 };
constexpr int64_t kPatient = 20000, kShort = 300,
                  kBusy = 20000;  // milliseconds; the last: what a busy machine may take for all else
constexpr int32_t kMethods[] = {FA_CP_METHOD_ULYSSES, FA_CP_METHOD_ALL_GATHER, FA_CP_METHOD_RING};

using Floats = std::vector<float>;

struct Problem {
    Floats q, k, v, dout, o, lse, dq, dk, dv;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;

    Problem() : lse(kRows * kHeads) {
        uint32_t seed = 1;
        for (Floats* x : {&q, &k, &v, &dout, &o, &dq, &dk, &dv}) {
            x->resize(kRows * kRow);
            for (float& value : *x) value = float((seed = seed * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1.f;
        }
        forward.q = q.data(), forward.k = k.data(), forward.v = v.data(), forward.o = o.data(), forward.lse = lse.data();
        backward.forward = &forward, backward.dout = dout.data();
        backward.dq = dq.data(), backward.dk = dk.data(), backward.dv = dv.data();
    }
};

fa_attention_desc_t causal_desc() {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.operands = FA_OPERAND_LSE;
    d.batch = 1, d.heads_q = kHeads, d.seqlen_q = d.seqlen_k = kRows, d.dim_qk = kDim;
    d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT;
    return d;
}

// One rank's process: a forward and a backward. The sum of their statuses, 250 where the answer is wrong, 251 where it took too long.
int rank_process(Pipes& pipes, int32_t rank, int32_t method, int64_t limit) {
    const Handle handle = make_handle();
    handle.set(FA_PARAM_THREADS, 1);
    const fa_attention_desc_t d = causal_desc();
    Problem whole, part;
    if (fa_forward_ex(handle, &d, &whole.forward) != FA_OK || fa_backward(handle, &d, &whole.backward) != FA_OK) return 252;

    const fa_cp_transport_t transport = pipes.transport(rank);
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport, info.timeout_ms = limit;
    fa_cp_t cp = nullptr;
    if (fa_cp_create(&cp, handle, &info) != FA_OK) return 253;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS, spread.layout = FA_CP_LAYOUT_ZIGZAG, spread.method = method;
    fa_cp_range_t mine[2];
    int64_t count = 0;
    fa_cp_partition(&spread, rank, kRanks, nullptr, 1, kRows, mine, 2, &count);
    for (Floats* x : {&part.q, &part.k, &part.v, &part.dout, &whole.o, &whole.dq, &whole.dk, &whole.dv})
        for (int64_t i = 0; i < count; i++)
            memmove(x->data() + mine[i].local * kRow, x->data() + mine[i].begin * kRow, size_t(mine[i].rows * kRow) * sizeof(float));

    const auto began = std::chrono::steady_clock::now();
    fa_status_t status = fa_cp_forward(cp, &d, &spread, &part.forward);
    if (status == FA_OK) status = fa_cp_backward(cp, &d, &spread, &part.backward);
    const bool late = std::chrono::steady_clock::now() - began > std::chrono::milliseconds(limit + kBusy);
    fa_cp_destroy(cp);
    if (late) return 251;
    if (status != FA_OK) return status;
    for (int64_t i = 0; i < (mine[0].rows + (count > 1 ? mine[1].rows : 0)) * kRow; i++)
        for (const auto& [got, want] : {std::pair(&part.o, &whole.o), {&part.dq, &whole.dq}, {&part.dk, &whole.dk}, {&part.dv, &whole.dv}})
            if (!(std::abs((*got)[size_t(i)] - (*want)[size_t(i)]) < 1e-5f)) return 250;
    return FA_OK;
}

std::vector<int> statuses(int32_t method, int64_t limit, const std::function<void(int32_t, Pipes&)>& fault) {
    Pipes pipes(kRanks);
    return in_processes(kRanks, [&](int32_t rank) {
        fault(rank, pipes);
        return rank_process(pipes, rank, method, limit);
    });
}

TEST(CpProcesses, FullPipesDelayAndDoNotBlock) {
    for (const int32_t method : kMethods)
        EXPECT_EQ(std::vector<int>(kRanks, FA_OK), statuses(method, kPatient, [](int32_t, Pipes&) {})) << "method " << method;
}

// Every one that is left gets a status, wherever in a call the process was killed.
TEST(CpProcesses, AKilledRankIsAStatusForAllOthers) {
    for (const int32_t method : kMethods)
        for (const int64_t group : {0, 1, 2, 4}) {
            const std::vector<int> ends =
                statuses(method, kShort, [&](int32_t rank, Pipes& pipes) { pipes.die_at = rank == 1 ? group : -1; });
            EXPECT_EQ(-SIGKILL, ends[1]) << "method " << method << ", group " << group;
            for (const size_t rank : {0u, 2u, 3u})
                EXPECT_TRUE(ends[rank] == FA_PEER_FAILED || ends[rank] == FA_TIMEOUT)
                    << "rank " << rank << " ended with " << ends[rank] << ", method " << method << ", group " << group;
        }
}

TEST(CpProcesses, AMessageCutShortIsAStatusForAll) {
    for (const int32_t method : kMethods) {
        const std::vector<int> ends = statuses(method, kShort, [&](int32_t rank, Pipes& pipes) { pipes.cut_at = rank == 1 ? 3 : -1; });
        for (const size_t rank : {0u, 2u, 3u}) EXPECT_TRUE(ends[rank] == FA_PEER_FAILED || ends[rank] == FA_TIMEOUT) << ends[rank];
    }
}

}  // namespace
}  // namespace test
