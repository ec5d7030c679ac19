// FLASH_ATTN_EXT by libflashattn, on the CPU and on a GPU if there is one, against ggml's own CPU backend, call by call, and as ggml's
// scheduler divides a graph between the two.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Shape {
    int64_t dim_qk, dim_v, heads_q, heads_k, rows, keys, batch;
};
struct Options {
    bool mask = false, sinks = false, permuted = false;
    float softcap = 0, max_bias = 0;
    int64_t mask_heads = 1;
};

int faults = 0, compared = 0, refused = 0;
#define EXPECT(condition, ...)                                              \
    do {                                                                    \
        if (!(condition)) faults++, printf("FAIL: " __VA_ARGS__), puts(""); \
    } while (0)

// A graph: q, which is first doubled by the CPU backend, its attention, and the sum of that with itself.
struct Graph {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr cache;  // k and v, where they lie in a GPU's memory
    ggml_cgraph* graph;
    ggml_tensor *q, *k, *v, *mask = nullptr, *sinks = nullptr, *attention, *out;

    Graph(const Shape& s, ggml_type k_type, ggml_type v_type, const Options& o)
        : context(ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})) {
        ggml_context* const c = context.get();
        const auto tensor = [&](ggml_type type, int64_t dim, int64_t rows, int64_t heads) {
            return ggml_new_tensor_4d(c, type, dim, o.permuted ? heads : rows, o.permuted ? rows : heads, s.batch);
        };
        const auto ordered = [&](ggml_tensor* t) { return o.permuted ? ggml_permute(c, t, 0, 2, 1, 3) : t; };
        q = tensor(GGML_TYPE_F32, s.dim_qk, s.rows, s.heads_q);
        k = tensor(k_type, s.dim_qk, s.keys, s.heads_k);
        v = tensor(v_type, s.dim_v, s.keys, s.heads_k);
        if (o.mask) mask = ggml_new_tensor_4d(c, GGML_TYPE_F16, s.keys, s.rows, o.mask_heads, s.batch);
        if (o.sinks) sinks = ggml_new_tensor_1d(c, GGML_TYPE_F32, s.heads_q);
        attention = ggml_flash_attn_ext(c, ordered(ggml_scale(c, q, 2)), ordered(k), ordered(v), mask, 1 / std::sqrt(float(s.dim_qk)),
                                        o.max_bias, o.softcap);
        if (sinks) ggml_flash_attn_ext_add_sinks(attention, sinks);
        out = ggml_add(c, attention, attention);
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, out);
    }

    void put_cache_in(ggml_backend_buffer_type_t type) {
        const size_t align = ggml_backend_buft_get_alignment(type);
        cache.reset(ggml_backend_buft_alloc_buffer(type, ggml_nbytes(k) + ggml_nbytes(v) + 2 * align));
        ggml_tallocr allocator = ggml_tallocr_new(cache.get());
        for (ggml_tensor* t : {k, v}) EXPECT(ggml_tallocr_alloc(&allocator, t) == GGML_STATUS_SUCCESS, "the cache has no memory");
    }

    void fill(unsigned seed) const {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal;
        for (ggml_tensor* t : {q, k, v, sinks}) {
            if (!t) continue;
            std::vector<float> values(size_t(ggml_nelements(t)));
            for (float& x : values) x = normal(generator);
            std::vector<char> bytes(ggml_nbytes(t));
            ggml_quantize_chunk(t->type, values.data(), bytes.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
            ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
        }
        if (!mask) return;
        std::vector<ggml_fp16_t> values(size_t(ggml_nelements(mask)));
        for (size_t n = 0; n < values.size(); n++) values[n] = ggml_fp32_to_fp16(generator() % 3 ? 0.5f * normal(generator) : -INFINITY);
        ggml_backend_tensor_set(mask, values.data(), 0, values.size() * sizeof values[0]);
    }
};

// By ggml's scheduler; where: the backend that the attention ran on. A cache in a GPU's memory is there before.
std::vector<float> computed(Graph g, const std::vector<ggml_backend_t>& backends, unsigned seed, const char** where) {
    ggml_backend_sched_ptr sched(
        ggml_backend_sched_new(const_cast<ggml_backend_t*>(backends.data()), nullptr, int(backends.size()), 256, false, true));
    const ggml_backend_buffer_type_t memory = ggml_backend_get_default_buffer_type(backends[0]);
    if (!ggml_backend_buft_is_host(memory) && ggml_backend_supports_op(backends[0], g.attention)) {
        g.put_cache_in(memory);
        ggml_backend_sched_set_tensor_backend(sched.get(), g.attention, backends[0]);
    }
    for (ggml_tensor* t : {g.q, g.k, g.v, g.mask, g.sinks})
        if (t) ggml_set_input(t);
    ggml_set_output(g.out);
    EXPECT(ggml_backend_sched_alloc_graph(sched.get(), g.graph), "the graph has no memory");
    g.fill(seed);
    EXPECT(ggml_backend_sched_graph_compute(sched.get(), g.graph) == GGML_STATUS_SUCCESS, "the graph is not computed");
    *where = ggml_backend_name(ggml_backend_sched_get_tensor_backend(sched.get(), g.attention));
    std::vector<float> out(size_t(ggml_nelements(g.out)));
    ggml_backend_tensor_get(g.out, out.data(), 0, out.size() * sizeof out[0]);
    return out;
}

