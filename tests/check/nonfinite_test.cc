// NaN and infinity anywhere in a call's inputs, factors and shifts among them: which rows and columns of the outputs show it is the same on
// every instruction set, for any number of rows, and what the header says.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include "check/isa.h"
#include "check/random_seeds.h"
#include "oracle/row.h"
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

// Element `index` of a tensor's row, a factor, or the first word, or second, of a block.
struct Place {
    const Buffer* buffer = nullptr;
    int64_t index = 0;
    int32_t dtype = 0;
    const char* what = "";
    int word = 0;
    bool is_scale = false;  // or a shift: a GPU may take an infinite one for NaN

    void put(double value) const {
        if (dtype == FA_E5M2 && std::isinf(value)) {  // which no call stores
            buffer->as<unsigned char>()[index] = value > 0 ? 0x7c : 0xfc;
            return;
        }
        if (!oracle::is_block(dtype)) return oracle::store(buffer->as(), index, dtype, value);
        oracle::store_block_word(buffer->as<char>() + index * oracle::size_of(dtype), word, value);
    }
    bool holds(double value) const {  // does the type have it?
        if (oracle::is_block(dtype)) return true;
        const bool integers = dtype == FA_I8 || oracle::is_nibble(dtype), none_infinite = dtype == FA_E4M3 || dtype == FA_E8M0;
        return !integers && !(std::isinf(value) && none_infinite);
    }
};

// The element of a row of `own` dims that begins at `row`.
Place in_row(Rng& rng, const Buffer& buffer, const char* what, int64_t row, int64_t own, int32_t dtype) {
    const int64_t dim = rng.between(0, own - 1);
    const bool has_min = dtype == FA_Q4_1 || dtype == FA_Q5_1;
    if (oracle::is_block(dtype)) return {&buffer, row + dim / 32, dtype, what, int(rng.between(0, has_min))};
    return {&buffer, row + dim, dtype, what};
}

// Some input of a call that has rows and keys. No buffer: this call lacks the operand.
Place random_place(Rng& rng, const Case& test_case) {
    const oracle::Reading r = test_case.reading();
    if (r.d.batch == 0 || r.d.heads_q == 0) return {};
    const int64_t b = rng.between(0, r.d.batch - 1), h = rng.between(0, r.d.heads_q - 1), rows = r.rows(b), keys = r.keys(b);
    if (rows <= 0 || keys <= 0) return {};
    const int64_t i = rng.between(0, rows - 1), j = rng.between(0, keys - 1), k_head = r.k_head(h), v_head = r.v_head(h);
    const int64_t k_dim = rng.between(0, r.own_k - 1), v_dim = rng.between(0, r.dim_v - 1);
    switch (rng.between(0, 9)) {
        case 0: return in_row(rng, test_case.q, "q", r.q(b, h, i), r.own_q, r.q_dtype);
        case 1: return in_row(rng, test_case.k, "k", r.k(b, k_head, j), r.own_k, r.k_dtype);
        case 2: return r.v_in_k() ? Place{} : in_row(rng, test_case.v, "v", r.v(b, v_head, j), r.dim_v, r.v_dtype);
        case 3:
            return r.has(FA_OPERAND_K_TAIL) ? in_row(rng, test_case.k_tail, "k_tail", r.k_tail(b, k_head, j), r.d.dim_tail, r.k_tail_dtype)
                                            : Place{};
        case 4:
            return r.has(FA_OPERAND_Q_DESCALE) ? Place{&test_case.q_descale, r.q_descale(b, h, i), r.q_factors.dtype, "q_descale", 0, true}
                                               : Place{};
        case 5:
            return r.has(FA_OPERAND_K_DESCALE)
                       ? Place{&test_case.k_descale, r.k_descale(b, k_head, j, k_dim), r.k_factors.dtype, "k_descale", 0, true}
                       : Place{};
        case 6:
            return r.has(FA_OPERAND_V_DESCALE)
                       ? Place{&test_case.v_descale, r.v_descale(b, v_head, j, v_dim), r.v_factors.dtype, "v_descale", 0, true}
                       : Place{};
        case 7:
            return r.has(FA_OPERAND_K_SHIFT)
                       ? Place{&test_case.k_shift, r.k_descale(b, k_head, j, k_dim), r.k_factors.dtype, "k_shift", 0, true}
                       : Place{};
        case 8:
            return r.has(FA_OPERAND_V_SHIFT)
                       ? Place{&test_case.v_shift, r.v_descale(b, v_head, j, v_dim), r.v_factors.dtype, "v_shift", 0, true}
                       : Place{};
        default:
            return r.has(FA_OPERAND_Q_TAIL) ? in_row(rng, test_case.q_tail, "q_tail", r.q_tail(b, h, i), r.d.dim_tail, r.q_tail_dtype)
                                            : Place{};
    }
}

