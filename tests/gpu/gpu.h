// What the tests of this room share: the CUDA runtime's objects as values, handles on device memory, and calls whose tensors exist twice,
// on the host for the oracle and on the device for the library.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include "gpu/kernels.h"
#include "support/backward_case.h"
#include "support/shaped.h"
#include "support/writes.h"

namespace test::gpu {

inline void cuda(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA runtime: ") + cudaGetErrorString(status));
}

// Whole words of 8 bytes: a copy to shared memory of a word's first three bytes, or seven, which says how many it reads, the sanitizers
// take for one of the whole word. Behind the bytes it has kPoison, which is no number in what is copied so, factors.
class Memory {
  public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        const int64_t whole = (bytes + 7) / 8 * 8;
        cuda(cudaMalloc(&data_, size_t(whole)));
        if (whole > bytes) cuda(cudaMemset(as<char>() + bytes, kPoison, size_t(whole - bytes)));
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory() { cudaFree(data_); }
    template <class T = void>
    T* as() const {
        return static_cast<T*>(data_);
    }
    int64_t bytes() const { return bytes_; }

  private:
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

class Stream {
  public:
    Stream() { cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() { cudaStreamDestroy(stream_); }
    operator cudaStream_t() const { return stream_; }
    void wait() const { cuda(cudaStreamSynchronize(stream_)); }

  private:
    cudaStream_t stream_ = nullptr;
};

// What `enqueue` puts into a stream, captured. In the first mode, allocating or waiting, by any thread, is an error.
class Graph {
  public:
    Graph(cudaStream_t stream, const std::function<void()>& enqueue, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal);
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph() { cudaGraphExecDestroy(exec_); }
    void replay(cudaStream_t stream) const { cuda(cudaGraphLaunch(exec_, stream)); }

  private:
    cudaGraphExec_t exec_ = nullptr;
};

// Work that ends when the host says so, or after 20 seconds by itself.
class Gate {
  public:
    Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    ~Gate();
    void close(cudaStream_t stream) { launch_gate(state_, stream); }
    void open() { state_->open = 1; }
    bool expired() const { return state_->expired != 0; }

  private:
    GateState* state_ = nullptr;
};

// Every test of this room: skipped, with the reason, where CUDA is not usable.
class Gpu : public testing::Test {
  protected:
    void SetUp() override;
};

bool has_less_shared_memory();  // than the device: FLASHATTN_MAX_SHARED is set, and not all kernels fit
bool has_hopper_kernels();      // those that a Hopper alone has, if the module was built with them
// How many calls of each kernel a test has at most: under the sanitizers FA_CASES=n leaves it n, if it would have more.
int most_cases(int otherwise = 1 << 30);
Handle make_handle(int32_t memory = FA_MEMORY_DEVICE, int device = 0, cudaStream_t stream = nullptr);

// An args struct with pointers to host memory, and the same call with pointers to copies in device memory.
template <class Args>
class Moved {
  public:
    Args host, device;
    explicit Moved(const Args& args) : host(args), device(args) {}

    template <class T>
    void part(T* Args::* pointer, int64_t bytes, bool output = false) {
        if (!(host.*pointer) || bytes == 0) return;
        parts_.push_back({Memory(bytes), const_cast<void*>(static_cast<const void*>(host.*pointer)), output});
        device.*pointer = static_cast<T*>(parts_.back().memory.as());
    }
    void part(size_t pointer, int64_t bytes, bool output = false) {  // by its place in the args
        void* from;
        memcpy(&from, reinterpret_cast<const char*>(&host) + pointer, sizeof from);
        if (!from || bytes == 0) return;
        parts_.push_back({Memory(bytes), from, output});
        void* const to = parts_.back().memory.as();
        memcpy(reinterpret_cast<char*>(&device) + pointer, &to, sizeof to);
    }
    // Moves an input into memory that others share: `count` rows of `bytes`, `pitch` apart there as here, the first `at` bytes from its
    // begin.
    template <class T>
    void interleave(T* Args::* pointer, const Memory& shared, int64_t at, int64_t pitch, int64_t bytes, int64_t count) {
        char* const to = shared.as<char>() + at;
        rows_.push_back({host.*pointer, to, size_t(pitch), size_t(bytes), size_t(count)});
        device.*pointer = reinterpret_cast<T*>(to);
    }
    void keep(Memory memory) { kept_.push_back(std::move(memory)); }
    void upload() {
        for (const Part& p : parts_) cuda(cudaMemcpy(p.memory.as(), p.host, size_t(p.memory.bytes()), cudaMemcpyHostToDevice));
        for (const Rows& r : rows_) cuda(cudaMemcpy2D(r.to, r.pitch, r.host, r.pitch, r.bytes, r.count, cudaMemcpyHostToDevice));
        cuda(cudaDeviceSynchronize());
    }
    void fetch() {
        for (const Part& p : parts_)
            if (p.output) cuda(cudaMemcpy(p.host, p.memory.as(), size_t(p.memory.bytes()), cudaMemcpyDeviceToHost));
    }

  private:
    struct Part {
        Memory memory;
        void* host;
        bool output;
    };
    struct Rows {
        const void* host;
        char* to;
        size_t pitch, bytes, count;
    };
    std::vector<Part> parts_;
    std::vector<Rows> rows_;
    std::vector<Memory> kept_;
};

Moved<fa_forward_args_t> moved(const Case& test_case);

// A backward and its forward, whose o and LSE go up with the other inputs.
class MovedBackward : public Moved<fa_backward_args_t> {
  public:
    explicit MovedBackward(const BackwardCase& backward);
    MovedBackward(const MovedBackward&) = delete;  // device.forward points into this object
    void upload() {
        forward_.upload();
        Moved::upload();
    }

  private:
    Moved<fa_forward_args_t> forward_;
};

// Makes a case ready: bound and filled, with the o and LSE of a forward by `handle`, which takes host memory.
BackwardCase differentiable(const Handle& handle, Case test_case, Rng& rng, bool with_dlse = false);
// What a GPU rounds on its way.
oracle::Products gpu_products(const BackwardCase& backward);

// One call of the library with device memory and a workspace of its own, whose tensors keep their addresses.
class Call {
  public:
    virtual ~Call() = default;
    virtual const char* name() const = 0;
    virtual fa_status_t enqueue(fa_handle_t handle, cudaStream_t stream) = 0;
    // New values in everything that is read from device memory, lengths and page tables too; outputs poisoned.
    virtual void change() = 0;
    // Fetches what the call wrote: "" when the oracle agrees.
    virtual std::string check() = 0;
    // What check() fetched.
    virtual std::vector<unsigned char> output() const = 0;
};

// forward (paged, quantised, split, with dropout; packed), backward, merge, append, rotary, convert. handle: says how large workspaces must
// be, and loads the kernels of the calls that have one; NULL: more than they need.
std::vector<std::unique_ptr<Call>> one_of_each(fa_handle_t handle);
std::unique_ptr<Call> forward_call(fa_handle_t handle, uint64_t seed);
std::unique_ptr<Call> packed_call(fa_handle_t handle, uint64_t seed);
std::unique_ptr<Call> merge_call(uint64_t seed);  // has no workspace

// "" when both are the same, else how they differ.
std::string compare_bits(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b);

// Against the oracle, by the rules of the kernel that took `ran`, which the oracle may know as another descriptor.
std::string check_device_output(const Handle& handle, Case& test_case, const fa_attention_desc_t& ran, int64_t row_step = 1);

}  // namespace test::gpu
