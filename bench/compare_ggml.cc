// Times FLASH_ATTN_EXT by libflashattn beside ggml's own CPU backend: one process, one thread each, calls by turns, random data.
//   compare_ggml BACKEND.so [rounds]      adapters/ggml/test/run builds it
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int64_t kDim = 128, kHeads = 32, kHeadsKv = 8;

struct Call {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
    ggml_cgraph* graph;

    Call(ggml_backend_t cpu, ggml_type type, int64_t rows, int64_t keys)
        : context(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})) {
        ggml_context* const c = context.get();
        ggml_tensor* const q = ggml_new_tensor_3d(c, GGML_TYPE_F32, kDim, rows, kHeads);
        ggml_tensor* const k = ggml_new_tensor_3d(c, type, kDim, keys, kHeadsKv);
        ggml_tensor* const v = ggml_new_tensor_3d(c, type, kDim, keys, kHeadsKv);
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, ggml_flash_attn_ext(c, q, k, v, nullptr, 1 / std::sqrt(float(kDim)), 0, 0));
        memory.reset(ggml_backend_alloc_ctx_tensors(c, cpu));
        std::mt19937 generator(1);
        std::normal_distribution<float> normal;
        for (ggml_tensor* t : {q, k, v}) {
            std::vector<float> values(size_t(ggml_nelements(t)));
            for (float& x : values) x = normal(generator);
            ggml_quantize_chunk(t->type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
        }
    }
    double seconds(ggml_backend_t backend) const {
        const auto start = std::chrono::steady_clock::now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) std::abort();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
};

// Sums of 64-bit words of as many bytes: how fast this core reads them.
double seconds_of_reading(const std::vector<uint64_t>& words) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t sums[8] = {};
    for (size_t n = 0; n + 8 <= words.size(); n += 8)
        for (size_t i = 0; i < 8; i++) sums[i] += words[n + i];
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    volatile uint64_t used = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
    (void)used;
    return seconds;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) return fprintf(stderr, "compare_ggml BACKEND.so [rounds]\n"), 2;
    const int rounds = count > 2 ? std::max(1, atoi(words[2])) : 7;
    const ggml_backend_reg_t registered = ggml_backend_load(words[1]);
    if (!registered) return fprintf(stderr, "%s is not loaded\n", words[1]), 1;
    const ggml_backend_ptr ours(ggml_backend_init_by_name("FLASHATTN", nullptr)), cpu(ggml_backend_cpu_init());
    if (!ours) return fprintf(stderr, "there is no device FLASHATTN\n"), 1;
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    reinterpret_cast<void (*)(ggml_backend_t, int)>(ggml_backend_reg_get_proc_address(registered, "ggml_backend_set_n_threads"))(ours.get(),
                                                                                                                                 1);

    printf("%s\n32 heads, 8 of k and v, dim 128, f32 queries; medians of %d rounds by turns, 1 thread\n",
           ggml_backend_dev_description(ggml_backend_get_device(ours.get())), rounds);
    printf("%-6s %6s %6s %12s %12s %14s %18s\n", "type", "rows", "keys", "here, ms", "ggml, ms", "ggml ÷ here", "reading ÷ here");
    for (const auto& [rows, keys] : {std::pair<int64_t, int64_t>{1, 16384}, {512, 512}, {512, 4096}})
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
            const Call call(cpu.get(), type, rows, keys);
            const std::vector<uint64_t> bytes(2 * size_t(keys * kHeadsKv) * ggml_row_size(type, kDim) / 8, 1);
            std::vector<double> here, theirs, reading;
            call.seconds(ours.get()), call.seconds(cpu.get()), seconds_of_reading(bytes);
            for (int round = 0; round < rounds; round++) {
                here.push_back(call.seconds(ours.get()));
                theirs.push_back(call.seconds(cpu.get()));
                reading.push_back(seconds_of_reading(bytes));
            }
            printf("%-6s %6d %6d %12.3f %12.3f %14.2f", ggml_type_name(type), int(rows), int(keys), 1e3 * median(here),
                   1e3 * median(theirs), median(theirs) / median(here));
            if (rows == 1) printf(" %16.2f", median(reading) / median(here));
            printf("\n"), fflush(stdout);
        }
    return 0;
}
