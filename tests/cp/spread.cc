#include "ranks.h"
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

namespace test {
LocalTensor local_tensor(int32_t dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim, int64_t gap) {
    LocalTensor t;
    int64_t elements = 1;
    EXPECT_EQ(FA_OK, fa_dtype_unit(dtype, &elements, &t.unit));
    t.row_bytes = dim / elements * t.unit;
    t.stride[2] = dim / elements + gap;
    t.stride[1] = heads * t.stride[2];
    t.stride[0] = rows * t.stride[1];
    t.bytes.assign(size_t(std::max<int64_t>(batch, 1) * rows * t.stride[1] * t.unit), char(kPoison));
    return t;
}

namespace {

std::vector<fa_cp_range_t> ranges_of(const Spread& spread, int32_t rank, const int32_t* cu, int64_t batch, int64_t seqlen) {
    std::vector<fa_cp_range_t> ranges(size_t(2 * batch));
    int64_t count = -1;
    EXPECT_EQ(FA_OK, fa_cp_partition(&spread.desc, rank, spread.ranks, cu, batch, cu ? 0 : seqlen, ranges.data(), 2 * batch, &count))
        << fa_cp_last_error(nullptr);
    ranges.resize(size_t(std::max<int64_t>(count, 0)));
    return ranges;
}

int64_t rows_in(const std::vector<fa_cp_range_t>& ranges) {  // of a local tensor
    int64_t rows = 0;
    for (const fa_cp_range_t& r : ranges) rows = std::max(rows, r.local + r.rows);
    return rows;
}

}  // namespace

void point(Rank& rank, bool strided) {
    const auto strides = [&](const LocalTensor& tensor, int64_t* to) {
        for (int i = 0; i < 4 && strided; i++) to[i] = tensor.stride[i];
    };
    if (strided) rank.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
    strides(rank.q, rank.d.q_stride), strides(rank.k, rank.d.k_stride), strides(rank.v, rank.d.v_stride), strides(rank.o, rank.d.o_stride);
    if (strided && (rank.d.operands & FA_OPERAND_CU_SEQLENS_Q)) rank.d.q_stride[0] = rank.d.o_stride[0] = 0;
    if (strided && (rank.d.operands & FA_OPERAND_CU_SEQLENS_K)) rank.d.k_stride[0] = rank.d.v_stride[0] = 0;
    rank.a.q = rank.q.bytes.data(), rank.a.k = rank.k.bytes.data(), rank.a.v = rank.v.bytes.data(), rank.a.o = rank.o.bytes.data();
    if (rank.d.operands & FA_OPERAND_LSE) rank.a.lse = rank.lse.data();
}

namespace {

// Rows of a pair tensor that this rank has, with all their keys.
std::vector<char> local_pairs(const Case& test_case, const oracle::Reading& reading, Rank& rank, bool bias, int64_t* stride) {
    const int64_t size = bias ? oracle::size_of(reading.bias_dtype) : 1;
    stride[3] = 1, stride[2] = test_case.d.seqlen_k, stride[1] = test_case.d.seqlen_q * stride[2],
    stride[0] = test_case.d.heads_q * stride[1];
    std::vector<char> pairs(size_t(test_case.d.batch * stride[0] * size), char(kPoison));
    std::vector<int64_t> local(size_t(test_case.d.batch), 0);
    for (const fa_cp_range_t& range : rank.rows) {
        for (int64_t i = 0; i < range.rows; i++)
            for (int64_t h = 0; h < test_case.d.heads_q; h++)
                for (int64_t j = 0; j < reading.keys(range.sequence); j++) {
                    const char* from = bias ? test_case.bias.as<char>() + reading.bias(range.sequence, h, range.begin + i, j) * size
                                            : test_case.mask.as<char>() + reading.mask(range.sequence, h, range.begin + i, j);
                    memcpy(pairs.data() +
                               (range.sequence * stride[0] + h * stride[1] + (local[size_t(range.sequence)] + i) * stride[2] + j) * size,
                           from, size_t(size));
                }
        local[size_t(range.sequence)] += range.rows;
    }
    return pairs;
}

}  // namespace

Rank cut_rows(const Case& test_case, const Spread& spread, int32_t rank) {
    const oracle::Reading r = test_case.reading();
    Rank out;
    out.d = test_case.d, out.a = test_case.a, out.spread = spread.desc;
    const bool packed_q = r.has(FA_OPERAND_CU_SEQLENS_Q), packed_k = r.has(FA_OPERAND_CU_SEQLENS_K);
    out.packed = packed_q;
    out.rows = ranges_of(spread, rank, packed_q ? test_case.a.cu_seqlens_q : nullptr, test_case.d.batch, test_case.d.seqlen_q);
    out.keys = ranges_of(spread, rank, packed_k ? test_case.a.cu_seqlens_k : nullptr, test_case.d.batch, test_case.d.seqlen_k);
    const int64_t rows = out.local_rows = rows_in(out.rows), keys = rows_in(out.keys), q_batch = packed_q ? 1 : test_case.d.batch,
                  k_batch = packed_k ? 1 : test_case.d.batch;
    out.q = local_tensor(r.q_dtype, q_batch, rows, test_case.d.heads_q, test_case.d.dim_qk, spread.gap);
    out.o = local_tensor(r.o_dtype, q_batch, rows, test_case.d.heads_q, r.dim_v, spread.gap);
    out.k = local_tensor(r.k_dtype, k_batch, keys, r.heads_k, test_case.d.dim_qk, spread.gap);
    out.v = local_tensor(r.v_dtype, k_batch, keys, r.heads_v, r.dim_v, spread.gap);
    out.lse.assign(size_t(q_batch * test_case.d.heads_q * rows), std::nanf(""));
    for (const fa_cp_range_t& range : out.rows)
        for (int64_t i = 0; i < range.rows; i++)
            for (int64_t h = 0; h < test_case.d.heads_q; h++)
                memcpy(out.q.at(packed_q ? 0 : range.sequence, range.local + i, h),
                       test_case.q.as<char>() + r.q(range.sequence, h, range.begin + i) * out.q.unit, size_t(out.q.row_bytes));
    for (const fa_cp_range_t& range : out.keys)
        for (int64_t j = 0; j < range.rows; j++) {
            const int64_t b = packed_k ? 0 : range.sequence;
            for (int64_t h = 0; h < r.heads_k; h++)
                memcpy(out.k.at(b, range.local + j, h), test_case.k.as<char>() + r.k(range.sequence, h, range.begin + j) * out.k.unit,
                       size_t(out.k.row_bytes));
            for (int64_t h = 0; h < r.heads_v; h++)
                memcpy(out.v.at(b, range.local + j, h), test_case.v.as<char>() + r.v(range.sequence, h, range.begin + j) * out.v.unit,
                       size_t(out.v.row_bytes));
        }
    if (r.has(FA_OPERAND_BIAS)) out.bias = local_pairs(test_case, r, out, true, out.d.bias_stride), out.a.bias = out.bias.data();
    if (r.has(FA_OPERAND_MASK))
        out.mask = local_pairs(test_case, r, out, false, out.d.mask_stride), out.a.mask = reinterpret_cast<uint8_t*>(out.mask.data());
    point(out, spread.gap > 0);
    return out;
}

namespace {

void put_together(Case& test_case, Rank& rank) {
    const oracle::Reading r = test_case.reading();
    for (const fa_cp_range_t& range : rank.rows)
        for (int64_t i = 0; i < range.rows; i++)
            for (int64_t h = 0; h < test_case.d.heads_q; h++) {
                const int64_t b = rank.packed ? 0 : range.sequence, row = range.local + i;
                memcpy(test_case.o.as<char>() + r.o(range.sequence, h, range.begin + i) * rank.o.unit, rank.o.at(b, row, h),
                       size_t(rank.o.row_bytes));
                if (r.has(FA_OPERAND_LSE))
                    test_case.lse.as<float>()[r.lse(range.sequence, h, range.begin + i)] =
                        rank.lse[size_t((b * test_case.d.heads_q + h) * rank.local_rows + row)];
            }
}

RankResult call(Rank& rank, int32_t index, const Spread& spread, StandIn& room) {
    RankResult result;
    const Handle handle = spread.open || spread.device ? make_device_handle(spread.own_devices ? index : 0) : make_handle();
    handle.set(FA_PARAM_THREADS, 1);
    fa_cp_transport_t transport = spread.device ? room.device_transport(index, handle) : room.transport(index);
    if (spread.open) result.status = spread.open(index, handle, &transport);
    if (result.status != FA_OK) return result;
    std::optional<OnDevice> memory;
    if (spread.device || spread.open) memory.emplace(rank, handle);
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    info.timeout_ms = spread.timeout_ms;
    if (spread.change_info) spread.change_info(index, info);
    fa_cp_t cp = nullptr;
    result.status = fa_cp_create(&cp, handle, &info);
    if (result.status != FA_OK) {
        result.error = fa_cp_last_error(nullptr);
        return result;
    }
    for (int repeat = 0; repeat < (index == spread.silent_rank ? 0 : spread.again ? 2 : 1); repeat++) {
        rank.g.forward = &rank.a;
        result.status =
            rank.backward ? fa_cp_backward(cp, &rank.d, &rank.spread, &rank.g) : fa_cp_forward(cp, &rank.d, &rank.spread, &rank.a);
        result.error = fa_cp_last_error(cp);
    }
    if (result.status == FA_OK && index != spread.silent_rank) {
        EXPECT_EQ(FA_OK, fa_cp_synchronize(cp)) << fa_cp_last_error(cp);
    }
    if (memory) memory->back();
    fa_cp_traffic(cp, &result.bytes, &result.messages);
    char text[FA_TEXT_MAX] = "";
    if (rank.backward) fa_cp_explain(cp, &rank.d, &rank.spread, FA_OP_BACKWARD, &rank.g, text, sizeof text);
    else fa_cp_explain(cp, &rank.d, &rank.spread, FA_OP_FORWARD, &rank.a, text, sizeof text);
    result.explained = text;
    fa_cp_destroy(cp);
    if (spread.close) spread.close(index, &transport);
    return result;
}

}  // namespace

std::vector<RankResult> call_all(std::vector<Rank>& ranks, const Spread& spread, StandIn& room) {
    std::vector<RankResult> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); i++) {
        if (spread.change) spread.change(int32_t(i), ranks[i].d, ranks[i].spread, ranks[i].a);
        threads.emplace_back([&, i] { results[i] = call(ranks[i], int32_t(i), spread, room); });
    }
    for (std::thread& t : threads) t.join();
    return results;
}

