// What a serving engine pays for calls as such: the CPU time of one, beside a bare launch; and the device's time for appending one token to
// each of 64 sequences, beside an empty kernel's, both as nodes of a graph. Medians of rounds.
//   fa_bench_calls [RESULTS.json]
#include <cuda_runtime.h>
#include <flashattn.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 101;

__global__ void empty() {}

void cuda(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

fa_handle_t handle;

void must(fa_status_t status) {
    if (status == FA_OK) return;
    std::fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle));
    std::exit(1);
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

template <class T>
T* device(size_t count, int byte = 0) {
    void* p;
    cuda(cudaMalloc(&p, count * sizeof(T)));
    cuda(cudaMemset(p, byte, count * sizeof(T)));
    return static_cast<T*>(p);
}

// Microseconds of CPU time of one call. Bursts are short, so that no queue fills up, and the device is idle when one begins.
double cpu_time(cudaStream_t stream, const std::function<void()>& call) {
    constexpr int kBurst = 50;
    std::vector<double> times;
    for (int round = 0; round < kRounds; round++) {
        cuda(cudaStreamSynchronize(stream));
        const auto begin = std::chrono::steady_clock::now();
        for (int n = 0; n < kBurst; n++) call();
        times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kBurst);
    }
    cuda(cudaStreamSynchronize(stream));
    return median(times);
}

// Microseconds of the device for one call, in a graph of many.
double device_time(cudaStream_t stream, const std::function<void()>& call) {
    constexpr int kNodes = 100;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    cuda(cudaEventCreate(&begin));
    cuda(cudaEventCreate(&end));
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int n = 0; n < kNodes; n++) call();
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> times;
    for (int round = 0; round < kRounds; round++) {
        float milliseconds = 0;
        cuda(cudaEventRecord(begin, stream));
        cuda(cudaGraphLaunch(exec, stream));
        cuda(cudaEventRecord(end, stream));
        cuda(cudaEventSynchronize(end));
        cuda(cudaEventElapsedTime(&milliseconds, begin, end));
        if (round > 0) times.push_back(milliseconds * 1e3 / kNodes);
    }
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaEventDestroy(begin));
    cuda(cudaEventDestroy(end));
    return median(times);
}

// A cache of 64 sequences, bf16, 8 heads of 128, plain or in pages of 64.
struct Cache {
    static constexpr int64_t kBatch = 64, kHeads = 8, kHeadsQ = 32, kDim = 128, kKeys = 4096, kPage = 64;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    fa_forward_args_t attend = FA_FORWARD_ARGS_INIT;

    Cache(bool paged, cudaStream_t stream) {
        d.q_dtype = FA_BF16, d.batch = kBatch, d.heads_q = kHeadsQ, d.heads_k = kHeads, d.seqlen_q = 1, d.seqlen_k = kKeys, d.dim_qk = kDim;
        d.operands = FA_OPERAND_SEQUSED_K;
        const size_t elements = size_t(kBatch) * kKeys * kHeads * kDim, token = size_t(kBatch) * kHeads * kDim;
        std::vector<int32_t> used(kBatch, int32_t(kKeys / 2)), table(size_t(kBatch * kKeys / kPage));
        for (size_t n = 0; n < table.size(); n++) table[n] = int32_t(n * 17 % table.size());  // an odd factor: every page once
        append.k_new = device<uint16_t>(token), append.v_new = device<uint16_t>(token), append.seqlen_new = 1;
        attend.k = append.k = device<uint16_t>(elements), attend.v = append.v = device<uint16_t>(elements);
        attend.q = device<uint16_t>(size_t(kBatch) * kHeadsQ * kDim), attend.o = device<uint16_t>(size_t(kBatch) * kHeadsQ * kDim);
        int32_t* lengths = device<int32_t>(used.size());
        cuda(cudaMemcpy(lengths, used.data(), used.size() * 4, cudaMemcpyHostToDevice));
        append.seqused_k = attend.seqused_k = lengths;
        if (paged) {
            d.operands |= FA_OPERAND_PAGE_TABLE;
            d.page_size = kPage, d.num_pages = int64_t(table.size());
            int32_t* pages = device<int32_t>(table.size());
            cuda(cudaMemcpy(pages, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
            append.page_table = attend.page_table = pages;
        }
        must(fa_workspace_size(handle, &d, FA_OP_FORWARD, &attend.workspace_size));
        if (attend.workspace_size > 0) attend.workspace = device<char>(attend.workspace_size);
        append.flags = attend.flags = FA_ARGS_STREAM;
        append.stream = attend.stream = stream;
    }
};

// A forward of a few rows, which hardly occupies the device. With a fixed split size no cluster folds the splits, but a second kernel.
struct Small {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    Small(cudaStream_t stream, int num_splits, int64_t split_size = 0) {
        d.q_dtype = FA_BF16, d.batch = 1, d.heads_q = 8, d.heads_k = 8, d.seqlen_q = 1, d.seqlen_k = 256, d.dim_qk = 64;
        d.num_splits = num_splits, d.split_size = split_size;
        a.q = device<uint16_t>(8 * 64), a.o = device<uint16_t>(8 * 64);
        a.k = device<uint16_t>(256 * 8 * 64), a.v = device<uint16_t>(256 * 8 * 64);
        must(fa_workspace_size(handle, &d, FA_OP_FORWARD, &a.workspace_size));
        if (a.workspace_size > 0) a.workspace = device<char>(a.workspace_size);
        a.flags = FA_ARGS_STREAM;
        a.stream = stream;
    }
};

}  // namespace

int main(int argc, char** argv) {
    cudaStream_t stream;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA;
    if (fa_create(&handle, &info) != FA_OK) return std::fprintf(stderr, "%s\n", fa_last_error(nullptr)), 1;
    const Small whole(stream, 1), cluster(stream, 2), splits(stream, 0, 128);
    const Cache plain(false, stream), paged(true, stream);
    const auto launch = [&] { empty<<<128, 128, 0, stream>>>(); };
    const auto forward = [](const auto& call) { return [&call] { must(fa_forward_ex(handle, &call.d, &call.a)); }; };
    const auto append = [](const Cache& cache) { return [&cache] { must(fa_append_kv(handle, &cache.d, &cache.append)); }; };

    std::string json;
    const auto report = [&](const char* name, double microseconds, double floor) {
        std::printf("%-44s %6.2f us  %5.2f x\n", name, microseconds, microseconds / floor);
        json += (json.empty() ? "" : ",\n") + ("  \"" + std::string(name) + "\": " + std::to_string(microseconds));
    };
    const double bare = cpu_time(stream, launch), node = device_time(stream, launch);
    report("cpu, bare launch", bare, bare);
    report("cpu, forward in one kernel", cpu_time(stream, forward(whole)), bare);
    report("cpu, forward in splits, a cluster", cpu_time(stream, forward(cluster)), bare);
    report("cpu, forward in splits, two kernels", cpu_time(stream, forward(splits)), bare);
    report("cpu, append_kv", cpu_time(stream, append(plain)), bare);
    report("cpu, append_kv over pages", cpu_time(stream, append(paged)), bare);
    report("device, empty kernel in a graph", node, node);
    report("device, append_kv in a graph", device_time(stream, append(plain)), node);
    report("device, append_kv over pages in a graph", device_time(stream, append(paged)), node);
    fa_destroy(handle);
    if (argc > 1) {
        std::FILE* file = std::fopen(argv[1], "w");
        if (!file) return std::perror(argv[1]), 1;
        std::fprintf(file, "{\n%s\n}\n", json.c_str());
        std::fclose(file);
    }
}
