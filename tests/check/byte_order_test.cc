// What memory holds, by fixed bytes. Arrays of scalars are in the machine's byte order; what a format defines by its bytes (8 and 4 bits,
// blocks, factors of 8 bits, masks of bits) and what a seed draws are the same on every machine. Nothing here asks the oracle, which could
// share a mistake.
#include <gtest/gtest.h>
#include <cmath>
#include <cstring>
#include <vector>
#include "check/isa.h"
#include "cpu/kernels/byte_order.h"

namespace test {
namespace {

constexpr int kDims = 32;
using Bytes = std::vector<unsigned char>;
using Values = std::vector<float>;

// The bytes of numbers as this machine has them.
template <class T>
Bytes native(std::initializer_list<T> values) {
    Bytes bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.begin(), bytes.size());
    return bytes;
}

// Values of kDims dims that a type stores exactly, and how.
struct Stored {
    int32_t dtype;
    Values values;
    Bytes bytes;
};

Bytes operator+(Bytes a, const Bytes& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
template <class T>
std::vector<T> repeated(const std::vector<T>& period, size_t count) {
    std::vector<T> all;
    for (size_t i = 0; i < count; i++) all.push_back(period[i % period.size()]);
    return all;
}
Stored repeating(int32_t dtype, const Values& values, const Bytes& bytes) {
    return {dtype, repeated(values, kDims), repeated(bytes, kDims * bytes.size() / values.size())};
}

// Both bytes of d and of m differ, and no two bytes of integers or of their fifth bits are alike.
constexpr float kD = 0x1.01p-1f, kM = -0x1.004p+0f;  // 0x3804, 0xbc01
int integer(int dim) { return (2 * dim * dim + 7 * dim + 1 + dim / 16 * 3) % 32; }
Values of_block(int bits, bool has_min) {
    Values values;
    for (int i = 0; i < kDims; i++) {
        const int x = bits == 8 ? 127 - 8 * i : integer(i) % (1 << bits) - (has_min ? 0 : 1 << (bits - 1));
        values.push_back(kD * float(x) + (has_min ? kM : 0.f));
    }
    return values;
}

std::vector<Stored> stored() {
    const Bytes d = {0x04, 0x38}, m = {0x01, 0xbc}, fifths = {0xf4, 0x11, 0x1b, 0xca},
                nibbles = {0x41, 0xda, 0xa7, 0xb8, 0x0d, 0x96, 0x63, 0x74, 0xc9, 0x52, 0x2f, 0x30, 0x85, 0x1e, 0xeb, 0xfc},
                bytes = {0x7f, 0x77, 0x6f, 0x67, 0x5f, 0x57, 0x4f, 0x47, 0x3f, 0x37, 0x2f, 0x27, 0x1f, 0x17, 0x0f, 0x07,
                         0xff, 0xf7, 0xef, 0xe7, 0xdf, 0xd7, 0xcf, 0xc7, 0xbf, 0xb7, 0xaf, 0xa7, 0x9f, 0x97, 0x8f, 0x87};
    return {repeating(FA_F32, {0x1.020406p+0f, -2}, native<uint32_t>({0x3f810203, 0xc0000000})),
            repeating(FA_F16, {kD, kM, 3}, native<uint16_t>({0x3804, 0xbc01, 0x4200})),
            repeating(FA_BF16, {0x1.02p+0f, -3}, native<uint16_t>({0x3f81, 0xc040})),
            repeating(FA_E4M3, {.5f, -.5f, 448, 1.125f}, {0x30, 0xb0, 0x7e, 0x39}),
            repeating(FA_E5M2, {.5f, -.5f, 57344, 1.25f}, {0x38, 0xb8, 0x7b, 0x3d}),
            repeating(FA_I8, {1, -2, 127}, {0x01, 0xfe, 0x7f}),
            repeating(FA_E2M1, {.5f, -6, 3, -0.f}, {0xf1, 0x85}),
            repeating(FA_I4, {1, -2, 7, 0}, {0xe1, 0x07}),
            repeating(FA_U4, {1, 14, 7, 0}, {0xe1, 0x07}),
            {FA_Q4_0, of_block(4, false), d + nibbles},
            {FA_Q4_1, of_block(4, true), d + m + nibbles},
            {FA_Q5_0, of_block(5, false), d + fifths + nibbles},
            {FA_Q5_1, of_block(5, true), d + m + fifths + nibbles},
            {FA_Q8_0, of_block(8, false), d + bytes}};
}

fa_attention_desc_t one_key(int32_t dtype, int64_t rows) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.k_dtype = dtype;
    d.batch = d.heads_q = d.seqlen_k = 1, d.seqlen_q = rows, d.dim_qk = kDims;
    return d;
}

class ByteOrder : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
};