// The header's rules, row by row; what is finite may be of any value here.
class Rules {
  public:
    explicit Rules(const Case& test_case) : r(test_case.reading()), lse(test_case.lse.as<float>()) {}

    std::string check() {
        oracle::each_head(r, [&](int64_t b, int64_t h, const oracle::Cache& cache) {
            for (int64_t i = 0; i < r.rows(b) && fault.empty(); i++) row(oracle::load_row(r, b, h, i, cache), cache);
        });
        return fault;
    }

  private:
    const oracle::Reading r;
    const float* lse;
    std::string fault;

    void row(const oracle::Row& row, const oracle::Cache& cache) {
        const bool none = std::isnan(row.lse);
        if (r.has(FA_OPERAND_LSE)) expect("LSE", row, 0, std::isnan(lse[r.lse(row.b, row.h, row.i)]) == none, none);
        for (int64_t c = 0; c < r.dim_v && fault.empty(); c++) {
            const double o = oracle::load(r.a.o, r.o(row.b, row.h, row.i) + c, r.o_dtype);
            bool attended = false, near = false;
            for (size_t j = 0; j < cache.v.size(); j++) {
                if (std::isfinite(cache.v[j][size_t(c)])) continue;
                near = true;
                attended |= row.scores[j].attended && row.weight(row.scores[j].biased) > 0x1p-100;
            }
            // (Types of 8 bits have no infinity; dropout may have removed it.)
            const bool shows = oracle::size_of(r.o_dtype) > 1 && r.d.dropout_p == 0;
            if (none) expect("o", row, c, std::isnan(o), true);
            else if (!near) expect("o", row, c, std::isfinite(o), false);
            else if (attended && shows) expect("o", row, c, !std::isfinite(o), true);
        }
    }
    void expect(const char* what, const oracle::Row& row, int64_t c, bool right, bool shows) {
        if (right || !fault.empty()) return;
        char text[200];
        std::snprintf(text, sizeof text, "%s of sequence %lld, head %lld, row %lld, column %lld %s", what, (long long)row.b,
                      (long long)row.h, (long long)row.i, (long long)c, shows ? "does not show it" : "is spoilt");
        fault = text;
    }
};

