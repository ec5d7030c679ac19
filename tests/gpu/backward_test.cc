// Every listed backward kernel: found through fa_explain, compared with the oracle, both free and with the same bits every time, and asked
// for these a thousand times. Small enough for the compute sanitizer.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include "gpu/gpu.h"
#include "gpu/simt/kernel_rows.h"
#include "support/random_case.h"

namespace test::gpu {
namespace {

class EveryBackwardKernel : public Gpu {};

// Names as fa_explain has them, with the type where a kernel is compiled for each, and "same bits" where these were asked for.
std::set<std::string> listed_kernels() {
    std::set<std::string> names;
    const auto add = [&](const std::string& name) {
        for (const char* bits : {"", ", same bits"}) names.insert(name + bits);
    };
    const int widest = std::end(fa::gpu::kSimtBackwardRows)[-1].columns;  // heads that a narrower one spans have matrix kernels
    add("bwd_simt_" + std::to_string(widest));
    for (const char* dtype : {" f16", " bf16", " f32"}) {
        for (const char* columns : {"64", "128"})
            add(std::string("bwd_mma_") + columns + dtype), add(std::string("bwd_mma_plain_") + columns + dtype);
        if (std::string(dtype) == " f32") continue;
        add(std::string("bwd_mma_plain_256") + dtype);
        for (const char* columns : {"256", "512"}) add(std::string("bwd_mma_") + columns + dtype);
    }
    for (const char* dtype : {" f16", " bf16"}) {
        if (!has_hopper_kernels()) continue;
        for (const char* columns : {"64", "128", "256", "64_bias", "128_bias"}) add(std::string("bwd_sm90_") + columns + dtype);
        for (const char* columns : {"64", "128"})
            names.insert(std::string("bwd_sm90_") + columns + "_plain" + dtype);  // adds dq in any order
    }
    return names;
}

// The kernel that a backward launches; "": none does.
std::string kernel_of(const Handle& handle, const fa_attention_desc_t& desc) {
    char text[512];
    if (fa_explain(handle, &desc, FA_OP_BACKWARD, text, sizeof text) != FA_OK) return "";
    const std::string words = text;
    const size_t begin = words.find("kernel ") + 7;
    std::string name = words.substr(begin, words.find(' ', begin) - begin);
    if (name.rfind("bwd_simt", 0) != 0) name += desc.q_dtype == FA_F32 ? " f32" : desc.q_dtype == FA_F16 ? " f16" : " bf16";
    return desc.flags & FA_DETERMINISTIC ? name + ", same bits" : name;
}

// A bias of q's type, of each sequence and head, whose rows begin at multiples of 16 bytes.
void add_bias(Case& test_case) {
    test_case.d.operands |= FA_OPERAND_BIAS;
    test_case.d.bias_dtype = test_case.d.q_dtype;
    dense_pairs(test_case.d, test_case.d.bias_stride);
    test_case.d.bias_stride[2] = (test_case.d.seqlen_k + 7) / 8 * 8;
    test_case.d.bias_stride[1] = test_case.d.seqlen_q * test_case.d.bias_stride[2],
    test_case.d.bias_stride[0] = test_case.d.heads_q * test_case.d.bias_stride[1];
}

// Plain calls: one for each kernel that they lead to, dense and causal ones, long and short ones, of one length and of several.
std::vector<Case> plain_cases(const Handle& handle) {
    struct Size {
        int64_t batch, heads, rows, keys;
    };
    std::vector<Case> cases;
    std::set<std::pair<std::string, bool>> known;
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_F32})
        for (const auto& [dim_qk, dim_v] :
             {std::pair{64, 64}, {56, 40}, {128, 128}, {192, 128}, {256, 256}, {300, 300}, {512, 512}, {600, 600}})
            for (const Size& size : {Size{1, 2, 70, 90}, {2, 4, 200, 330}, {1, 1, 130, 4200}})
                for (int form = 0; form < 64; form++) {
                    const bool masked = form & 1, ragged = form & 2, same_bits = form & 4, capped = form & 8, biased = form & 16,
                               negated = form & 32;
                    Case c =
                        shaped({size.batch, size.heads, std::max<int64_t>(size.heads / 2, 1), size.rows, size.keys, dim_qk, dim_v}, dtype);
                    if (masked) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (same_bits) c.d.flags |= FA_DETERMINISTIC;
                    if (capped) c.d.softcap = 20;
                    if (negated) c.d.scale = -1 / std::sqrt(float(dim_qk));  // which Hopper's own kernels leave to others
                    if (biased) add_bias(c);
                    if (ragged) {
                        c.d.operands |= FA_OPERAND_SEQUSED_K | FA_OPERAND_SEQUSED_Q;
                        for (int64_t b = 0; b < size.batch; b++) {
                            c.metadata.seqused_q.push_back(int32_t(size.rows - 30 * b - 1));
                            c.metadata.seqused_k.push_back(int32_t(size.keys - 60 * b - 1));
                        }
                    }
                    const std::string name = kernel_of(handle, c.d);
                    if (!name.empty() && known.insert({name, masked}).second) cases.push_back(std::move(c));
                }
    return cases;
}