TEST_P(ByteOrder, AppendStoresTheseBytes) {
    FA_USE_ISA(handle, GetParam());
    for (const Stored& s : stored()) {
        const fa_attention_desc_t d = one_key(s.dtype, 1);
        Bytes k(s.bytes.size(), 0xff), v = k;
        fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
        a.k_new = a.v_new = s.values.data(), a.seqlen_new = 1;
        a.k = k.data(), a.v = v.data();
        ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
        EXPECT_EQ(k, s.bytes) << fa_dtype_name(s.dtype);
        EXPECT_EQ(v, s.bytes) << fa_dtype_name(s.dtype);
    }
}

// One key, so that o is v; and row i has dim i of k as its score. Rows together are tiles, one row is decoding.
TEST_P(ByteOrder, ForwardReadsTheseBytes) {
    FA_USE_ISA(handle, GetParam());
    for (const Stored& s : stored())
        for (const int64_t rows : {int64_t(1), int64_t(kDims)})
            for (int first = 0; first < kDims; first += int(rows)) {
                fa_attention_desc_t d = one_key(s.dtype, rows);
                d.flags = FA_SCALE_EXPLICIT, d.scale = 1;
                d.operands = FA_OPERAND_SCORES;
                d.scores_stage = FA_SCORES_RAW, d.scores_stride[2] = 1;
                Values q(size_t(rows * kDims)), o(q.size()), scores(static_cast<size_t>(rows));
                for (int64_t i = 0; i < rows; i++) q[size_t(i * kDims + first + i)] = 1;
                fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
                a.q = q.data(), a.k = a.v = s.bytes.data(), a.o = o.data(), a.scores = scores.data();
                ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
                for (int64_t i = 0; i < rows; i++) EXPECT_EQ(scores[size_t(i)], s.values[size_t(first + i)]) << fa_dtype_name(s.dtype) << i;
                EXPECT_EQ(o, repeated(s.values, o.size())) << fa_dtype_name(s.dtype);
            }
}

// What multiplies the values 1 and 1 of two dims with a factor each, and what is computed for values that need these factors.
TEST_P(ByteOrder, FactorsAreTheseBytes) {
    FA_USE_ISA(handle, GetParam());
    const struct {
        int32_t dtype;
        float factor[2];
        Bytes bytes;
    } kinds[] = {{FA_F32, {.5f, 4}, native<float>({.5f, 4})},
                 {FA_F16, {.5f, 4}, native<uint16_t>({0x3800, 0x4400})},
                 {FA_BF16, {.5f, 4}, native<uint16_t>({0x3f00, 0x4080})},
                 {FA_E4M3, {.5f, 4}, {0x30, 0x48}},
                 {FA_E8M0, {.5f, 4}, {126, 129}}};
    for (const auto& kind : kinds) {
        fa_attention_desc_t d = one_key(FA_E4M3, 1);
        d.dim_qk = 2;
        d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        d.k_descale_dtype = d.v_descale_dtype = kind.dtype;
        d.k_descale_block[1] = d.v_descale_block[1] = 1, d.k_descale_stride[3] = d.v_descale_stride[3] = 1;
        d.k_descale_stride[0] = d.k_descale_stride[1] = d.k_descale_stride[2] = 2;
        d.v_descale_stride[0] = d.v_descale_stride[1] = d.v_descale_stride[2] = 2;
        const Values fresh = {.5f * 448, 4 * 448}, q = {1, 1};
        Bytes k(2), v(2), k_factors(kind.bytes.size()), v_factors(k_factors);
        fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
        append.flags = FA_APPEND_DYNAMIC_SCALE;
        append.k_new = append.v_new = fresh.data(), append.seqlen_new = 1;
        append.k = k.data(), append.v = v.data(), append.k_descale = k_factors.data(), append.v_descale = v_factors.data();
        ASSERT_EQ(fa_append_kv(handle, &d, &append), FA_OK) << handle.error();
        EXPECT_EQ(k_factors, kind.bytes) << fa_dtype_name(kind.dtype);
        EXPECT_EQ(v_factors, kind.bytes) << fa_dtype_name(kind.dtype);

        const Bytes ones = {0x38, 0x38};
        Values o(2);
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = q.data(), a.k = a.v = ones.data(), a.o = o.data(), a.k_descale = a.v_descale = kind.bytes.data();
        ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
        EXPECT_EQ(o, Values(kind.factor, kind.factor + 2)) << fa_dtype_name(kind.dtype);
    }
}

