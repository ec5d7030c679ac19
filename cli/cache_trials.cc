// The cases of `verify` beside the forward: merging partial results, rotating, and appending to a cache.
#include <cmath>
#include <memory>
#include "oracle/accuracy.h"
#include "support/rng.h"
#include "trial.h"

namespace tool {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kRows = 37, kDim = 64, kRotary = 32, kPositions = 200;

fa_attention_desc_t describe_cache(int32_t q_dtype) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = q_dtype;
    d.batch = kBatch;
    d.heads_q = kHeads;
    d.seqlen_q = kRows;
    d.seqlen_k = kPositions;
    d.dim_qk = kDim;
    return d;
}

// Elements of a type, normal numbers.
std::vector<unsigned char> normals(test::Rng& rng, int64_t count, int32_t dtype) {
    std::vector<unsigned char> bytes(size_t(count * oracle::size_of(dtype)));
    for (int64_t i = 0; i < count; ++i) oracle::store(bytes.data(), i, dtype, rng.normal());
    return bytes;
}

struct Angles {
    std::vector<float> cos, sin;
    Angles() {
        for (int64_t p = 0; p < kPositions; ++p)
            for (int64_t t = 0; t < kRotary / 2; ++t) {
                const double angle = double(p) * std::pow(10000.0, -2.0 * double(t) / double(kRotary));
                cos.push_back(float(std::cos(angle)));
                sin.push_back(float(std::sin(angle)));
            }
    }
};

// Puts one call to every kernel. reset undoes what the last run wrote; the truth was computed before any.
void put(const fa_attention_desc_t& desc, int32_t op, const std::vector<oracle::Write>& want, const Kernels& kernels, const Done& done,
         const std::function<void()>& reset, const std::function<fa_status_t(fa_handle_t)>& call) {
    for (const Kernel& kernel : kernels) {
        reset();
        done(attempt(kernel, desc, op, call, [&](Outcome& outcome) { outcome.fault = oracle::compare(want).fault; }));
    }
}

void merge(int32_t o_dtype, bool accumulate, const Kernels& kernels, const Done& done) {
    constexpr int64_t kParts = 3, kCount = kBatch * kHeads * kRows;
    test::Rng rng(1);
    std::vector<float> o_parts(kParts * kCount * kDim), lse_parts(kParts * kCount), lse(kCount);
    for (float& x : o_parts) x = float(rng.normal());
    for (float& x : lse_parts) x = rng.chance(0.2) ? -INFINITY : float(4 * rng.normal());
    for (float& x : lse) x = float(rng.normal());
    std::vector<unsigned char> o = normals(rng, kCount * kDim, o_dtype);
    const std::vector<unsigned char> o_before = o;
    const std::vector<float> lse_before = lse, sinks = {1, 0, -1, 2};

    fa_attention_desc_t d = describe_cache(FA_F32);
    d.o_dtype = o_dtype;
    d.operands = FA_OPERAND_LSE | (accumulate ? 0 : FA_OPERAND_SINKS);
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    a.flags = accumulate ? FA_MERGE_ACCUMULATE : 0;
    a.parts = kParts;
    a.o_parts = o_parts.data();
    a.lse_parts = lse_parts.data();
    a.o = o.data();
    a.lse = lse.data();
    a.sinks = accumulate ? nullptr : sinks.data();
    const auto reset = [&] {
        o = o_before;
        lse = lse_before;
    };
    put(d, FA_OP_MERGE, oracle::merge(d, a), kernels, done, reset, [&](fa_handle_t h) { return fa_merge(h, &d, &a); });
}

void rotary(int32_t dtype, bool interleaved, const Kernels& kernels, const Done& done) {
    test::Rng rng(2);
    const Angles angles;
    const std::vector<unsigned char> x = normals(rng, kBatch * kRows * kHeads * kDim, dtype);
    std::vector<unsigned char> out(x.size());
    const std::vector<int32_t> offsets = {0, 150};
    fa_attention_desc_t d = describe_cache(dtype);
    fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
    a.flags = interleaved ? FA_ROTARY_INTERLEAVED : 0;
    a.x = x.data();
    a.out = out.data();
    a.cos = angles.cos.data();
    a.sin = angles.sin.data();
    a.max_position = kPositions;
    a.rotary_dim = kRotary;
    a.position_offset = offsets.data();
    const auto reset = [&] { std::fill(out.begin(), out.end(), static_cast<unsigned char>(0xff)); };
    put(d, FA_OP_ROTARY, oracle::rotary(d, a), kernels, done, reset, [&](fa_handle_t h) { return fa_rotary(h, &d, &a); });
}

