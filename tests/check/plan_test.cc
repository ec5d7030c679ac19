// A handle keeps plans between calls. Whatever came before (other parameters, descriptors, operations, addresses, refusals), an
// answer and a result are those of a new handle, to the last bit.
#include <gtest/gtest.h>
#include <functional>
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

using Parameters = std::vector<std::pair<int32_t, int64_t>>;

// What fa_explain, fa_workspace_size and fa_supports say.
std::string answers(const Handle& handle, const fa_attention_desc_t& desc, int32_t op) {
    char text[FA_TEXT_MAX] = "";
    uint64_t bytes = 0;
    const fa_status_t explained = fa_explain(handle, &desc, op, text, sizeof text), sized = fa_workspace_size(handle, &desc, op, &bytes);
    EXPECT_EQ(explained, sized) << text;
    EXPECT_EQ(explained, fa_supports(handle, &desc, op)) << text;
    if (explained == FA_OK) {
        EXPECT_NE(std::string(text).find("workspace of " + std::to_string(bytes) + " bytes"), std::string::npos) << text;
    }
    return text;
}

Handle new_handle(const Parameters& parameters) {
    Handle handle = make_handle();
    for (const auto& [key, value] : parameters) EXPECT_TRUE(handle.set(key, value)) << handle.error();
    return handle;
}

// Calls that want different kernels, splits, threads or workspaces; the first two differ in one field.
class Plans : public testing::Test {
  protected:
    Rng rng{6031};
    std::vector<Case> cases;
    std::vector<BackwardCase> backward;

    void add(Case test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        cases.push_back(std::move(test_case));
    }
    void SetUp() override {
        add(shaped({1, 2, 1, 70, 300, 24, 24}));
        Case windowed = shaped({1, 2, 1, 70, 300, 24, 24});
        window(windowed, 9, 3, FA_ALIGN_BOTTOM_RIGHT);
        add(std::move(windowed));
        add(shaped({2, 4, 2, 1, 2100, 64, 64}, FA_BF16));  // decode, in splits
        Case standard = shaped({1, 2, 2, 40, 130, 16, 16});
        standard.d.algorithm = FA_ALGORITHM_STANDARD;
        add(std::move(standard));
        Case split = shaped({1, 1, 1, 33, 700, 32, 32}, FA_F16);
        split.d.split_size = 128;
        add(std::move(split));
        const Handle handle = make_handle();
        for (const int64_t heads : {1, 2}) {
            Case c = shaped({1, 2, heads, 40, 90, 16, 16}, heads == 1 ? FA_BF16 : FA_F32);
            c.d.flags |= FA_DETERMINISTIC;
            c.bind(rng);
            c.fill_normal(rng);
            BackwardCase b(std::move(c));
            EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            b.bind(rng);
            b.fill_normal(rng);
            backward.push_back(std::move(b));
        }
    }
    // The bytes that forward i leaves, in a workspace of the size asked for if wanted; the fault where there is one.
    std::pair<std::string, std::vector<unsigned char>> forward(const Handle& handle, size_t i, bool workspace = false) {
        Case& c = cases[i];
        uint64_t bytes = 0;
        if (workspace) {
            EXPECT_EQ(fa_workspace_size(handle, &c.d, FA_OP_FORWARD, &bytes), FA_OK) << handle.error();
        }
        c.use_workspace(bytes, rng);
        const std::string fault = run_and_check(handle, c);
        return {fault, bytes_of(c.o)};
    }
    std::pair<std::string, std::vector<unsigned char>> gradients(const Handle& handle, size_t i) {
        BackwardCase& b = backward[i];
        if (b.run(handle) != FA_OK) return {handle.error(), {}};
        return {b.check(products_of(handle, b)), bytes_of(b.dk)};
    }
    Parameters random_parameters() {
        Parameters parameters;
        if (testing_the_cpu()) {
            parameters.push_back({FA_PARAM_MAX_ISA, usable_isas()[size_t(rng.between(0, int64_t(usable_isas().size()) - 1))]});
            parameters.push_back({FA_PARAM_THREADS, rng.between(0, 3)});
            parameters.push_back({FA_PARAM_COUNT_WORK, rng.between(0, 1)});
            parameters.push_back({FA_PARAM_THREAD_POOL, rng.between(FA_POOL_AUTO, FA_POOL_OWN)});
        }
        return parameters;
    }
    // A call that is refused: by the descriptor, by the plan or by the args.
    void refused(const Handle& handle) {
        Case& c = cases[0];
        fa_attention_desc_t d = c.d;
        fa_forward_args_t a = c.a;
        switch (rng.between(0, 2)) {
            case 0: d.batch = -1; break;
            case 1: d.algorithm = FA_ALGORITHM_FLASH1, d.num_splits = 2; break;
            default: a.k = nullptr; break;
        }
        EXPECT_NE(fa_forward_ex(handle, &d, &a), FA_OK);
    }
};