void fill(Case& test_case, Rng& rng, bool removes_keys = false) {
    test_case.fill_normal(rng);
    if (test_case.d.operands & FA_OPERAND_BIAS)
        test_case.set_bias([&](int64_t, int64_t, int64_t row, int64_t) {
            return removes_keys && (row % 50 == 7 || rng.chance(0.2)) ? -kInf : 2 * rng.normal();
        });
    for (int64_t h = 0; h < test_case.d.heads_q && test_case.d.operands & FA_OPERAND_SINKS; h++)
        test_case.sinks.as<float>()[h] = float(rng.normal());
}

constexpr int kCasesOfAKernel = 8;

std::string run_on_device(const Handle& handle, BackwardCase& backward) {
    backward.reset_outputs();
    MovedBackward moved_args(backward);
    moved_args.upload();
    if (fa_backward(handle, &backward.c.d, &moved_args.device) != FA_OK) return handle.error();
    cuda(cudaDeviceSynchronize());
    moved_args.fetch();
    return backward.check(gpu_products(backward));
}

// Random calls, until each kernel has some, and plain ones.
TEST_F(EveryBackwardKernel, AgreesWithTheOracle) {
    const Handle handle = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    std::map<std::string, int> met;
    for (const std::string& name : listed_kernels()) met[name] = 0;
    for (uint64_t n = 0; n < 400; n++) {
        BackwardCase b(random_differentiable_case(derive(251, n)));
        Rng rng(derive(252, n));
        if (++met[kernel_of(handle, b.c.d)] > most_cases(kCasesOfAKernel)) continue;
        ASSERT_EQ(b.run_forward(forward), FA_OK) << forward.error();
        choose_gradients(rng, b);
        b.bind(rng);
        b.fill_normal(rng);
        ASSERT_EQ(run_on_device(handle, b), "") << b.describe();
    }
    Rng rng(253);
    for (Case& c : plain_cases(handle)) {
        met[kernel_of(handle, c.d)]++;
        c.bind(rng);
        fill(c, rng);
        BackwardCase b = differentiable(forward, std::move(c), rng, rng.chance(0.5));
        ASSERT_EQ(run_on_device(handle, b), "") << b.describe();
    }
    for (const auto& [name, count] : met) {
        printf("%-24s %d calls\n", name.c_str(), count);
        EXPECT_TRUE(count > 0 || has_less_shared_memory()) << name << " was never chosen";
    }
}

// Scores, values and upstream gradients at their worst, as BackwardHostile has them, for kernels that want many rows and keys; and what
// leaves f16's range when it is multiplied.
class BackwardAtItsWorst : public Gpu, public testing::WithParamInterface<std::pair<int32_t, int64_t>> {};

