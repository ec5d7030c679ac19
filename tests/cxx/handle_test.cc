// The handle: who owns it, what it throws, whose functions it calls.
#include <flashattn.hpp>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace {

using flashattn::Attention;
using flashattn::Handle;
using flashattn::HandleOptions;

HandleOptions on_the_cpu() {
    HandleOptions options;
    options.backend = FA_BACKEND_CPU;
    return options;
}

Attention two_heads() {
    Attention a;
    a.batch = 1, a.heads_q = 2, a.seqlen_q = a.seqlen_k = 3, a.dim_qk = 4;
    return a;
}

// The code and the sentence of what `call` throws.
template <class F>
std::string thrown_by(F&& call) {
    try {
        call();
    } catch (const flashattn::Error& error) {
        EXPECT_STREQ(error.what(), (std::string(error.status().name()) + ": " + error.status().message()).c_str());
        return error.what();
    }
    return "nothing";
}

TEST(Handle, KnowsItsBackend) {
    Handle handle(on_the_cpu());
    EXPECT_EQ(handle.get(FA_INFO_BACKEND), FA_BACKEND_CPU);
    handle.set(FA_PARAM_THREADS, 2);
    EXPECT_EQ(handle.get(FA_PARAM_THREADS), 2);
    EXPECT_EQ(thrown_by([&] { handle.set(FA_PARAM_THREADS, -1); }).find("FA_INVALID_ARGUMENT: "), 0u);
    EXPECT_NE(handle.explain().find("cpu"), std::string::npos);
    EXPECT_EQ(flashattn::version(), FA_VERSION);
}

TEST(Handle, OfAnUnknownBackendThrows) {
    HandleOptions options;
    options.backend = 99;
    EXPECT_NE(thrown_by([&] { Handle handle(options); }).find("backend"), std::string::npos);
}

TEST(Handle, MovesAndLeavesAnEmptyOne) {
    Handle first(on_the_cpu());
    const fa_handle_t raw = first.get();
    Handle second(std::move(first));
    EXPECT_EQ(second.get(), raw);
    EXPECT_EQ(first.get(), nullptr);  // NOLINT: what a moved one does is the question
    EXPECT_EQ(thrown_by([&] { first.set(FA_PARAM_THREADS, 1); }).find("FA_INVALID_ARGUMENT: "), 0u);
    second = Handle(on_the_cpu());
    EXPECT_EQ(second.get(FA_INFO_BACKEND), FA_BACKEND_CPU);
}

TEST(Handle, ExplainsAndSupportsWhatTheDescriptorSays) {
    Handle handle(on_the_cpu());
    Attention a = two_heads();
    a.q_dtype = FA_F32;
    EXPECT_TRUE(handle.supports(a, FA_OP_FORWARD));
    EXPECT_NE(handle.explain(a, FA_OP_FORWARD).find("cpu"), std::string::npos);
    EXPECT_GE(handle.workspace_size(a, FA_OP_FORWARD), 0u);
    a.dim_qk = -1;
    const flashattn::Status refused = handle.supports(a, FA_OP_FORWARD);
    EXPECT_EQ(refused.code(), FA_INVALID_ARGUMENT);
    EXPECT_NE(refused.message().find("dim_qk"), std::string::npos);
}

// Bytes on the stack that nobody should see again.
[[gnu::noinline]] void leave_bytes_behind() {
    volatile char bytes[4 * FA_TEXT_MAX];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 'S';
}

// Where the library is not even entered, the reason is the text: no handle, one that is in a call, one of the parent of this process.
TEST(Handle, ExplainsWhyItIsNotEntered) {
    const auto explained = [](const Handle& handle) {
        leave_bytes_behind();
        const std::string about = handle.explain(two_heads(), FA_OP_FORWARD);
        leave_bytes_behind();
        EXPECT_EQ(handle.explain(), about);
        return about;
    };
    HandleOptions options = on_the_cpu();
    Handle* inside = nullptr;
    std::string in_a_call;
    options.log_level = FA_LOG_DEBUG;
    options.log = [&](int32_t, const char*) {
        if (inside && in_a_call.empty()) in_a_call = "asked", in_a_call = explained(*inside);
    };
    Handle first(options);
    inside = &first;
    std::vector<float> x(24, 1), o(24);
    first.forward(two_heads(), x, x, x, o);
    inside = nullptr;
    EXPECT_EQ(in_a_call.find("another call on this handle has not returned"), 0u) << in_a_call;
    const pid_t child = fork();
    if (child == 0) _exit(explained(first).find("the handle belongs to process ") == 0 ? 0 : 1);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    const Handle second = std::move(first);
    EXPECT_EQ(explained(first), "handle is NULL: expected one from fa_create");  // NOLINT: what a moved one says is the question
}

