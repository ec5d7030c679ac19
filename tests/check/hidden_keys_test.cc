// Keys that boolean masks or a bias of −inf hide from all rows are not read in decoding, nor in f32 tiles, and whether they are changes no
// bit. What says the same in another form gives the same bits.
#include <sys/mman.h>
#include <unistd.h>
#include "isa.h"
#include "row_sets.h"

namespace test {
namespace {

// Which keys a row sees: (head, row, key).
using SeesKey = std::function<bool(int64_t, int64_t, int64_t)>;
enum class MaskForm { bytes, spaced_bytes, bits, late_bits, f16_bias, bf16_bias, f32_bias, spaced_bias, lists };
constexpr MaskForm kMaskForms[] = {MaskForm::bytes,     MaskForm::spaced_bytes, MaskForm::bits,
                                   MaskForm::late_bits, MaskForm::f16_bias,     MaskForm::bf16_bias,
                                   MaskForm::f32_bias,  MaskForm::spaced_bias,  MaskForm::lists};

// For all heads alike, or with a mask for each head. Of late_bits, all of the first 64 keys are seen.
Case with_hidden_keys(Case test_case, MaskForm form, const SeesKey& sees, bool of_heads) {
    const int64_t keys = test_case.d.seqlen_k, rows = test_case.d.seqlen_q, heads = of_heads ? test_case.d.heads_q : 1;
    const bool bias = form >= MaskForm::f16_bias && form <= MaskForm::spaced_bias,
               spaced = form == MaskForm::spaced_bytes || form == MaskForm::spaced_bias;
    const int64_t step = spaced ? 3 : 1, columns = form == MaskForm::bits || form == MaskForm::late_bits ? (keys + 7) / 8 : keys * step;
    int64_t* const stride = bias ? test_case.d.bias_stride : test_case.d.mask_stride;
    if (form == MaskForm::lists) {
        test_case.d.operands |= FA_OPERAND_FULL_LIST;
        test_case.d.list_rows = 1, test_case.d.list_keys = 1, test_case.d.list_heads = heads, test_case.d.list_max = keys;
        test_case.d.list_stride[3] = 1, test_case.d.list_stride[2] = keys, test_case.d.list_stride[1] = rows * keys,
        test_case.d.list_stride[0] = heads * rows * keys;
    } else {
        test_case.d.operands |= bias ? FA_OPERAND_BIAS : FA_OPERAND_MASK;
        stride[3] = step, stride[2] = columns, stride[1] = of_heads ? rows * columns : 0, stride[0] = heads * rows * columns;
    }
    if (bias) test_case.d.bias_dtype = form == MaskForm::f16_bias ? FA_F16 : form == MaskForm::bf16_bias ? FA_BF16 : FA_F32;
    if (form == MaskForm::bits || form == MaskForm::late_bits) test_case.d.mask_dtype = FA_BIT;
    if (form == MaskForm::late_bits) test_case.d.mask_keys = keys - 64;
    Rng rng(7);
    test_case.bind(rng);
    test_case.fill_normal(rng);
    if (form == MaskForm::lists)
        test_case.set_key_lists([&](int64_t, int64_t h, int64_t i) {
            Case::Lists lists;
            for (int64_t j = 0; j < keys; j++) lists.full.push_back(sees(h, i, j) ? int32_t(j) : -1);
            return lists;
        });
    else if (bias) test_case.set_bias([&](int64_t, int64_t h, int64_t i, int64_t j) { return sees(h, i, j) ? 0 : -kInf; });
    else test_case.set_mask([&](int64_t, int64_t h, int64_t i, int64_t j) { return sees(h, i, j); });
    return test_case;
}

std::vector<unsigned char> bits_of_run(const Handle& handle, Case& test_case) {
    EXPECT_EQ(test_case.run(handle), FA_OK) << handle.error();
    return bytes_of(test_case.o);
}
std::vector<unsigned char> bits_of_head(const Case& test_case, const std::vector<unsigned char>& o, int64_t head, int64_t row) {
    const oracle::Reading r = test_case.reading();
    const int64_t size = oracle::size_of(r.o_dtype);
    const auto at = o.begin() + r.o(0, head, row) * size;
    return {at, at + test_case.d.dim_v * size};
}

struct MaskedCall {
    int32_t q, kv;
    int64_t page_size;
};
class HiddenKeys : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    static Case call(const MaskedCall& kind, int64_t heads_q, int64_t heads_k, int64_t rows, int64_t keys) {
        Case c = shaped({1, heads_q, heads_k, rows, keys, 64, 64}, kind.q);
        c.d.k_dtype = kind.kv, c.d.o_dtype = FA_F32;
        if (kind.page_size > 0) paged(c, kind.page_size);
        return c;
    }
};
constexpr MaskedCall kMaskedCalls[] = {{FA_F32, FA_F32, 0},   {FA_F32, FA_F16, 0},   {FA_F16, FA_F16, 16},
                                       {FA_BF16, FA_BF16, 0}, {FA_BF16, FA_E4M3, 0}, {FA_BF16, FA_I8, 128},
                                       {FA_F32, FA_Q8_0, 0},  {FA_BF16, FA_Q8_0, 0}, {FA_F32, FA_Q4_0, 0}};

// Blocks that are seen, hidden, and seen in part: chunks, single keys, and none at all for one row.
bool sees_scattered(int64_t head, int64_t row, int64_t key) {
    const int64_t block = key / 64;
    if (block == 0) return key != 5;
    if (block % 5 == 4) return key % 64 >= 40 && key % 64 < 48;
    if (block % 3 == 2) return (key * 7 + head * 3 + row) % 11 == 0;
    return block % 5 == 1;
}

// Every form of a mask says the same. With a list alone, log2 e is a factor of q instead of the scores. A GPU's kernel depends on the form,
// and its bits with it.
TEST_P(HiddenKeys, InEveryFormHaveTheSameBits) {
    FA_USE_ISA(handle, GetParam());
    for (const MaskedCall& kind : kMaskedCalls)
        for (const int64_t rows : {1, 3}) {
            const SeesKey sees = [](int64_t, int64_t i, int64_t j) { return j < 64 || sees_scattered(0, i, j); };
            std::vector<unsigned char> first;
            for (const MaskForm form : kMaskForms) {
                Case c = with_hidden_keys(call(kind, 4, 2, rows, 450), form, sees, false);
                const std::vector<unsigned char> o = bits_of_run(handle, c);
                const bool same = testing_the_cpu() && form != MaskForm::lists, checked = first.empty() || !same;
                EXPECT_EQ(checked ? check_against_oracle(c, c.p_dtype) : "", "") << c.describe();
                if (first.empty()) first = o;
                EXPECT_TRUE(o == first || !same) << int(form) << ": " << c.describe();
            }
        }
}

// What other heads or rows see, so that a key is read or is not, does not show.
TEST_P(HiddenKeys, WhetherTheyAreReadChangesNoBit) {
    FA_USE_ISA(handle, GetParam());
    for (const MaskedCall& kind : kMaskedCalls)
        for (const MaskForm form : {MaskForm::bytes, MaskForm::f16_bias}) {
            for (const int64_t group : {1, 4}) {
                Case c = with_hidden_keys(call(kind, 2 * group, 2, 1, 450), form, sees_scattered, true);
                const std::vector<unsigned char> o = bits_of_run(handle, c);
                for (int64_t head = 0; head < 2 * group; head += 5) {
                    const SeesKey all = [&](int64_t h, int64_t i, int64_t j) { return h != head || sees_scattered(h, i, j); };
                    Case read = with_hidden_keys(call(kind, 2 * group, 2, 1, 450), form, all, true);
                    const std::vector<unsigned char> wide = bits_of_run(handle, read);
                    EXPECT_TRUE(bits_of_head(c, o, head, 0) == bits_of_head(read, wide, head, 0)) << c.describe();
                }
            }
            const SeesKey own = [](int64_t, int64_t i, int64_t j) { return j / 56 == i; };
            Case c = with_hidden_keys(call(kind, 4, 1, 8, 450), form, own, false);
            const std::vector<unsigned char> o = bits_of_run(handle, c);
            Case read = with_hidden_keys(
                call(kind, 4, 1, 8, 450), form, [&](int64_t h, int64_t i, int64_t j) { return i != 3 || own(h, i, j); }, false);
            const std::vector<unsigned char> wide = bits_of_run(handle, read);
            for (int64_t head = 0; head < 4; head++)
                EXPECT_TRUE(bits_of_head(c, o, head, 3) == bits_of_head(read, wide, head, 3)) << c.describe();
        }
}

// Pages of k and v that no row sees are taken from the process.
TEST_P(HiddenKeys, AreNotRead) {
    if (!testing_the_cpu()) GTEST_SKIP() << "where the memory is another";
    FA_USE_ISA(handle, GetParam());
    const int64_t page = sysconf(_SC_PAGESIZE);
    constexpr int64_t kKeys = 32 * 64, kFirst = 512, kEnd = 1536;
    const SeesKey sees = [](int64_t, int64_t i, int64_t j) { return (j < kFirst || j >= kEnd) && (i < 8 || j % 3 > 0); };
    const auto protect = [&](const Buffer& rows, int protection) {
        const int64_t bytes = rows.bytes() / kKeys, at = int64_t(reinterpret_cast<uintptr_t>(rows.as()));
        const int64_t begin = (at + kFirst * bytes + page - 1) / page * page, end = (at + kEnd * bytes) / page * page;
        ASSERT_LT(begin, end);
        ASSERT_EQ(mprotect(reinterpret_cast<void*>(begin), size_t(end - begin), protection), 0);
    };
    for (const MaskedCall& kind : kMaskedCalls)
        for (const MaskForm form : {MaskForm::bytes, MaskForm::bits, MaskForm::f16_bias, MaskForm::spaced_bias, MaskForm::lists})
            for (const int64_t rows : {1, 8, 40}) {
                if (rows > 1 && (kind.q == FA_BF16 || kind.kv != kind.q || form == MaskForm::lists))
                    continue;                      // matrix units pack whole heads
                if (kind.page_size > 0) continue;  // these lie in another order
                Case c = with_hidden_keys(call(kind, 2, 1, rows, kKeys), form, sees, false);
                c.d.num_splits = 1;
                const std::vector<unsigned char> o = bits_of_run(handle, c);
                protect(c.k, PROT_NONE), protect(c.v, PROT_NONE);
                EXPECT_EQ(fa_forward_ex(handle, &c.d, &c.a), FA_OK) << handle.error();
                protect(c.k, PROT_READ | PROT_WRITE), protect(c.v, PROT_READ | PROT_WRITE);
                EXPECT_TRUE(bytes_of(c.o) == o) << c.describe();
            }
}

// A row that masks leave few keys, among rows that see all, beside softcap, sinks, ALiBi, a causal mask and a window, in several splits.
TEST_P(HiddenKeys, BesideOtherMods) {
    FA_USE_ISA(handle, GetParam());
    for (const int64_t rows : {1, 2, 7, 12})
        for (const MaskForm form : {MaskForm::bits, MaskForm::late_bits, MaskForm::f16_bias, MaskForm::spaced_bias})
            for (int option = 0; option < 5; option++) {
                Case c = shaped({1, 4, 2, rows, 400, 64, 32}, FA_F32);
                c.d.k_dtype = c.d.v_dtype = FA_F16, c.d.num_splits = rows % 3;
                if (option == 0) c.d.softcap = 4;
                if (option == 1) c.d.operands |= FA_OPERAND_SINKS;
                if (option == 2) c.d.operands |= FA_OPERAND_ALIBI, c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
                if (option == 3) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (option == 4) window(c, 200, 20, FA_ALIGN_BOTTOM_RIGHT);
                c = with_hidden_keys(
                    std::move(c), form, [&](int64_t, int64_t i, int64_t j) { return j < 64 || (i % 2 == 1 || sees_scattered(0, i, j)); },
                    false);
                ASSERT_EQ(run_and_check(handle, c), "");
            }
}

// Products of tiles that a mask hides are not even counted.
TEST(HiddenKeysCost, UnseenTilesCostNothing) {
    if (!testing_the_cpu()) GTEST_SKIP() << "the CPU backend counts";
    const Handle handle = make_handle();
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 1));
    for (const MaskForm form : {MaskForm::bytes, MaskForm::bits, MaskForm::f16_bias, MaskForm::spaced_bias})
        for (const int64_t rows : {1, 64}) {
            Case c = shaped({1, 1, 1, rows, 4096, 16, 16});
            c.d.num_splits = 1;
            c = with_hidden_keys(std::move(c), form, [](int64_t, int64_t, int64_t j) { return j / 512 == 3; }, false);
            ASSERT_EQ(run_and_check(handle, c), "");
            EXPECT_EQ(handle.get(FA_STAT_FLOPS), rows * 512 * 2 * 32);
        }
}

INSTANTIATE_TEST_SUITE_P(Isas, HiddenKeys, testing::ValuesIn(usable_isas()),
                         [](const testing::TestParamInfo<int32_t>& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace test