TEST_F(Plans, AnswersAndResultsAreThoseOfANewHandle) {
    Parameters parameters;
    const Handle old = new_handle(parameters);
    for (int step = 0; step < (testing_the_cpu() ? 120 : 40); step++) {
        SCOPED_TRACE(step);
        const Handle fresh = new_handle(parameters);
        const size_t i = size_t(rng.between(0, int64_t(cases.size()) - 1)), j = size_t(rng.between(0, 1));
        switch (rng.between(0, 4)) {
            case 0:
                parameters = random_parameters();
                for (const auto& [key, value] : parameters) ASSERT_TRUE(old.set(key, value)) << old.error();
                break;
            case 1: refused(old); break;
            case 2: {
                ASSERT_EQ(answers(old, cases[i].d, FA_OP_FORWARD), answers(fresh, cases[i].d, FA_OP_FORWARD));
                ASSERT_EQ(answers(old, backward[j].c.d, FA_OP_BACKWARD), answers(fresh, backward[j].c.d, FA_OP_BACKWARD));
                for (const int32_t op : {FA_OP_MERGE, FA_OP_APPEND_KV, FA_OP_ROTARY})
                    ASSERT_EQ(answers(old, cases[0].d, op), answers(fresh, cases[0].d, op));
                break;
            }
            case 3: {
                const bool workspace = rng.chance(0.5);
                const auto mine = forward(old, i, workspace), theirs = forward(fresh, i);
                ASSERT_EQ(mine.first, "");
                ASSERT_EQ(mine.second, theirs.second) << "forward " << i;
                break;
            }
            default: {
                const auto mine = gradients(old, j), theirs = gradients(fresh, j);
                ASSERT_EQ(mine.first, "");
                ASSERT_EQ(mine.second, theirs.second) << "backward " << j;
            }
        }
    }
}

// The parameter decides, not what was planned under another value of it.
TEST_F(Plans, AreForgottenWhenAParameterIsSet) {
    if (!testing_the_cpu()) GTEST_SKIP() << "parameters are the CPU backend's";
    const Handle handle = make_handle();
    for (const int32_t isa : usable_isas()) {
        if (isa == 0) continue;
        ASSERT_TRUE(handle.set(FA_PARAM_MAX_ISA, isa));
        EXPECT_NE(answers(handle, cases[0].d, FA_OP_FORWARD).find(isa_name(isa)), std::string::npos) << isa_name(isa);
        EXPECT_EQ(forward(handle, 0).first, "");
    }
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 1));
    EXPECT_EQ(forward(handle, 0).first, "");
    const int64_t flops = handle.get(FA_STAT_FLOPS);
    EXPECT_GT(flops, 0);
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 0));
    EXPECT_EQ(forward(handle, 3).first, "");
    EXPECT_EQ(handle.get(FA_STAT_FLOPS), flops) << "a call that does not count";
    ASSERT_TRUE(handle.set_threads(1));
    fa_attention_desc_t d = shaped({64, 4, 4, 256, 256, 64, 64}).d;
    uint64_t one = 0, three = 0;
    ASSERT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &one), FA_OK);
    ASSERT_TRUE(handle.set(FA_PARAM_THREAD_POOL, FA_POOL_OPENMP) && handle.set(FA_PARAM_THREADS, 3));
    ASSERT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &three), FA_OK);
    EXPECT_GT(three, one);
}

// Of a GPU, whose keys are cut into as many splits as units are left for.
TEST_F(Plans, CountOnTheUnitsThatAreNotReserved) {
    const Handle handle = make_handle();
    fa_attention_desc_t d = shaped({1, 2, 2, 1, 1 << 24, 64, 64}, FA_BF16).d;
    const std::string all = answers(handle, d, FA_OP_FORWARD);
    d.reserve_units = INT32_MAX;
    if (testing_the_cpu()) EXPECT_EQ(answers(handle, d, FA_OP_FORWARD), all);
    else EXPECT_NE(answers(handle, d, FA_OP_FORWARD), all);
}

