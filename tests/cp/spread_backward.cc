// A backward, cut up for ranks that are threads, and put together again.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "ranks.h"

namespace test {
namespace {

using Index = std::function<int64_t(int64_t b, int64_t head, int64_t row)>;  // element of a whole tensor

enum class Way { in, out };

void move_rows(Way way, LocalTensor& local, const std::vector<fa_cp_range_t>& ranges, bool packed, int64_t heads, void* whole,
               const Index& index) {
    for (const fa_cp_range_t& range : ranges)
        for (int64_t i = 0; i < range.rows; i++)
            for (int64_t h = 0; h < heads; h++) {
                char* const here = local.at(packed ? 0 : range.sequence, range.local + i, h);
                char* const there = static_cast<char*>(whole) + index(range.sequence, h, range.begin + i) * local.unit;
                memcpy(way == Way::in ? here : there, way == Way::in ? there : here, size_t(local.row_bytes));
            }
}

void move_lse(std::vector<float>& local, const Rank& rank, const float* whole, int64_t heads, const Index& index) {
    for (const fa_cp_range_t& range : rank.rows)
        for (int64_t i = 0; i < range.rows; i++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t b = rank.packed ? 0 : range.sequence;
                local[size_t((b * heads + h) * rank.local_rows + range.local + i)] = whole[index(range.sequence, h, range.begin + i)];
            }
}

// Gradients that ranks accumulate into begin as the case's.
void move_gradients(Way way, BackwardCase& backward, Rank& rank) {
    const oracle::BackwardReading r = backward.reading();
    const bool packed_k = r.has(FA_OPERAND_CU_SEQLENS_K);
    if (backward.a.dq)
        move_rows(way, rank.dq, rank.rows, rank.packed, r.d.heads_q, backward.dq.as(),
                  [&](int64_t s, int64_t h, int64_t i) { return r.dq(s, h, i); });
    if (backward.a.dk)
        move_rows(way, rank.dk, rank.keys, packed_k, r.heads_k, backward.dk.as(),
                  [&](int64_t s, int64_t h, int64_t j) { return r.dk(s, h, j); });
    if (backward.a.dv)
        move_rows(way, rank.dv, rank.keys, packed_k, r.heads_k, backward.dv.as(),
                  [&](int64_t s, int64_t h, int64_t j) { return r.dv(s, h, j); });
}

Rank cut_backward(BackwardCase& backward, const Spread& spread, int32_t index) {
    const oracle::BackwardReading r = backward.reading();
    const Case& c = backward.c;
    Rank rank = cut_rows(c, spread, index);
    rank.backward = true;
    const bool packed_k = r.has(FA_OPERAND_CU_SEQLENS_K);
    const int64_t q_batch = rank.packed ? 1 : c.d.batch, k_batch = packed_k ? 1 : c.d.batch, rows = rank.local_rows;
    int64_t keys = 0;
    for (const fa_cp_range_t& range : rank.keys) keys = std::max(keys, range.local + range.rows);
    move_rows(Way::in, rank.o, rank.rows, rank.packed, c.d.heads_q, c.o.as(),
              [&](int64_t q, int64_t h, int64_t i) { return r.o(q, h, i); });
    move_lse(rank.lse, rank, c.lse.as<float>(), c.d.heads_q, [&](int64_t q, int64_t h, int64_t i) { return r.lse(q, h, i); });
    rank.dout = local_tensor(r.q_dtype, q_batch, rows, c.d.heads_q, r.dim_v, spread.gap);
    move_rows(Way::in, rank.dout, rank.rows, rank.packed, c.d.heads_q, backward.dout.as(),
              [&](int64_t q, int64_t h, int64_t i) { return r.dout(q, h, i); });
    rank.dlse.assign(rank.lse.size() + 1, std::nanf(""));
    if (backward.a.dlse)
        move_lse(rank.dlse, rank, backward.dlse.as<float>(), c.d.heads_q, [&](int64_t q, int64_t h, int64_t i) { return r.dlse(q, h, i); });
    rank.dq = local_tensor(r.dq_dtype(), q_batch, rows, c.d.heads_q, c.d.dim_qk, spread.gap);
    rank.dk = local_tensor(r.dkv_dtype(), k_batch, keys, r.heads_k, c.d.dim_qk, spread.gap);
    rank.dv = local_tensor(r.dkv_dtype(), k_batch, keys, r.heads_k, r.dim_v, spread.gap);
    rank.dsinks.assign(size_t(c.d.heads_q), std::nanf(""));
    if (r.accumulates()) {
        move_gradients(Way::in, backward, rank);
        if (backward.a.dsinks) memcpy(rank.dsinks.data(), backward.dsinks.as(), size_t(backward.dsinks.bytes()));
    }
    return rank;
}

void point_backward(const BackwardCase& backward, const Spread& spread, Rank& rank) {
    point(rank, spread.gap > 0);
    rank.g.flags = backward.a.flags;
    static char nothing;  // a wanted gradient of a rank without rows
    const auto give = [&](LocalTensor& tensor, bool wanted, bool packed, int64_t* stride) -> void* {
        for (int i = 0; i < 4 && wanted && spread.gap > 0; i++) stride[i] = packed && i == 0 ? 0 : tensor.stride[i];
        return !wanted ? nullptr : tensor.bytes.empty() ? &nothing : tensor.bytes.data();
    };
    const bool packed_k = (rank.d.operands & FA_OPERAND_CU_SEQLENS_K) != 0;
    rank.g.dout = give(rank.dout, true, rank.packed, rank.g.dout_stride);
    rank.g.dq = give(rank.dq, backward.a.dq != nullptr, rank.packed, rank.g.dq_stride);
    rank.g.dk = give(rank.dk, backward.a.dk != nullptr, packed_k, rank.g.dk_stride);
    rank.g.dv = give(rank.dv, backward.a.dv != nullptr, packed_k, rank.g.dv_stride);
    rank.g.dlse = backward.a.dlse ? rank.dlse.data() : nullptr;
    rank.g.dsinks = backward.a.dsinks ? rank.dsinks.data() : nullptr;
}

}  // namespace

std::vector<RankResult> run_spread_backward(BackwardCase& backward, const Spread& spread, StandIn& room) {
    std::vector<Rank> ranks;
    backward.reset_outputs();
    for (int32_t i = 0; i < spread.ranks; i++) ranks.push_back(cut_backward(backward, spread, i));
    for (int32_t i = 0; i < spread.ranks; i++) {
        point_backward(backward, spread, ranks[size_t(i)]);
        if (spread.change_backward) spread.change_backward(i, ranks[size_t(i)].g);
    }
    const std::vector<RankResult> results = call_all(ranks, spread, room);
    for (Rank& rank : ranks) {
        move_gradients(Way::out, backward, rank);
        if (!backward.a.dsinks) continue;
        EXPECT_EQ(0, memcmp(rank.dsinks.data(), ranks[0].dsinks.data(), rank.dsinks.size() * sizeof(float))) << "ranks' dsinks differ";
        memcpy(backward.dsinks.as(), rank.dsinks.data(), size_t(backward.dsinks.bytes()));
    }
    return results;
}

std::string spread_and_check_backward(const Handle& handle, BackwardCase& backward, const Spread& spread) {
    StandIn room(spread.ranks);
    const std::string error = first_error(run_spread_backward(backward, spread, room));
    if (!error.empty()) return error + "\n" + backward.describe();
    const std::string fault = backward.check(products_of(handle, backward));
    return fault.empty() ? "" : fault + "\n" + backward.describe();
}

}  // namespace test