// Key j is bit j & 7 of byte j >> 3.
TEST_P(ByteOrder, MaskBitsAreTheseBytes) {
    FA_USE_ISA(handle, GetParam());
    const Bytes mask = {0x01, 0x80, 0x14, 0x00, 0x42, 0x00, 0x00, 0x20, 0x08};
    const std::vector<int> kept = {0, 15, 18, 20, 33, 38, 61, 67};
    constexpr int kKeys = 70;
    for (const int64_t rows : {1, 40}) {
        fa_attention_desc_t d = one_key(FA_F32, rows);
        d.seqlen_k = kKeys, d.dim_qk = 1;
        d.operands = FA_OPERAND_MASK | FA_OPERAND_SCORES;
        d.mask_dtype = FA_BIT, d.mask_stride[3] = 1;
        d.scores_stage = FA_SCORES_PROBABILITY, d.scores_stride[2] = kKeys, d.scores_stride[3] = 1;
        const Values q(static_cast<size_t>(rows)), k(kKeys), v(kKeys);
        Values o(q.size()), scores(size_t(rows * kKeys)), want(kKeys);
        for (const int j : kept) want[size_t(j)] = .125f;
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = q.data(), a.k = k.data(), a.v = v.data(), a.o = o.data(), a.mask = mask.data(), a.scores = scores.data();
        ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
        EXPECT_EQ(scores, repeated(want, scores.size())) << rows;
    }
}

// Of a machine of the other order as well: what its loads of four bytes give is what this one's give of them turned round.
TEST(ByteOrderOfLoads, LowByteFirst) {
    const unsigned char bytes[] = {0x01, 0x02, 0x83, 0x84}, turned[] = {0x84, 0x83, 0x02, 0x01};
    EXPECT_EQ(fa::cpu::load_le<uint16_t>(bytes), 0x0201u);
    EXPECT_EQ(fa::cpu::load_le<uint32_t>(bytes), 0x84830201u);
    EXPECT_EQ((fa::cpu::load_le<uint16_t, !fa::cpu::kHighByteFirst>(turned + 2)), 0x0201u);
    EXPECT_EQ((fa::cpu::load_le<uint32_t, !fa::cpu::kHighByteFirst>(turned)), 0x84830201u);
}

TEST(ByteOrderOfStructs, ADescriptorOfTheOtherOrderIsRefused) {
    const Handle handle = make_handle();
    fa_attention_desc_t d = one_key(FA_F32, 1);
    d.struct_size = __builtin_bswap32(d.struct_size);
    const float x[kDims] = {};
    float o[kDims];
    EXPECT_EQ(fa_forward(handle, &d, x, x, x, o), FA_INVALID_ARGUMENT);
    EXPECT_EQ(handle.error().find("struct_size of fa_attention_desc_t is "), 0u) << handle.error();
}

constexpr uint64_t kSeed = 0x0123456789abcdef, kOffset = 0xfedcba9876543210;

TEST(ByteOrderOfSeeds, DropoutMask) {
    const auto bits = [](int64_t batch_head, int64_t row, int64_t key) {
        uint8_t keep[32];
        EXPECT_EQ(fa_dropout_mask(.5f, kSeed, kOffset, batch_head, row, 1, key, 32, keep), FA_OK);
        uint32_t word = 0;
        for (int j = 0; j < 32; j++) word |= uint32_t(keep[j]) << j;
        return word;
    };
    EXPECT_EQ(bits((int64_t(1) << 32) + 5, 7, 3), 0xe36e62dfu);
    EXPECT_EQ(bits(0, 0, 0), 0x6bc24ec7u);
}

// P is 1 / 32 everywhere and v the identity, so that o tells which keys were kept.
TEST_P(ByteOrder, SeedsInMemoryDrawTheSame) {
    FA_USE_ISA(handle, GetParam());
    const uint64_t state[2] = {kSeed, kOffset};
    for (const bool in_memory : {false, true})
        for (const int64_t rows : {1, 40}) {
            fa_attention_desc_t d = one_key(FA_F32, rows);
            d.seqlen_k = kDims, d.dropout_p = .5f;
            d.operands = in_memory ? FA_OPERAND_RNG_STATE : 0;
            const Values q(size_t(rows * kDims)), k(kDims * kDims);
            Values v(k.size()), o(q.size());
            for (int j = 0; j < kDims; j++) v[size_t(j * kDims + j)] = 1;
            fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
            a.q = q.data(), a.k = k.data(), a.v = v.data(), a.o = o.data();
            if (in_memory) a.rng_state = state;
            else a.dropout_seed = kSeed, a.dropout_offset = kOffset;
            ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
            for (int j = 0; j < kDims; j++) EXPECT_EQ(o[size_t(j)], 0x6bc24ec7u >> j & 1 ? .0625f : 0.f) << j;
        }
}

INSTANTIATE_TEST_SUITE_P(Isa, ByteOrder, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

}  // namespace
}  // namespace test
