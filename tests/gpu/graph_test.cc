// Calls in graphs: captured once, in the mode that forbids allocating and waiting, and replayed over other lengths, page tables, factors
// and random states in the same memory.
#include <thread>
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class Graphs : public Gpu {};

TEST_F(Graphs, ReplaysReadLengthsPagesAndFactorsAnew) {
    const Handle handle = make_handle();
    const Stream stream;
    for (const auto& call : one_of_each(handle)) {
        const Graph graph(stream, [&] { ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << call->name() << ": " << handle.error(); });
        for (int round = 0; round < 10; round++) {
            if (round > 0) call->change();
            graph.replay(stream);
            stream.wait();
            ASSERT_EQ(call->check(), "") << call->name() << ", replay " << round;
            const std::vector<unsigned char> replayed = call->output();
            ASSERT_EQ(call->enqueue(handle, stream), FA_OK);
            stream.wait();
            ASSERT_EQ(call->check(), "") << call->name();
            EXPECT_EQ(compare_bits(replayed, call->output()), "") << call->name() << ": a replay and a call, round " << round;
        }
    }
}

// In a process of its own, where no kernel of these calls has been loaded: every call's first is captured.
void capture_first_calls(cudaStreamCaptureMode mode) {
    cuda(cudaSetDevice(0));
    const Handle handle = make_handle();
    const Stream stream;
    const std::vector<std::unique_ptr<Call>> calls = one_of_each(nullptr);
    fa_status_t status = FA_OK;
    const auto enqueue = [&] {
        for (const auto& call : calls)
            if (status == FA_OK) status = call->enqueue(handle, stream);
    };
    const Graph graph(stream, enqueue, mode);
    if (status != FA_OK) fprintf(stderr, "%s\n", handle.error().c_str()), exit(1);
    for (const auto& call : calls) call->change();
    graph.replay(stream);
    stream.wait();
    for (const auto& call : calls)
        if (const std::string wrong = call->check(); !wrong.empty()) fprintf(stderr, "%s: %s\n", call->name(), wrong.c_str()), exit(1);
    fprintf(stderr, "all calls are right\n");
    exit(0);
}

// The same where another thread captures: the first handle is made, its kernels are loaded by a question and by calls, and the capture
// goes on.
void call_beside_a_capture(cudaStreamCaptureMode mode) {
    cuda(cudaSetDevice(0));
    const Stream captured, stream;
    const std::unique_ptr<Call> merge = merge_call(224);
    const Case c = shaped({1, 2, 2, 200, 200, 64, 64}, FA_BF16);
    std::string fault;
    const auto call = [&] {
        try {
            cuda(cudaSetDevice(0));
            const Handle handle = make_handle();
            uint64_t bytes;
            for (const int32_t op : {FA_OP_FORWARD, FA_OP_BACKWARD})
                if (fa_workspace_size(handle, &c.d, op, &bytes) != FA_OK) fault = handle.error();
            if (merge->enqueue(handle, stream) != FA_OK) fault = handle.error();
        } catch (const std::exception& e) {
            fault = e.what();
        }
    };
    const Graph graph(captured, [&] { std::thread(call).join(); }, mode);
    if (!fault.empty()) fprintf(stderr, "%s\n", fault.c_str()), exit(1);
    stream.wait();
    if (const std::string wrong = merge->check(); !wrong.empty()) fprintf(stderr, "merge: %s\n", wrong.c_str()), exit(1);
    fprintf(stderr, "all calls are right\n");
    exit(0);
}

class EachCaptureMode : public Gpu, public testing::WithParamInterface<cudaStreamCaptureMode> {};

