// Calls only enqueue: on the caller's stream, beside other streams, threads and devices, and leave the current device as it was.
#include <chrono>
#include <thread>
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class Streams : public Gpu {};

TEST_F(Streams, CallsReturnWhileTheirStreamIsHeldUp) {
    const Handle handle = make_handle();
    for (const auto& call : one_of_each(handle)) {
        const Stream stream;
        Gate gate;
        gate.close(stream);
        ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << call->name() << ": " << handle.error();
        EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << call->name();
        gate.open();
        stream.wait();
        EXPECT_FALSE(gate.expired()) << call->name() << " waited for the stream";
        EXPECT_EQ(call->check(), "") << call->name();
    }
}

// For kernels of one block a multiprocessor.
TEST_F(Streams, HaveTheMultiprocessorsThatACallReserves) {
    if (!has_hopper_kernels()) GTEST_SKIP() << "no kernels of Hopper's own";
    const Handle handle = make_handle();
    fa_device_info_t info = {};
    info.struct_size = sizeof info;
    ASSERT_EQ(fa_device_info(FA_BACKEND_CUDA, 0, &info), FA_OK);
    Case c = shaped({2, 16, 16, 4096, 4096, 128, 128}, FA_BF16);
    for (const int32_t op : {FA_OP_FORWARD, FA_OP_BACKWARD}) {
        for (const int32_t reserved : {0, 20, 21, info.compute_units, INT32_MAX}) {
            c.d.reserve_units = reserved;
            char text[512];
            ASSERT_EQ(fa_explain(handle, &c.d, op, text, sizeof text), FA_OK) << handle.error();
            const std::string said = text;
            const size_t end = said.find(" blocks"), begin = said.rfind(' ', end - 1);
            ASSERT_NE(end, std::string::npos) << said;
            const int blocks = std::stoi(said.substr(begin + 1, end - begin - 1)), left = std::max(info.compute_units - reserved, 2);
            EXPECT_LE(blocks, left) << said;
            EXPECT_GE(blocks, left - 1) << said;  // clusters of two
        }
    }
}

// The handle's own scratch memory, once it is large enough.
TEST_F(Streams, CallsWithoutAWorkspaceReturnToo) {
    const Stream stream;
    const Handle handle = make_handle(FA_MEMORY_DEVICE, 0, stream);
    Rng rng(211);
    Case c = shaped({2, 4, 2, 3, 900, 64, 64}, FA_F16);
    c.d.num_splits = 4;
    c.bind(rng);
    c.fill_normal(rng);
    Moved<fa_forward_args_t> moved_args = moved(c);
    moved_args.upload();
    ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
    Gate gate;
    gate.close(stream);
    ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    gate.open();
    stream.wait();
    EXPECT_FALSE(gate.expired());
    moved_args.fetch();
    EXPECT_EQ(check_against_oracle(c, FA_F16), "");
}

// Two streams that overlap as they like: through a handle each, through one handle with a workspace each.
TEST_F(Streams, TwoAtOnce) {
    const Handle first = make_handle(), second = make_handle();
    for (const bool shared : {false, true}) {
        const Stream streams[2];
        const Handle* const handles[2] = {&first, shared ? &first : &second};
        const std::unique_ptr<Call> calls[2] = {forward_call(first, 212), forward_call(first, 213)};
        std::vector<unsigned char> alone[2];
        for (int n = 0; n < 2; n++) {
            ASSERT_EQ(calls[n]->enqueue(*handles[n], streams[n]), FA_OK) << handles[n]->error();
            streams[n].wait();
            ASSERT_EQ(calls[n]->check(), "");
            alone[n] = calls[n]->output();
        }
        for (int round = 0; round < 200; round++)
            for (int n = 0; n < 2; n++) ASSERT_EQ(calls[n]->enqueue(*handles[n], streams[n]), FA_OK) << handles[n]->error();
        for (int n = 0; n < 2; n++) {
            streams[n].wait();
            ASSERT_EQ(calls[n]->check(), "");
            EXPECT_EQ(compare_bits(calls[n]->output(), alone[n]), "") << (shared ? "one handle" : "two handles");
        }
    }
}