struct Pair {
    ggml_backend_ptr ours, cpu;

    void compare(const Shape& s, ggml_type k_type, ggml_type v_type, const Options& o, bool ours_computes = true) const {
        char name[256];
        snprintf(name, sizeof name,
                 "%s %s, dims %d %d, heads %d %d, %d rows, %d keys, batch %d, mask %d, sinks %d, permuted %d, softcap %g, max_bias %g",
                 ggml_type_name(k_type), ggml_type_name(v_type), int(s.dim_qk), int(s.dim_v), int(s.heads_q), int(s.heads_k), int(s.rows),
                 int(s.keys), int(s.batch), o.mask, o.sinks, o.permuted, double(o.softcap), double(o.max_bias));
        const unsigned seed = unsigned(compared + 1);
        const char *ours_at, *cpu_at;
        const std::vector<float> got = computed(Graph(s, k_type, v_type, o), {ours.get(), cpu.get()}, seed, &ours_at);
        const std::vector<float> want = computed(Graph(s, k_type, v_type, o), {cpu.get()}, seed, &cpu_at);
        EXPECT(strcmp(ours_at, ours_computes ? ggml_backend_name(ours.get()) : "CPU") == 0, "%s ran on %s", name, ours_at);
        double error = 0, norm = 0;
        for (size_t n = 0; n < want.size(); n++) error += std::pow(double(got[n]) - want[n], 2), norm += std::pow(double(want[n]), 2);
        // ggml's bound of its own backends: it rounds q to the type of k, and sums over f16 values in f16.
        EXPECT(error <= 5e-4 * norm && std::isfinite(norm), "%s: error %g of norm %g", name, error, norm);
        ours_computes ? compared++ : refused++;
    }
};

constexpr ggml_type kTypes[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1};

void compare_all(const Pair& pair, const std::vector<int64_t>& dims) {
    for (const ggml_type type : kTypes)
        for (const int64_t dim : dims)
            for (const int64_t rows : {1, 3, 35})
                for (const bool permuted : {false, true})
                    for (const bool mask : {false, true})
                        pair.compare({dim, dim, 8, 2, rows, 113, 2}, type, type, {mask, rows == 3, permuted, rows == 35 ? 10.f : 0.f});
    for (const ggml_type k_type : kTypes)
        for (const ggml_type v_type : {GGML_TYPE_F16, GGML_TYPE_Q8_0}) pair.compare({96, 64, 4, 4, 5, 77, 1}, k_type, v_type, {true});
    pair.compare({72, 40, 6, 3, 9, 50, 1}, GGML_TYPE_F16, GGML_TYPE_F16, {true, true});
    pair.compare({576, 512, 16, 1, 2, 300, 1}, GGML_TYPE_F16, GGML_TYPE_F16, {true});
    pair.compare({64, 64, 1, 1, 1, 1, 1}, GGML_TYPE_F32, GGML_TYPE_F32, {});
    for (const int64_t heads : {1, 4, 6})
        for (const float max_bias : {0.f, 8.f, 4.f})
            for (const int64_t mask_heads : {int64_t(1), heads / 2, heads})
                if (mask_heads > 0)
                    pair.compare({64, 64, heads, heads, 5, 40, 2}, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                 {true, true, false, 0, max_bias, mask_heads});
    // What is not ours stays ggml's.
    pair.compare({64, 64, 4, 4, 5, 40, 1}, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_NL, {true}, false);
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) return fprintf(stderr, "flashattn_ggml_test BACKEND.so [BACKEND.so, of another ggml …]\n"), 2;
    for (int n = 2; n < count; n++) EXPECT(!ggml_backend_load(words[n]), "%s is loaded", words[n]);
    if (!ggml_backend_load(words[1])) return fprintf(stderr, "%s is not loaded\n", words[1]), 1;
    for (const char* device : {"FLASHATTN", "FLASHATTN_GPU"}) {
        const Pair pair{ggml_backend_ptr(ggml_backend_init_by_name(device, nullptr)), ggml_backend_ptr(ggml_backend_cpu_init())};
        if (!pair.ours && strcmp(device, "FLASHATTN") == 0) return fprintf(stderr, "there is no device FLASHATTN\n"), 1;
        if (!pair.ours) continue;
        printf("%s\n", ggml_backend_dev_description(ggml_backend_get_device(pair.ours.get())));
        compare_all(pair, {64, 128, 256});
        printf("%s: %d calls compared, %d left to ggml, %d faults\n", device, compared, refused, faults);
        compared = refused = 0;
    }
    return faults ? 1 : 0;
}