// A descriptor that was refused is planned anew, and so is one that differs in its last field or its size alone.
TEST_F(Plans, AreOfTheWholeDescriptor) {
    const Handle handle = make_handle();
    struct Longer {
        fa_attention_desc_t d;
        char tail[8];
    } longer{cases[0].d, {}};
    const std::string known = answers(handle, cases[0].d, FA_OP_FORWARD);
    longer.d.struct_size = sizeof longer;
    EXPECT_EQ(answers(handle, longer.d, FA_OP_FORWARD), known);
    longer.tail[7] = 1;
    EXPECT_EQ(fa_supports(handle, &longer.d, FA_OP_FORWARD), FA_UNSUPPORTED_FIELD);
    longer.tail[7] = 0;
    EXPECT_EQ(answers(handle, longer.d, FA_OP_FORWARD), known);
    for (size_t byte = sizeof longer.d.struct_size; byte < sizeof longer.d; byte += testing_the_cpu() ? 1 : 29) {
        fa_attention_desc_t other = cases[0].d;
        reinterpret_cast<unsigned char*>(&other)[byte] ^= 0x80;
        char mine[FA_TEXT_MAX], theirs[FA_TEXT_MAX];
        const fa_status_t status = fa_explain(handle, &other, FA_OP_FORWARD, mine, sizeof mine);
        const Handle fresh = make_handle();
        ASSERT_EQ(status, fa_explain(fresh, &other, FA_OP_FORWARD, theirs, sizeof theirs)) << "byte " << byte;
        ASSERT_STREQ(mine, theirs) << "byte " << byte;
        ASSERT_EQ(answers(handle, cases[0].d, FA_OP_FORWARD), known) << "byte " << byte;
    }
}

// Addresses that are multiples of 16 bytes, and others, in turn: on a GPU they decide on the kernel. k and v lie within q's tensor,
// so that copies of host memory lie to each other as the originals do.
TEST_F(Plans, TakeEveryAddress) {
    constexpr int64_t kRows = 150, kDim = 64, kHeads = 2, kElements = kRows * kHeads * kDim;
    std::vector<uint16_t> inputs(size_t(kElements + 64)), dout(inputs);
    for (size_t n = 0; n < inputs.size(); n++) {
        oracle::store(inputs.data(), int64_t(n), FA_F16, rng.normal());
        oracle::store(dout.data(), int64_t(n), FA_F16, rng.normal());
    }
    struct Results {
        std::vector<uint16_t> o = std::vector<uint16_t>(kElements), dq = o, dk = o, dv = o;
        std::vector<float> lse = std::vector<float>(kRows * kHeads);
    };
    const auto run = [&](const Handle& handle, int64_t offset, Results* to) {
        fa_attention_desc_t d = shaped({1, kHeads, kHeads, kRows, kRows, kDim, kDim}, FA_F16).d;
        d.flags |= FA_DETERMINISTIC;
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = inputs.data(), a.k = inputs.data() + offset, a.v = inputs.data() + 2 * offset, a.o = to->o.data(), a.lse = to->lse.data();
        ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
        fa_backward_args_t g = FA_BACKWARD_ARGS_INIT;
        g.forward = &a, g.dout = dout.data(), g.dq = to->dq.data(), g.dk = to->dk.data(), g.dv = to->dv.data();
        ASSERT_EQ(fa_backward(handle, &d, &g), FA_OK) << handle.error();
    };
    const Handle handle = make_handle();
    for (const int64_t offset : {8, 1, 8, 3, 16, 2, 1, 8}) {
        SCOPED_TRACE(offset);
        Results mine, theirs;
        run(handle, offset, &mine);
        run(make_handle(), offset, &theirs);
        EXPECT_EQ(mine.o, theirs.o);
        EXPECT_EQ(mine.lse, theirs.lse);
        EXPECT_EQ(mine.dq, theirs.dq);
        EXPECT_EQ(mine.dk, theirs.dk);
        EXPECT_EQ(mine.dv, theirs.dv);
    }
}

}  // namespace
}  // namespace test
