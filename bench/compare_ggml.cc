// Times FLASH_ATTN_EXT by libflashattn beside ggml's own CPU backend: one process, one thread each, calls by turns, random data. With a
// type it times that alone, of few rows.
//   compare_ggml BACKEND.so [rounds [type]]      adapters/ggml/test/run builds it
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
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int64_t kDim = 128, kHeads = 32, kHeadsKv = 8;

// Which keys a mask leaves a row, as the masks of ggml say it: f16, 0 or −inf.
enum class Mask { none, all, eighth, scattered, own_eighths };
constexpr const char* kMasks[] = {"no mask", "hides nothing", "leaves an eighth", "every eighth key", "own eighths"};
bool keeps(Mask mask, int64_t row, int64_t key, int64_t keys) {
    switch (mask) {
        case Mask::eighth: return key * 8 / keys == 5;
        case Mask::scattered: return key % 8 == 3;
        case Mask::own_eighths: return key * 8 / keys == row;
        default: return true;
    }
}

struct Call {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
    ggml_cgraph* graph;

    Call(ggml_backend_t cpu, ggml_type type, int64_t rows, int64_t keys, Mask mask)
        : context(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})) {
        ggml_context* const c = context.get();
        ggml_tensor* const q = ggml_new_tensor_3d(c, GGML_TYPE_F32, kDim, rows, kHeads);
        ggml_tensor* const k = ggml_new_tensor_3d(c, type, kDim, keys, kHeadsKv);
        ggml_tensor* const v = ggml_new_tensor_3d(c, type, kDim, keys, kHeadsKv);
        ggml_tensor* const m = mask == Mask::none ? nullptr : ggml_new_tensor_2d(c, GGML_TYPE_F16, keys, rows);
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, ggml_flash_attn_ext(c, q, k, v, m, 1 / std::sqrt(float(kDim)), 0, 0));
        memory.reset(ggml_backend_alloc_ctx_tensors(c, cpu));
        std::mt19937 generator(1);
        std::normal_distribution<float> normal;
        for (ggml_tensor* t : {q, k, v}) {
            std::vector<float> values(size_t(ggml_nelements(t)));
            for (float& x : values) x = normal(generator);
            ggml_quantize_chunk(t->type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
        }
        for (int64_t n = 0; m && n < rows * keys; n++)
            static_cast<ggml_fp16_t*>(m->data)[n] = keeps(mask, n / keys, n % keys, keys) ? 0 : 0xfc00;
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
    if (count < 2) return fprintf(stderr, "compare_ggml BACKEND.so [rounds [type]]\n"), 2;
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
    printf("%-6s %5s %6s  %-16s %10s %10s %12s %15s\n", "type", "rows", "keys", "mask", "here, ms", "ggml, ms", "ggml ÷ here",
           "reading ÷ here");
    const struct {
        int64_t rows, keys;
        Mask mask;
    } shapes[] = {{1, 16384, Mask::none},       {512, 512, Mask::none},      {512, 4096, Mask::none},    {1, 4096, Mask::none},
                  {1, 4096, Mask::all},         {1, 4096, Mask::eighth},     {1, 4096, Mask::scattered}, {1, 16384, Mask::all},
                  {1, 16384, Mask::eighth},     {1, 16384, Mask::scattered}, {8, 4096, Mask::all},       {8, 4096, Mask::own_eighths},
                  {8, 16384, Mask::own_eighths}};
    for (const auto& [rows, keys, mask] : shapes)
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
            if (count > 3 && (strcmp(words[3], ggml_type_name(type)) != 0 || rows > 8)) continue;
            const Call call(cpu.get(), type, rows, keys, mask);
            const std::vector<uint64_t> bytes(2 * size_t(keys * kHeadsKv) * ggml_row_size(type, kDim) / 8, 1);
            std::vector<double> here, theirs, reading;
            call.seconds(ours.get()), call.seconds(cpu.get()), seconds_of_reading(bytes);
            for (int round = 0; round < rounds; round++) {
                here.push_back(call.seconds(ours.get()));
                theirs.push_back(call.seconds(cpu.get()));
                reading.push_back(seconds_of_reading(bytes));
            }
            printf("%-6s %5d %6d  %-16s %10.3f %10.3f %10.2f", ggml_type_name(type), int(rows), int(keys), kMasks[int(mask)],
                   1e3 * median(here), 1e3 * median(theirs), median(theirs) / median(here));
            if (rows == 1 && mask < Mask::eighth) printf(" %13.2f", median(reading) / median(here));
            printf("\n"), fflush(stdout);
        }
    return 0;
}
