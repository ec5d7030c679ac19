// The CPU's f32 forward beside the peak of its fused multiply-add units: both measured in one process, in turn, as the median of rounds.
// One thread's peak is of registers alone (20 independent chains); several threads' is all of them at once.
#include <flashattn.h>
#include <omp.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
    return x[x.size() / 2];
}

struct Isa {
    int32_t id;
    const char* name;
    int lanes;
    void (*chains)(long);  // so many times `per_turn` independent multiply-adds; NULL where none is written
    int per_turn;
};

#if defined(__x86_64__)
// Zeroed first: what a register held before could be a subnormal, which slows the unit down.
__attribute__((target("avx512f"))) void chains_avx512(long n) {
    asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,30,31\n vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r\n .endr" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                       "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm30", "xmm31");
    for (long i = 0; i < n; i++)
        asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n vfmadd231ps %%zmm30,%%zmm31,%%zmm\\r\n .endr" ::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                           "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm30", "xmm31");
}
__attribute__((target("avx2,fma"))) void chains_avx2(long n) {
    asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,14,15\n vpxor %%ymm\\r,%%ymm\\r,%%ymm\\r\n .endr" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
    for (long i = 0; i < n; i++)
        asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n vfmadd231ps %%ymm14,%%ymm15,%%ymm\\r\n .endr" ::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
}
const Isa kIsas[] = {{FA_ISA_AVX512, "avx512", 16, chains_avx512, 20}, {FA_ISA_AVX2, "avx2", 8, chains_avx2, 12}};
#else
const Isa kIsas[] = {{FA_ISA_GENERIC, "generic", 4, nullptr, 0}};
#endif

// GFLOP/s of all threads together.
double peak(const Isa& isa, int threads) {
    constexpr long turns = 400000;
    if (!isa.chains) return 0;
    double slowest = 0;
#pragma omp parallel num_threads(threads) reduction(max : slowest)
    {
        const auto begin = Clock::now();
        isa.chains(turns);
        slowest = seconds_since(begin);
    }
    return double(threads) * turns * isa.per_turn * isa.lanes * 2 / slowest / 1e9;
}

struct Shape {
    int64_t heads, n, dim;
    bool causal;
};

struct Data {
    std::vector<float> q, k, v, o;
    explicit Data(const Shape& s) : q(size_t(s.heads * s.n * s.dim)), k(q), v(q), o(q) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        for (auto* x : {&q, &k, &v})
            for (float& e : *x) e = normal(random);
    }
};

// GFLOP/s of one call.
double forward(fa_handle_t handle, const Shape& s, Data& data) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 1, d.heads_q = s.heads, d.seqlen_q = d.seqlen_k = s.n, d.dim_qk = s.dim;
    if (s.causal) d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_BOTTOM_RIGHT;
    const auto begin = Clock::now();
    if (fa_forward(handle, &d, data.q.data(), data.k.data(), data.v.data(), data.o.data()) != FA_OK) {
        std::fprintf(stderr, "%s\n", fa_last_error(handle));
        std::exit(1);
    }
    return 4.0 * double(s.heads * s.n * s.n * s.dim) / (s.causal ? 2 : 1) / seconds_since(begin) / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"f32 forward on the CPU beside the peak of its multiply-add units"};
    int rounds = 11, threads = 1;
    int64_t n = 2048, heads = 4;
    std::string json;
    app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
    app.add_option("--threads", threads)->check(CLI::PositiveNumber);
    app.add_option("--n", n, "rows and keys")->check(CLI::PositiveNumber);
    app.add_option("--heads", heads)->check(CLI::PositiveNumber);
    app.add_option("--json", json, "file for the results");
    CLI11_PARSE(app, argc, argv);

    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    fa_handle_t handle;
    fa_device_info_t device = {};
    device.struct_size = sizeof device;
    if (fa_create(&handle, &info) != FA_OK || fa_device_info(FA_BACKEND_CPU, 0, &device) != FA_OK) return 1;
    fa_set_i64(handle, FA_PARAM_THREADS, threads);
    nlohmann::json rows = nlohmann::json::array();
    std::printf("%-8s %4s %6s %7s %10s %8s %6s\n", "isa", "dim", "n", "mask", "GFLOP/s", "peak", "share");
    for (const Isa& isa : kIsas) {
        if (fa_set_i64(handle, FA_PARAM_MAX_ISA, isa.id) != FA_OK) continue;
        for (const int64_t dim : {64, 128})
            for (const bool causal : {false, true}) {
                const Shape shape{heads, n, dim, causal};
                Data data(shape);
                forward(handle, shape, data);
                std::vector<double> rate, ceiling, share;
                for (int r = 0; r < rounds; r++) {
                    ceiling.push_back(peak(isa, threads));
                    rate.push_back(forward(handle, shape, data));
                    share.push_back(rate.back() / ceiling.back());
                }
                std::printf("%-8s %4lld %6lld %7s %10.1f %8.1f %5.1f%%\n", isa.name, (long long)dim, (long long)n, causal ? "causal" : "dense",
                            median(rate), median(ceiling), 100 * median(share));
                rows.push_back({{"isa", isa.name}, {"dim", dim}, {"n", n}, {"heads", heads}, {"causal", causal}, {"threads", threads},
                                {"gflops", median(rate)}, {"peak_gflops", median(ceiling)}, {"share", median(share)}});
            }
    }
    fa_destroy(handle);
    if (!json.empty()) std::ofstream(json) << nlohmann::json{{"cpu", device.name}, {"rounds", rounds}, {"forward_f32", rows}}.dump(1) << "\n";
}