// One handle's own scratch memory serves two streams in turn: the second call waits for the first, on the device.
TEST_F(Streams, TwoShareTheHandlesScratchMemory) {
    const Handle handle = make_handle();
    const Stream streams[2];
    Rng rng(214);
    Case cases[2] = {shaped({2, 4, 2, 3, 2000, 64, 64}, FA_F16), shaped({2, 4, 2, 3, 2000, 64, 64}, FA_F16)};
    std::vector<Moved<fa_forward_args_t>> calls;
    for (Case& c : cases) {
        c.d.num_splits = 8;
        c.bind(rng);
        c.fill_normal(rng);
        calls.push_back(moved(c));
        calls.back().upload();
    }
    Gate gate;
    const auto enqueue = [&](int n) {
        calls[size_t(n)].device.flags = FA_ARGS_STREAM, calls[size_t(n)].device.stream = streams[n];
        EXPECT_EQ(fa_forward_ex(handle, &cases[n].d, &calls[size_t(n)].device), FA_OK) << handle.error();
    };
    enqueue(0);
    cuda(cudaDeviceSynchronize());
    gate.close(streams[0]);
    enqueue(0);
    enqueue(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(cudaStreamQuery(streams[1]), cudaErrorNotReady) << "the second call overtook the first, whose memory it shares";
    gate.open();
    for (int round = 0; round < 100; round++) enqueue(round % 2);
    for (const Stream& stream : streams) stream.wait();
    EXPECT_FALSE(gate.expired());
    for (int n = 0; n < 2; n++) {
        calls[size_t(n)].fetch();
        EXPECT_EQ(check_against_oracle(cases[n], FA_F16), "");
    }
}

TEST_F(Streams, ThreadsWithAHandleEach) {
    std::vector<std::thread> threads;
    std::vector<std::string> faults(4);
    for (size_t n = 0; n < faults.size(); n++)
        threads.emplace_back([&, n] {
            try {
                const Stream stream;
                const Handle handle = make_handle(FA_MEMORY_DEVICE, 0, stream);
                const std::vector<std::unique_ptr<Call>> calls = one_of_each(handle);
                for (int round = 0; round < 20; round++)
                    for (const auto& call : calls) {
                        call->change();
                        if (call->enqueue(handle, stream) != FA_OK) throw std::runtime_error(handle.error());
                        stream.wait();
                        const std::string fault = call->check();
                        if (!fault.empty()) throw std::runtime_error(call->name() + (": " + fault));
                    }
            } catch (const std::exception& e) {
                faults[n] = e.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& fault : faults) EXPECT_EQ(fault, "");
}

TEST_F(Streams, PointersToHostMemoryAreRefused) {
    int pageable = 0;
    cuda(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
    if (pageable) GTEST_SKIP() << "this device reads ordinary memory";
    const Handle handle = make_handle();
    Rng rng(215);
    Case c = shaped({1, 1, 1, 2, 3, 8, 8});
    c.bind(rng);
    EXPECT_EQ(c.run(handle), FA_INVALID_ARGUMENT);
    EXPECT_EQ(handle.error().rfind("q is 0x", 0), 0u) << handle.error();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// A handle of host memory works on the stream that a call names: after what lies there, and done when it returns.
TEST_F(Streams, HostMemoryOnANamedStream) {
    const Handle handle = make_handle(FA_MEMORY_HOST);
    const Stream stream;
    Rng rng(216);
    Case c = shaped({2, 3, 1, 33, 500, 64, 64});
    c.bind(rng);
    c.fill_normal(rng);
    c.a.flags = FA_ARGS_STREAM, c.a.stream = stream;
    ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    c.a.flags = 0, c.a.stream = nullptr;
    EXPECT_EQ(check_against_oracle(c, FA_F32), "");
}

TEST_F(Streams, EveryDeviceWorksAndTheCurrentOneStays) {
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "one device only";
    for (int device = 0; device < devices; device++)
        for (int current = 0; current < devices; current++) {
            cuda(cudaSetDevice(device));
            const Stream stream;
            {
                const Handle handle = make_handle(FA_MEMORY_DEVICE, device, stream);
                const std::vector<std::unique_ptr<Call>> calls = one_of_each(handle);
                cuda(cudaSetDevice(current));
                const auto still = [&] {
                    int now = -1;
                    cuda(cudaGetDevice(&now));
                    return now == current;
                };
                for (const auto& call : calls) {
                    ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << call->name() << ": " << handle.error();
                    EXPECT_TRUE(still()) << call->name();
                    ASSERT_EQ(fa_synchronize(handle), FA_OK) << handle.error();
                    EXPECT_TRUE(still()) << "fa_synchronize";
                    EXPECT_EQ(call->check(), "") << call->name() << " on device " << device << " while " << current << " is current";
                }
                void* memory = nullptr;
                ASSERT_EQ(fa_malloc(handle, 1024, &memory), FA_OK) << handle.error();
                EXPECT_TRUE(still()) << "fa_malloc";
                cudaPointerAttributes where;
                cuda(cudaPointerGetAttributes(&where, memory));
                EXPECT_EQ(where.device, device);
                ASSERT_EQ(fa_free(handle, memory), FA_OK) << handle.error();
                EXPECT_TRUE(still()) << "fa_free";
                const Handle another = make_handle(FA_MEMORY_DEVICE, device);
                EXPECT_TRUE(still()) << "fa_create";
            }
            int now = -1;
            cuda(cudaGetDevice(&now));
            EXPECT_EQ(now, current) << "fa_destroy";
            cuda(cudaSetDevice(device));  // where the stream is destroyed
        }
    cuda(cudaSetDevice(0));
}

// A launch on such a stream would run with the addresses of this handle's device. Not even a capture is disturbed by the question.
TEST_F(Streams, OfAnotherDeviceAreRefused) {
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "one device only";
    cuda(cudaSetDevice(1));
    const Stream theirs;
    cuda(cudaSetDevice(0));
    const Stream ours;
    const Handle handle = make_handle();
    const auto refused = [](fa_status_t status, fa_handle_t by) {
        const std::string error = fa_last_error(by);
        EXPECT_EQ(status, FA_INVALID_ARGUMENT);
        EXPECT_NE(error.find("of another device: expected one of device 0"), std::string::npos) << error;
    };
    for (const auto& call : one_of_each(handle)) {
        refused(call->enqueue(handle, theirs), handle);
        for (const cudaStream_t taken : {cudaStream_t(ours), cudaStream_t(nullptr), cudaStreamLegacy, cudaStreamPerThread}) {
            ASSERT_EQ(call->enqueue(handle, taken), FA_OK) << call->name() << ": " << handle.error();
            cuda(cudaStreamSynchronize(taken));
            EXPECT_EQ(call->check(), "") << call->name();
        }
        cudaGraph_t graph = nullptr;
        size_t nodes = 0;
        cuda(cudaStreamBeginCapture(ours, cudaStreamCaptureModeGlobal));
        refused(call->enqueue(handle, theirs), handle);
        ASSERT_EQ(call->enqueue(handle, ours), FA_OK) << call->name() << ": " << handle.error();
        cuda(cudaStreamEndCapture(ours, &graph));
        cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
        cuda(cudaGraphDestroy(graph));
        EXPECT_GT(nodes, 0u) << call->name();
    }
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA, info.stream = theirs;
    fa_handle_t none = nullptr;
    refused(fa_create(&none, &info), nullptr);
    EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace test::gpu