TEST_P(BackwardAtItsWorst, ElementByElement) {
    const Handle handle = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    const auto [dtype, dim] = GetParam();
    for (int how = 0; how < 11; how++) {
        Rng rng(derive(257, uint64_t(how)));
        Case c = shaped({1, 2, 1, 200, 330, dim, dim}, dtype);
        if (how % 2) causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        const auto normal = [&](double size) { return [&rng, size](int64_t, int64_t, int64_t, int64_t) { return size * rng.normal(); }; };
        if (how == 0) c.set_q(normal(30)), c.set_k(normal(30));
        if (how == 1) c.set_k([](int64_t, int64_t, int64_t, int64_t) { return 1.0; });
        if (how == 2) c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return j == 77 ? 60.0 : rng.normal(); });
        if (how == 3) c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return 0.05 * double(j); });
        if (how == 4) c.set_v([&](int64_t, int64_t, int64_t, int64_t) { return (rng.chance(0.5) ? 1 : -1) * 200.0; });
        if (how == 5) c.set_v(normal(1e-6));
        if (how == 6) c.set_v(normal(3000));
        BackwardCase b(std::move(c));
        ASSERT_EQ(b.run_forward(forward), FA_OK) << forward.error();
        b.gives_dlse = how == 10;
        b.bind(rng);
        b.fill_normal(rng, how == 7 ? 1e-6 : how == 8 ? 1000 : 1);
        if (how == 9) b.set_dout([&](int64_t, int64_t, int64_t i, int64_t) { return std::ldexp(rng.normal(), int(i % 11) - 8); });
        if (how == 10) b.set_dlse([&](int64_t, int64_t, int64_t) { return 1e4 * rng.normal(); });
        EXPECT_EQ(run_on_device(handle, b), "") << how << "\n" << b.describe();
    }
}
INSTANTIATE_TEST_SUITE_P(EveryBackwardKernel, BackwardAtItsWorst,
                         testing::Values(std::pair(FA_F16, 64), std::pair(FA_F16, 128), std::pair(FA_F16, 256), std::pair(FA_F16, 512),
                                         std::pair(FA_BF16, 64), std::pair(FA_BF16, 128), std::pair(FA_BF16, 256), std::pair(FA_BF16, 512)),
                         [](const auto& info) {
                             return (info.param.first == FA_F16 ? "F16_" : "Bf16_") + std::to_string(info.param.second);
                         });

// Calls with a bias: those that Hopper's kernels read as they are, or as a copy; broadcast, repeated and with factors; with keys, and all
// keys of a row, that it removes; of one length, of several and packed, with sinks, and with dbias, which needs the LSE of other kernels.
class WithBias : public Gpu, public testing::WithParamInterface<std::pair<int32_t, int64_t>> {};

enum BiasForm {
    dense,
    of_a_sequence,
    of_a_head,
    one_row,
    odd_rows,
    one_key,
    removing,
    with_factors,
    repeated,
    ragged,
    packed,
    with_sinks,
    bias_forms
};