// New tokens, rotated, into pages of 16 slots.
void append(int32_t q_dtype, int32_t cache_dtype, const Kernels& kernels, const Done& done) {
    constexpr int64_t kPage = 16, kPagesPerRow = (kPositions + kPage - 1) / kPage, kPages = kBatch * kPagesPerRow + 2, kNew = 21;
    test::Rng rng(3);
    const Angles angles;
    const std::vector<unsigned char> k_new = normals(rng, kBatch * kNew * kHeads * kDim, q_dtype),
                                     v_new = normals(rng, kBatch * kNew * kHeads * kDim, q_dtype);
    const size_t slots = size_t(kPages * kPage * kHeads),
                 bytes = slots * size_t(kDim / oracle::elements_of(cache_dtype) * oracle::size_of(cache_dtype));
    std::vector<unsigned char> k(bytes), v(bytes);
    std::vector<float> k_descale(slots), v_descale(slots);
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < kBatch * kPagesPerRow; ++i) pages.push_back(int32_t(kPages - 1 - i));
    const std::vector<int32_t> used = {0, 130};

    fa_attention_desc_t d = describe_cache(q_dtype);
    d.k_dtype = cache_dtype;
    d.page_size = kPage;
    d.num_pages = kPages;
    d.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.k_new = k_new.data();
    a.v_new = v_new.data();
    a.seqlen_new = kNew;
    a.k = k.data();
    a.v = v.data();
    a.seqused_k = used.data();
    a.page_table = pages.data();
    a.cos = angles.cos.data();
    a.sin = angles.sin.data();
    a.max_position = kPositions;
    a.rotary_dim = kRotary;
    if (oracle::size_of(cache_dtype) == 1) {  // quantised by each token and head
        d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        const int64_t stride[3] = {kPage * kHeads, kHeads, 1};
        std::copy_n(stride, 3, d.k_descale_stride);
        std::copy_n(stride, 3, d.v_descale_stride);
        a.flags = FA_APPEND_DYNAMIC_SCALE;
        a.k_descale = k_descale.data();
        a.v_descale = v_descale.data();
    }
    const auto reset = [&] {
        std::fill(k.begin(), k.end(), static_cast<unsigned char>(0xff));
        std::fill(v.begin(), v.end(), static_cast<unsigned char>(0xff));
        std::fill(k_descale.begin(), k_descale.end(), NAN);
        std::fill(v_descale.begin(), v_descale.end(), NAN);
    };
    put(d, FA_OP_APPEND_KV, oracle::append_kv(d, a), kernels, done, reset, [&](fa_handle_t h) { return fa_append_kv(h, &d, &a); });
}

template <class Run, class... Parameters>
Trial trial(const char* name, Run run, Parameters... parameters) {
    return {name, [=](const Kernels& kernels, const Done& done) { run(parameters..., kernels, done); }};
}

}  // namespace

std::vector<Trial> cache_trials() {
    return {trial("merge of 3 parts, sinks, bf16 o", merge, FA_BF16, false),
            trial("merge of 3 parts into what is there", merge, FA_F32, true),
            trial("f16 rotary, halves", rotary, FA_F16, false),
            trial("f32 rotary, interleaved", rotary, FA_F32, true),
            trial("f32 append to f16 pages, rotated", append, FA_F32, FA_F16),
            trial("bf16 append to i8 pages, rotated", append, FA_BF16, FA_I8),
            trial("bf16 append to e4m3 pages, rotated", append, FA_BF16, FA_E4M3),
            trial("f32 append to q8_0 pages, rotated", append, FA_F32, FA_Q8_0),
            trial("bf16 append to q5_1 pages, rotated", append, FA_BF16, FA_Q5_1)};
}

}  // namespace tool