TEST(Handle, CallsTheFunctionsThatItWasGiven) {
    HandleOptions options = on_the_cpu();
    int lines = 0;
    int64_t items = 0;
    options.log_level = FA_LOG_DEBUG;
    options.log = [&](int32_t, const char*) { lines++; };
    options.parallel_for = [&](int64_t n, const std::function<void(int64_t)>& body) {
        for (int64_t i = 0; i < n; i++) body(i);
        items += n;
    };
    Handle moved(options);
    Handle handle(std::move(moved));  // its functions move along
    handle.set(FA_PARAM_THREADS, 2);
    Attention a = two_heads();
    a.seqlen_q = a.seqlen_k = 512, a.dim_qk = 32;
    std::vector<float> x(512 * 64, 1), o(x.size());
    handle.forward(a, x, x, x, o);
    EXPECT_GT(lines, 0);
    EXPECT_GT(items, 0);
    EXPECT_EQ(o[12345], 1);
}

TEST(Handle, HandsOnWhatItsFunctionsThrow) {
    HandleOptions options = on_the_cpu();
    bool throws = true;
    options.parallel_for = [&](int64_t n, const std::function<void(int64_t)>& body) {
        if (throws) throw std::out_of_range("the pool is closed");
        for (int64_t i = 0; i < n; i++) body(i);
    };
    Handle handle(options);
    handle.set(FA_PARAM_THREADS, 2);
    Attention a = two_heads();
    a.seqlen_q = a.seqlen_k = 512, a.dim_qk = 32;
    std::vector<float> x(512 * 64, 1), o(x.size());
    EXPECT_THROW(handle.forward(a, x, x, x, o), std::out_of_range);
    throws = false;
    handle.forward(a, x, x, x, o);
    EXPECT_EQ(o[777], 1);
}

TEST(Handle, GivesMemoryAndTakesItBack) {
    Handle handle(on_the_cpu());
    const std::vector<float> x(24, 2.5f);
    std::vector<float> o(24);
    auto q = handle.allocate<float>(24), out = handle.allocate<float>(24);
    handle.copy<float>(q, x);
    handle.forward(two_heads(), q, q, q, out);
    handle.synchronize();
    handle.copy<float>(o, out);
    EXPECT_EQ(o, x);
    std::vector<float> later(24);
    handle.copy_async<float>(later, out);
    handle.copy_async<float>(later, out, FA_ARGS_STREAM, nullptr);
    handle.synchronize();
    EXPECT_EQ(later, x);
    EXPECT_EQ(handle.get(FA_INFO_STREAM), 0);
    EXPECT_NE(thrown_by([&] { handle.copy_async<float>(flashattn::Span<float>(o.data(), 3), x); }).find("fewer"), std::string::npos);
    EXPECT_NE(thrown_by([&] { handle.copy<float>(flashattn::Span<float>(o.data(), 3), x); }).find("fewer"), std::string::npos);
    EXPECT_EQ(thrown_by([&] { handle.allocate<float>(SIZE_MAX / 2); }).find("FA_OUT_OF_MEMORY"), 0u);
    EXPECT_EQ(handle.allocate<float>(0).data(), nullptr);
}

TEST(Handle, IsNotNeededForTheseAnswers) {
    EXPECT_TRUE(flashattn::backend_status(FA_BACKEND_CPU));
    EXPECT_FALSE(flashattn::backend_status(99));
    Attention a = two_heads();
    a.q_dtype = FA_F32;
    const flashattn::Status yes = flashattn::backend_supports(FA_BACKEND_CPU, 0, a, FA_OP_FORWARD);
    EXPECT_TRUE(yes) << yes.message();
    EXPECT_NE(yes.message().find("cpu"), std::string::npos);
    a.q_dtype = FA_E4M3;
    const flashattn::Status no = flashattn::backend_supports(FA_BACKEND_CPU, 0, a, FA_OP_BACKWARD);
    EXPECT_EQ(no.code(), FA_UNSUPPORTED);
    EXPECT_NE(no.message().find("e4m3"), std::string::npos);
    ASSERT_EQ(flashattn::devices(FA_BACKEND_CPU).size(), 1u);
    EXPECT_GT(flashattn::devices(FA_BACKEND_CPU)[0].compute_units, 0);
    EXPECT_THROW((void)flashattn::devices(99), flashattn::Error);
    EXPECT_EQ(flashattn::alibi_slopes(2), (std::vector<float>{0.0625f, 0.00390625f}));
    EXPECT_THROW((void)flashattn::alibi_slopes(-1), flashattn::Error);
    EXPECT_EQ(flashattn::dropout_mask(0, 1, 2, 0, 0, 2, 0, 3), std::vector<uint8_t>(6, 1));
    EXPECT_THROW((void)flashattn::dropout_mask(2, 1, 2, 0, 0, 2, 0, 3), flashattn::Error);
}

}  // namespace