std::string first_error(const std::vector<RankResult>& results) {
    for (size_t i = 0; i < results.size(); i++)
        if (results[i].status != FA_OK)
            return "rank " + std::to_string(i) + ": " + fa_status_name(results[i].status) + ": " + results[i].error;
    return "";
}

namespace {

std::string compare(Case& test_case) {
    const Handle handle = make_handle();
    test_case.p_dtype = probability_dtype(handle, test_case.d);
    const std::string fault = check_against_oracle(test_case, test_case.p_dtype);
    return fault.empty() ? "" : fault + "\n" + test_case.describe();
}

void poison(Buffer& buffer) {
    if (buffer.bytes() > 0) memset(buffer.as(), kPoison, size_t(buffer.bytes()));
}

}  // namespace

Spread by_rows(int32_t ranks, int32_t method, int32_t layout) {
    Spread s;
    s.ranks = ranks;
    s.desc.shard = FA_CP_SHARD_ROWS;
    s.desc.method = method;
    s.desc.layout = layout;
    return s;
}

std::vector<RankResult> run_spread(Case& test_case, const Spread& spread, StandIn& room) {
    std::vector<Rank> ranks;
    for (int32_t i = 0; i < spread.ranks; i++) ranks.push_back(cut_rows(test_case, spread, i));
    for (Rank& r : ranks) point(r, spread.gap > 0);  // where they lie now
    poison(test_case.o), poison(test_case.lse);
    const std::vector<RankResult> results = call_all(ranks, spread, room);
    for (Rank& r : ranks) put_together(test_case, r);
    return results;
}