Case biased_case(BiasForm form, int32_t dtype, int64_t dim) {
    Case c = shaped({2, 4, 2, 200, 330, dim, dim}, dtype);
    fa_attention_desc_t& d = c.d;
    add_bias(c);
    if (form % 3 == 1 && form != packed) causal(c, form % 2 ? FA_ALIGN_TOP_LEFT : FA_ALIGN_BOTTOM_RIGHT);
    if (form == of_a_sequence) d.bias_stride[1] = 0, d.bias_stride[0] = 200 * 336;
    if (form == of_a_head) d.bias_stride[0] = 0;
    if (form == one_row) d.bias_stride[2] = 0, d.bias_stride[1] = 330, d.bias_stride[0] = 4 * 330;
    if (form == odd_rows) dense_pairs(d, d.bias_stride);
    if (form == one_key) d.bias_stride[3] = 0, d.bias_stride[2] = 1, d.bias_stride[1] = 200, d.bias_stride[0] = 800;
    if (form == removing || form == packed) d.flags |= FA_DETERMINISTIC;
    if (form == with_factors) d.operands |= FA_OPERAND_BIAS_SCALE;
    if (form == repeated) d.bias_period[0] = 1, d.bias_period[1] = 3;
    if (form == ragged) {
        d.operands |= FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K;
        c.metadata.seqused_q = {199, 131}, c.metadata.seqused_k = {329, 140}, c.metadata.leftpad_k = {0, 9};
    }
    if (form == packed) {
        d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
        c.metadata.cu_seqlens_q = {0, 190, 323}, c.metadata.cu_seqlens_k = {0, 131, 460};
        d.total_q = 325, d.total_k = 461;
        window(c, 150, 30, FA_ALIGN_BOTTOM_RIGHT);
    }
    if (form == with_sinks) d.operands |= FA_OPERAND_SINKS;
    return c;
}

TEST_P(WithBias, AgreesWithTheOracle) {
    const Handle handle = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    const auto [dtype, dim] = GetParam();
    for (int i = 0; i < bias_forms; i++) {
        const BiasForm form = BiasForm(i);
        Rng rng(derive(258, uint64_t(i)));
        Case c = biased_case(form, dtype, dim);
        if (has_hopper_kernels()) {
            EXPECT_NE(kernel_of(handle, c.d).find("_bias"), std::string::npos) << form << ": " << kernel_of(handle, c.d);
        }
        c.bind(rng);
        fill(c, rng, form >= removing && form <= ragged);
        const float factors[] = {-1.5f, 0.f, 1e-30f, 0.75f};
        for (int h = 0; h < 4 && form == with_factors; h++) c.bias_scale.as<float>()[h] = factors[h];
        BackwardCase b = differentiable(forward, std::move(c), rng, form == with_sinks);
        EXPECT_EQ(run_on_device(handle, b), "") << form << "\n" << b.describe();
    }
}
INSTANTIATE_TEST_SUITE_P(EveryBackwardKernel, WithBias,
                         testing::Values(std::pair(FA_F16, 64), std::pair(FA_F16, 96), std::pair(FA_F16, 128), std::pair(FA_BF16, 64),
                                         std::pair(FA_BF16, 96), std::pair(FA_BF16, 128), std::pair(FA_BF16, 40)),
                         [](const auto& info) {
                             return (info.param.first == FA_F16 ? "F16_" : "Bf16_") + std::to_string(info.param.second);
                         });

// Sinks of f16, whose gradient is summed behind kernels that keep probabilities in a unit of their own.
TEST_F(EveryBackwardKernel, F95_sinks_of_f16) {
    const Handle handle = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    for (const int64_t dim : {64, 128, 256}) {
        Rng rng(259);
        Case c = shaped({1, 2, 1, 200, 330, dim, dim}, FA_F16);
        c.d.operands |= FA_OPERAND_SINKS;
        c.bind(rng);
        fill(c, rng);
        BackwardCase b = differentiable(forward, std::move(c), rng);
        EXPECT_EQ(run_on_device(handle, b), "") << b.describe();
    }
}

struct LongCall {
    Shape shape;
    bool masked;
    int32_t dtype = FA_BF16;
};
void PrintTo(const LongCall& call, std::ostream* out) {
    *out << call.shape.batch * call.shape.heads_q << " heads, " << call.shape.rows << " rows";
}

// Calls of several rounds of blocks, where the Hopper kernels prepare rows while others are at work, and split the blocks of the last
// round.
class SeveralRounds : public Gpu, public testing::WithParamInterface<LongCall> {};