TEST_P(EachCaptureMode, FirstCallsAreCaptured) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(capture_first_calls(GetParam()), testing::ExitedWithCode(0), "all calls are right");
}
TEST_P(EachCaptureMode, FirstCallsBesideACapture) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(call_beside_a_capture(GetParam()), testing::ExitedWithCode(0), "all calls are right");
}
INSTANTIATE_TEST_SUITE_P(Graphs, EachCaptureMode,
                         testing::Values(cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed),
                         [](const auto& mode) {
                             return std::string(mode.param == cudaStreamCaptureModeGlobal        ? "Global"
                                                : mode.param == cudaStreamCaptureModeThreadLocal ? "ThreadLocal"
                                                                                                 : "Relaxed");
                         });

// All calls in one graph: how an engine captures a step.
TEST_F(Graphs, ManyCallsInOne) {
    const Handle handle = make_handle();
    const Stream stream;
    const std::vector<std::unique_ptr<Call>> calls = one_of_each(handle);
    const Graph graph(stream, [&] {
        for (const auto& call : calls) ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << handle.error();
    });
    for (int round = 0; round < 5; round++) {
        for (const auto& call : calls) call->change();
        graph.replay(stream);
        stream.wait();
        for (const auto& call : calls) EXPECT_EQ(call->check(), "") << call->name();
    }
}

// What no graph can hold is refused before it could end the capture, which goes on.
TEST_F(Graphs, RefusedCallsLeaveTheCaptureAlone) {
    const Stream stream;
    const Handle handle = make_handle(FA_MEMORY_DEVICE, 0, stream), host = make_handle(FA_MEMORY_HOST, 0, stream);
    const std::unique_ptr<Call> good = forward_call(handle, 221);
    Rng rng(222);
    Case c = shaped({1, 2, 2, 1, 600, 64, 64});
    c.d.num_splits = 4;
    c.bind(rng);
    c.fill_normal(rng);
    Moved<fa_forward_args_t> moved_args = moved(c);
    moved_args.upload();
    // The handle's scratch memory would be large enough: a graph must not come to depend on it.
    ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
    stream.wait();
    const Graph graph(stream, [&] {
        EXPECT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_WORKSPACE_TOO_SMALL);
        EXPECT_EQ(handle.error().rfind("workspace is NULL: expected ", 0), 0u) << handle.error();
        EXPECT_EQ(c.run(host), FA_INVALID_STATE);
        EXPECT_NE(host.error().find("FA_MEMORY_HOST"), std::string::npos) << host.error();
        EXPECT_EQ(fa_synchronize(handle), FA_INVALID_STATE);
        EXPECT_EQ(fa_copy(handle, moved_args.device.o, c.o.as(), 4), FA_INVALID_STATE);
        EXPECT_NE(handle.error().find("captured"), std::string::npos) << handle.error();
        EXPECT_EQ(good->enqueue(handle, stream), FA_OK) << handle.error();
    });
    good->change();
    graph.replay(stream);
    stream.wait();
    EXPECT_EQ(good->check(), "");
    // A call that names the captured stream, on a handle of another one.
    const Handle elsewhere = make_handle(FA_MEMORY_HOST);
    c.a.flags = FA_ARGS_STREAM, c.a.stream = stream;
    const Graph other(stream, [&] {
        EXPECT_EQ(c.run(elsewhere), FA_INVALID_STATE);
        EXPECT_EQ(good->enqueue(handle, stream), FA_OK) << handle.error();
    });
    c.a.flags = 0, c.a.stream = nullptr;
    EXPECT_EQ(c.run(elsewhere), FA_OK) << elsewhere.error();
    EXPECT_EQ(check_against_oracle(c, FA_F32), "");
}

// A handle need not live as long as the graphs that it took part in.
TEST_F(Graphs, OutliveTheirHandle) {
    const Stream stream;
    const Handle planner = make_handle();
    const std::unique_ptr<Call> call = forward_call(planner, 223);
    std::unique_ptr<Graph> graph;
    {
        const Handle handle = make_handle();
        graph = std::make_unique<Graph>(stream, [&] { ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << handle.error(); });
    }
    call->change();
    graph->replay(stream);
    stream.wait();
    EXPECT_EQ(call->check(), "");
}

}  // namespace
}  // namespace test::gpu