std::string spread_and_check(Case& test_case, const Spread& spread) {
    StandIn room(spread.ranks);
    const std::string error = first_error(run_spread(test_case, spread, room));
    return error.empty() ? compare(test_case) : error + "\n" + test_case.describe();
}

std::string spread_keys_and_check(Case& test_case, const Spread& spread, const std::vector<double>& cuts) {
    const oracle::Reading r = test_case.reading();
    std::vector<Rank> ranks(size_t(spread.ranks));
    for (int32_t i = 0; i < spread.ranks; i++) {
        Rank& rank = ranks[size_t(i)];
        rank.d = test_case.d, rank.a = test_case.a, rank.spread = spread.desc;
        const auto cut = [&](int64_t keys, int32_t part) {
            return part == 0 ? 0 : part == spread.ranks ? keys : int64_t(cuts[size_t(part - 1)] * double(keys));
        };
        // Slots of the local cache: more than keys, and more on some ranks than on others.
        rank.d.seqlen_k = test_case.d.seqlen_k + i;
        rank.d.operands |= FA_OPERAND_SEQUSED_K;
        const int64_t page = spread.page_size > 0 ? spread.page_size : rank.d.seqlen_k;  // without pages: a sequence is one
        const int64_t columns = page > 0 ? (rank.d.seqlen_k + page - 1) / page : 0;
        const auto outer = [&](int64_t b, int64_t j) { return b * columns + j / page; };
        rank.k = local_tensor(r.k_dtype, test_case.d.batch * columns, page, r.heads_k, test_case.d.dim_qk, 0);
        rank.v = local_tensor(r.v_dtype, test_case.d.batch * columns, page, r.heads_v, r.dim_v, 0);
        if (spread.page_size > 0) {
            rank.d.operands |= FA_OPERAND_PAGE_TABLE;
            rank.d.page_size = page, rank.d.num_pages = test_case.d.batch * columns;
            for (int64_t n = 0; n < test_case.d.batch * columns; n++) rank.page_table.push_back(int32_t(n));
        }
        for (int64_t b = 0; b < test_case.d.batch; b++) {
            const int64_t begin = cut(r.keys(b), i), end = cut(r.keys(b), i + 1);
            rank.seqused_k.push_back(int32_t(end - begin));
            for (int64_t j = begin; j < end; j++) {
                for (int64_t h = 0; h < r.heads_k; h++)
                    memcpy(rank.k.at(outer(b, j - begin), (j - begin) % page, h), test_case.k.as<char>() + r.k(b, h, j) * rank.k.unit,
                           size_t(rank.k.row_bytes));
                for (int64_t h = 0; h < r.heads_v; h++)
                    memcpy(rank.v.at(outer(b, j - begin), (j - begin) % page, h), test_case.v.as<char>() + r.v(b, h, j) * rank.v.unit,
                           size_t(rank.v.row_bytes));
            }
        }
        rank.q = local_tensor(r.q_dtype, test_case.d.batch, 0, test_case.d.heads_q, test_case.d.dim_qk, 0);
        rank.o.bytes.assign(size_t(test_case.o.bytes()), char(kPoison));
        rank.lse.assign(size_t(test_case.lse.bytes()) / sizeof(float), 0.f);
        if (!rank.lse.empty()) memset(rank.lse.data(), kPoison, size_t(test_case.lse.bytes()));
    }
    for (Rank& rank : ranks) {
        rank.a.k = rank.k.bytes.data(), rank.a.v = rank.v.bytes.data(), rank.a.seqused_k = rank.seqused_k.data();
        if (spread.page_size > 0) rank.a.page_table = rank.page_table.data();
        rank.a.o = rank.o.bytes.data();
        if (r.has(FA_OPERAND_LSE)) rank.a.lse = rank.lse.data();
    }
    StandIn room(spread.ranks);
    const std::string error = first_error(call_all(ranks, spread, room));
    if (!error.empty()) return error + "\n" + test_case.describe();
    for (const Rank& rank : ranks)
        if (rank.o.bytes != ranks[0].o.bytes) return "ranks have different o";
    memcpy(test_case.o.as(), ranks[0].o.bytes.data(), ranks[0].o.bytes.size());
    if (r.has(FA_OPERAND_LSE)) memcpy(test_case.lse.as(), ranks[0].lse.data(), size_t(test_case.lse.bytes()));
    return compare(test_case);
}

}  // namespace test