TEST_P(SeveralRounds, AgreeWithTheOracle) {
    const Handle handle = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    Rng rng(256);
    Case c = shaped(GetParam().shape, GetParam().dtype);
    if (GetParam().masked) causal(c, FA_ALIGN_TOP_LEFT);
    c.bind(rng);
    c.fill_normal(rng);
    BackwardCase b = differentiable(forward, std::move(c), rng, false);
    EXPECT_EQ(run_on_device(handle, b), "") << b.describe();
}
INSTANTIATE_TEST_SUITE_P(EveryBackwardKernel, SeveralRounds,
                         testing::Values(LongCall{{1, 56, 56, 2050, 540, 8, 8}, false},  // many blocks, some of them split
                                         LongCall{{2, 25, 25, 4100, 260, 8, 8}, true},   // longest first
                                         LongCall{{2, 25, 25, 4100, 260, 8, 8}, true, FA_F16},
                                         LongCall{{1, 437, 437, 300, 300, 8, 8},
                                                  true},                               // in two sections of heads, the second has one more
                                         LongCall{{2, 51, 17, 600, 600, 8, 8}, true},  // grouped heads
                                         LongCall{{1, 90, 90, 530, 380, 72, 8}, false},  // wider heads
                                         LongCall{{1, 90, 90, 530, 380, 72, 8}, false, FA_F16},
                                         LongCall{{1, 3, 3, 1100, 500, 72, 8}, false},    // one round, all of it split
                                         LongCall{{1, 6, 6, 300, 4200, 8, 8}, false},     // few steps a block
                                         LongCall{{1, 2, 1, 2100, 4200, 8, 8}, false}));  // one round, rows of two heads

// With another stream at work beside it, which moves the blocks about.
TEST_F(EveryBackwardKernel, GivesTheSameBitsAThousandTimesWhereAsked) {
    constexpr int kTimes = 1000;
    const Handle handle = make_handle(), noise = make_handle(), forward = make_handle(FA_MEMORY_HOST);
    const Stream stream, other;
    const std::unique_ptr<Call> busy = packed_call(noise, 254);
    Rng rng(255);
    Memory counter(8);
    for (Case& c : plain_cases(handle)) {
        if (!(c.d.flags & FA_DETERMINISTIC)) continue;
        c.bind(rng);
        fill(c, rng);
        const BackwardCase b = differentiable(forward, std::move(c), rng, true);
        MovedBackward moved_args(b);
        moved_args.upload();
        moved_args.device.flags = FA_ARGS_STREAM, moved_args.device.stream = stream;
        cuda(cudaMemset(counter.as(), 0, 8));
        const struct {
            void* written;
            int64_t bytes;
            Memory first;
        } gradients[] = {{moved_args.device.dq, b.dq.bytes(), Memory(b.dq.bytes())},
                         {moved_args.device.dk, b.dk.bytes(), Memory(b.dk.bytes())},
                         {moved_args.device.dv, b.dv.bytes(), Memory(b.dv.bytes())}};
        for (int n = 0; n < kTimes; n++) {
            if (n % 7 == 0) {
                ASSERT_EQ(busy->enqueue(noise, other), FA_OK) << noise.error();
            }
            ASSERT_EQ(fa_backward(handle, &b.c.d, &moved_args.device), FA_OK) << handle.error();
            for (const auto& g : gradients) {
                if (n == 0) cuda(cudaMemcpyAsync(g.first.as(), g.written, size_t(g.bytes), cudaMemcpyDefault, stream));
                else count_differences(g.first.as(), g.written, g.bytes, counter.as<unsigned long long>(), stream);
                cuda(cudaMemsetAsync(g.written, 0xff, size_t(g.bytes), stream));  // or a call that does nothing would pass
            }
        }
        stream.wait();
        other.wait();
        unsigned long long differences = 0;
        cuda(cudaMemcpy(&differences, counter.as(), 8, cudaMemcpyDefault));
        EXPECT_EQ(differences, 0u) << kernel_of(handle, b.c.d) << "\n" << b.describe();
    }
}

}  // namespace
}  // namespace test::gpu