std::string run_forward_rules(const Handle& handle, uint64_t seed) {
    for (const int32_t isa : usable_isas()) {
        Case c = random_case(seed);
        Rng rng(derive(seed, 3));
        const Place place = random_place(rng, c);
        const double value = rng.pick<double>({kInf, -kInf, double(NAN)});
        if (!place.buffer || !place.holds(value)) return "";
        place.put(value);
        if (isa != 0 && !handle.set(FA_PARAM_MAX_ISA, isa)) return handle.error();
        if (c.run(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
        char text[300];
        std::snprintf(text, sizeof text, " [%s, %g in %s]\n", isa_name(isa), value, place.what);
        if (c.rounded_to_bytes && place.buffer == &c.q) place.put(NAN);  // an infinite q has no block of 8 bits
        std::string fault = Rules(c).check();
        if (!fault.empty() && !testing_the_cpu() && place.is_scale) {
            place.put(NAN);
            fault = Rules(c).check();
        }
        if (!fault.empty()) return fault + text + c.describe();
    }
    return "";
}

// Gradients: what takes part in a sum shows in it, unless its p is 0 in f32; what does not may do so within its own sequence and kv head
// alone.
class GradientRules {
  public:
    explicit GradientRules(const BackwardCase& backward) : r(backward.reading()), want(oracle::backward(r, r.upstream())) {}

    std::string check() {
        find_faint();
        std::vector<bool> of_head(size_t(r.heads_k));  // is there something near, in any sequence?
        for (int64_t s = 0; s < r.d.batch; s++)
            for (int64_t kv_head = 0; kv_head < r.heads_k; kv_head++) {
                const bool near = is_near(s, kv_head);
                if (near) of_head[size_t(kv_head)] = true;
                check_keys(s, kv_head, near);
                for (int64_t h = 0; h < r.d.heads_q; h++)
                    for (int64_t i = 0; r.k_head(h) == kv_head && i < r.rows(s); i++) check_row(s, h, i, near);
            }
        for (int64_t h = 0; h < r.d.heads_q && r.g.dsinks; h++)
            expect("dsinks", {0, h, 0, 0}, r.g.dsinks[h], want.sink.value[size_t(h)], of_head[size_t(r.k_head(h))], any_faint());
        for (const auto& [at, sum] : biases) expect("dbias", {0, 0, 0, at}, r.g.dbias[at], sum.value, sum.near, any_faint());
        return fault;
    }

  private:
    struct Sum {
        double value = 0;
        bool near = false;
    };
    const oracle::BackwardReading r;
    const oracle::Gradients want;
    std::map<int64_t, Sum> biases;  // by where they lie
    std::vector<bool> faint;        // of each sequence and kv head: may a p be 0 in f32?
    std::string fault;

    bool is_near(int64_t s, int64_t kv_head) const {
        bool near = false;
        const auto look = [&](const void* base, int64_t at, int64_t dims, int32_t dtype) {
            for (int64_t c = 0; c < dims; c++) near |= !std::isfinite(oracle::load(base, at + c, dtype));
        };
        for (int64_t j = 0; j < r.keys(s); j++)
            look(r.a.k, r.k(s, kv_head, j), r.d.dim_qk, r.k_dtype), look(r.a.v, r.v(s, kv_head, j), r.dim_v, r.v_dtype);
        for (int64_t h = 0; h < r.d.heads_q; h++)
            for (int64_t i = 0; r.k_head(h) == kv_head && i < r.rows(s); i++)
                look(r.a.q, r.q(s, h, i), r.d.dim_qk, r.q_dtype), look(r.g.dout, r.dout(s, h, i), r.dim_v, r.q_dtype);
        return near;
    }
    void find_faint() {
        faint.resize(size_t(r.d.batch * r.heads_k));
        oracle::each_head(r, [&](int64_t s, int64_t h, const oracle::Cache& cache) {
            const size_t of = size_t(s * r.heads_k + r.k_head(h));
            for (int64_t i = 0; i < r.rows(s) && !faint[of]; i++) {
                const oracle::Row row = oracle::load_row(r, s, h, i, cache);
                if (r.has(FA_OPERAND_SINKS) && row.weight(row.sink) < 0x1p-100) faint[of] = true;
                for (const oracle::Score& score : row.scores)
                    if (score.attended && row.weight(score.biased) < 0x1p-100) faint[of] = true;
            }
        });
    }
    void check_row(int64_t s, int64_t h, int64_t i, bool near) {
        const int64_t row = want.row(s, h, i);
        for (int64_t c = 0; c < r.d.dim_qk && r.g.dq; c++)
            expect("dq", {s, h, i, c}, oracle::load(r.g.dq, r.dq(s, h, i) + c, r.dq_dtype()), want.q.value[size_t(row * r.d.dim_qk + c)],
                   near, is_faint(s, r.k_head(h)));
        for (int64_t j = 0; j < r.keys(s) && r.g.dbias; j++) {
            Sum& sum = biases[r.dbias(s, h, i, j)];
            sum.value += want.bias.value[size_t(row * want.keys + j)];
            sum.near |= near;
        }
    }
    void check_keys(int64_t s, int64_t kv_head, bool near) {
        for (int64_t j = 0; j < r.keys(s); j++) {
            const int64_t key = want.key(s, kv_head, j), slot = r.leftpad(s) + j;
            for (int64_t c = 0; c < r.d.dim_qk && r.g.dk; c++)
                expect("dk", {s, kv_head, j, c}, oracle::load(r.g.dk, r.dk(s, kv_head, slot) + c, r.dkv_dtype()),
                       want.k.value[size_t(key * r.d.dim_qk + c)], near, is_faint(s, kv_head));
            for (int64_t c = 0; c < r.dim_v && r.g.dv; c++)
                expect("dv", {s, kv_head, j, c}, oracle::load(r.g.dv, r.dv(s, kv_head, slot) + c, r.dkv_dtype()),
                       want.v.value[size_t(key * r.dim_v + c)], near, is_faint(s, kv_head));
        }
    }
    bool is_faint(int64_t s, int64_t kv_head) const { return faint[size_t(s * r.heads_k + kv_head)]; }
    bool any_faint() const { return std::find(faint.begin(), faint.end(), true) != faint.end(); }
    void expect(const char* what, const std::array<int64_t, 4>& at, double got, double value, bool near, bool may_be_0) {
        if (!fault.empty() || std::isfinite(got) == std::isfinite(value) || (std::isfinite(value) ? near : may_be_0)) return;
        char text[200];
        std::snprintf(text, sizeof text, "%s of sequence %lld, head %lld, row or key %lld, element %lld is %g, expected %g", what,
                      (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3], got, value);
        fault = text;
    }
};

std::string run_backward_rules(const Handle& handle, uint64_t seed) {
    for (const int32_t isa : usable_isas()) {
        BackwardCase b(random_differentiable_case(seed));
        Rng rng(derive(seed, 3));
        const bool in_dout = rng.chance(0.25);
        Place place = random_place(rng, b.c);
        const double value = rng.pick<double>({kInf, -kInf, double(NAN)});
        if (!in_dout && !place.buffer) return "";
        if (!in_dout) place.put(value);
        if (isa != 0 && !handle.set(FA_PARAM_MAX_ISA, isa)) return handle.error();
        if (b.run_forward(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
        choose_gradients(rng, b);
        b.bind(rng);
        b.fill_normal(rng);
        if (in_dout) {
            const oracle::BackwardReading r = b.reading();
            if (r.d.batch == 0 || r.rows(0) <= 0) return "";
            place = {&b.dout, r.dout(0, rng.between(0, r.d.heads_q - 1), rng.between(0, r.rows(0) - 1)) + rng.between(0, r.dim_v - 1),
                     r.q_dtype, "dout"};
            place.put(value);
        }
        if (b.run(handle) != FA_OK) return "fa_backward: " + handle.error();
        char text[300];
        std::snprintf(text, sizeof text, " [%s, %g in %s]\n", isa_name(isa), value, place.what);
        const std::string fault = GradientRules(b).check();
        if (!fault.empty()) return fault + text + b.describe();
    }
    return "";
}

class NonFinite : public testing::TestWithParam<int> {};

TEST_P(NonFinite, GradientsShowItWhereTheRulesSay) {
    run_shard(GetParam(), 150, run_backward_rules, [](uint64_t) { return ""; });
}

TEST_P(NonFinite, ForwardShowsItWhereTheRulesSay) {
    run_shard(GetParam(), 250, run_forward_rules, [](uint64_t) { return ""; });
}
INSTANTIATE_TEST_SUITE_P(Shard, NonFinite, testing::Range(0, 2));

// NaN of the sequence with fewer rows and keys does not show in dbias where only the other sequence has a row and key.
TEST(NonFinite, OfOneSequenceNotInABroadcastBias) {
    const Handle handle = make_handle();
    Rng rng(359);
    for (const bool in_q : {true, false}) {
        BackwardCase b(shaped({2, 2, 1, 20, 24, 16, 16}));
        b.c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
        b.c.d.total_q = 25, b.c.d.total_k = 33;
        b.c.metadata.cu_seqlens_q = {0, 5, 25}, b.c.metadata.cu_seqlens_k = {0, 9, 33};
        b.c.d.bias_stride[2] = 24, b.c.d.bias_stride[3] = 1;
        b.c.bind(rng);
        b.c.fill_normal(rng);
        b.c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
        const oracle::Reading r = b.c.reading();
        oracle::store(in_q ? b.c.q.as() : b.c.k.as(), in_q ? r.q(0, 1, 2) : r.k(0, 0, 4), FA_F32, NAN);
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        b.bind(rng);
        b.fill_normal(rng);
        ASSERT_EQ(b.run(handle), FA_OK) << handle.error();
        EXPECT_EQ(GradientRules(b).check(), "") << (in_q ? "q" : "k");
    }
}

// A block of k whose products with q all have one sign: infinite factors would make its score −∞, and the key would be removed.
class NonFiniteFactors : public testing::TestWithParam<std::tuple<int32_t, int32_t>> {
  protected:
    const Handle handle = make_handle();
    const int32_t type = std::get<1>(GetParam());
    Rng rng{derive(353, uint64_t(type))};
    void SetUp() override { FA_USE_ISA(handle, std::get<0>(GetParam())); }

    static constexpr int64_t kKeys = 70, kOdd = 37, kDim = 64;  // two blocks
    Case make(int32_t q, int64_t rows, float softcap) {
        Case c = shaped({1, 1, 1, rows, kKeys, kDim, 32}, q);
        c.d.k_dtype = type, c.d.o_dtype = FA_F32, c.d.softcap = softcap;
        return c;
    }
    // Of positive q; keys are the same throughout a block.
    void fill(Case& test_case, int word, double odd) {
        test_case.fill_normal(rng);
        test_case.set_q([&](auto...) { return rng.uniform(0.1, 1); });
        unsigned char* const block = test_case.k.as<unsigned char>() + (test_case.reading().k(0, 0, kOdd) + 1) * oracle::size_of(type);
        const int factors = has_min() ? 4 : 2;
        memset(block + factors, type == FA_Q8_0 ? 0xf1 : 0x11, size_t(oracle::size_of(type) - factors));
        if (type == FA_Q5_0 || type == FA_Q5_1) memset(block + factors, 0, 4);  // bits 4
        if (has_min()) oracle::store_block_word(block, 1, 0.5);
        oracle::store_block_word(block, word, odd);
    }
    bool has_min() const { return type == FA_Q4_1 || type == FA_Q5_1; }
};

TEST_P(NonFiniteFactors, OfBlocksShowForAnyNumberOfRows) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64})
        for (const int32_t q : {FA_F32, FA_BF16})
            for (const int word : {0, 1}) {
                if (word == 1 && !has_min()) continue;
                const double odd = rng.pick<double>({kInf, -kInf, double(NAN)});
                Case c = make(q, rows, rng.chance(0.5) ? 0 : 3);
                c.d.precision = rng.pick<int32_t>({FA_PRECISION_DEFAULT, FA_PRECISION_NATIVE});
                c.bind(rng);
                fill(c, word, odd);
                ASSERT_EQ(run_and_check(handle, c), "") << odd;
                for (int64_t i = 0; i < rows; i++) ASSERT_TRUE(std::isnan(c.a.lse[i])) << odd << c.describe();
            }
}

// That of a key which no row sees does not.
TEST_P(NonFiniteFactors, OfRemovedKeysDoNotShow) {
    for (const int64_t rows : {1, 7, 40})
        for (const int32_t q : {FA_F32, FA_BF16}) {
            Case c = make(q, rows, 0);
            c.d.operands |= FA_OPERAND_MASK;
            dense_pairs(c.d, c.d.mask_stride);
            c.d.precision = rng.pick<int32_t>({FA_PRECISION_DEFAULT, FA_PRECISION_NATIVE});
            c.bind(rng);
            fill(c, 0, rng.pick<double>({kInf, -kInf, double(NAN)}));
            c.set_mask([](int64_t, int64_t, int64_t, int64_t j) { return j != kOdd; });
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

INSTANTIATE_TEST_SUITE_P(Types, NonFiniteFactors,
                         testing::Combine(testing::ValuesIn(usable_isas()),
                                          testing::Values<int32_t>(FA_Q4_0, FA_Q4_1, FA_Q5_0, FA_Q5_1, FA_Q8_0)),
                         [](const auto& info) {
                             return std::string(isa_name(std::get<0>(info.param))) + "_" + oracle::name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace test
