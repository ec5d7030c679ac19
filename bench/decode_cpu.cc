// Decoding on the CPU beside a plain read of the same keys and values: both in one process, by turns, as medians of rounds. Where a call
// is to come from memory, it rotates through sets of keys and values that no cache holds.
#include <flashattn.h>
#include <omp.h>
#include <sys/mman.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double quantile(std::vector<double> x, double part) {
    std::sort(x.begin(), x.end());
    return x[size_t(part * double(x.size() - 1))];
}

struct Type {
    int32_t id;
    int64_t bytes;
};
const std::map<std::string, Type> kTypes = {{"f32", {FA_F32, 4}}, {"f16", {FA_F16, 2}}, {"bf16", {FA_BF16, 2}},
                                            {"e4m3", {FA_E4M3, 1}}, {"e5m2", {FA_E5M2, 1}}, {"i8", {FA_I8, 1}}};

// Memory in large pages where the system has them, so that neither side waits for page tables.
class Memory {
  public:
    explicit Memory(size_t bytes) : size((bytes + kHuge - 1) / kHuge * kHuge) {
        whole = static_cast<char*>(mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (whole == MAP_FAILED) throw std::bad_alloc();
        at = whole + (kHuge - reinterpret_cast<uintptr_t>(whole) % kHuge) % kHuge;
        madvise(at, size, MADV_HUGEPAGE);
    }
    ~Memory() { munmap(whole, size + kHuge); }
    Memory(const Memory&) = delete;
    char* data() const { return at; }

  private:
    static constexpr size_t kHuge = size_t(2) << 20;
    size_t size;
    char *whole, *at;
};

// Values about 1 in every storage type.
void fill(char* to, size_t bytes, const Type& type) {
    uint64_t state = 88172645463325252ull;
    for (size_t n = 0; n < bytes; n += size_t(type.bytes)) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const float value = float(int(state & 255) - 128) / 64;
        if (type.id == FA_F32) std::memcpy(to + n, &value, 4);
        else if (type.id == FA_BF16) std::memcpy(to + n, reinterpret_cast<const char*>(&value) + 2, 2);
        else if (type.id == FA_F16) to[n] = 0, to[n + 1] = char(0x30 | (state & 0x8b));
        else if (type.id == FA_I8) to[n] = char(int(state & 7) - 4);
        else to[n] = char(state & 0xbb);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void read_wide(const char* from, size_t bytes) {
    for (size_t n = 0; n + 512 <= bytes; n += 512)
        asm volatile(
            "vmovups (%0),%%zmm16\n vmovups 64(%0),%%zmm17\n vmovups 128(%0),%%zmm18\n vmovups 192(%0),%%zmm19\n"
            "vmovups 256(%0),%%zmm20\n vmovups 320(%0),%%zmm21\n vmovups 384(%0),%%zmm22\n vmovups 448(%0),%%zmm23" ::"r"(from + n)
            : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23");
}
#endif
void read_plain(const char* from, size_t bytes) {
    uint64_t sums[8] = {};
    for (size_t n = 0; n + 64 <= bytes; n += 64) {
        uint64_t x[8];
        std::memcpy(x, from + n, 64);
        for (int i = 0; i < 8; i++) sums[i] += x[i];
    }
    asm volatile("" ::"r"(sums) : "memory");
}

void read_all(const char* from, size_t bytes, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const size_t share = bytes / size_t(threads) / 512 * 512;
        const char* const mine = from + share * size_t(omp_get_thread_num());
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f")) read_wide(mine, share);
        else
#endif
            read_plain(mine, share);
    }
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"decoding on the CPU beside a read of the same bytes"};
    int rounds = 11, threads = 1;
    int64_t batch = 1, heads = 32, heads_kv = 8, n = 4096, dim = 128, rows = 1, page = 0;
    double memory = 1;
    bool by_head = false;
    std::string json;
    std::vector<std::string> types = {"bf16"};
    app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
    app.add_option("--threads", threads)->check(CLI::PositiveNumber);
    app.add_option("--batch", batch)->check(CLI::PositiveNumber);
    app.add_option("--heads", heads, "query heads")->check(CLI::PositiveNumber);
    app.add_option("--heads-kv", heads_kv)->check(CLI::PositiveNumber);
    app.add_option("--n", n, "keys")->check(CLI::PositiveNumber);
    app.add_option("--dim", dim)->check(CLI::PositiveNumber);
    app.add_option("--rows", rows, "query rows of a head")->check(CLI::PositiveNumber);
    app.add_option("--page", page, "keys of a page; 0: no pages")->check(CLI::NonNegativeNumber);
    app.add_option("--memory", memory, "GiB of keys and values to rotate through; 0: the same each time");
    app.add_flag("--by-head", by_head, "a head's keys behind one another: [batch][head][key][dim]");
    app.add_option("--type", types, "of keys and values")->check(CLI::IsMember(kTypes));
    app.add_option("--json", json, "file for the results");
    CLI11_PARSE(app, argc, argv);

    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    fa_handle_t handle;
    if (fa_create(&handle, &info) != FA_OK) return 1;
    fa_set_i64(handle, FA_PARAM_THREADS, threads);
    nlohmann::json results = nlohmann::json::array();
    std::printf("%-5s %6s %9s %7s %5s | %9s %9s %9s | %8s\n", "type", "batch", "heads", "n", "dim", "us", "GB/s", "read GB/s", "share");
    for (const std::string& name : types) {
        const Type type = kTypes.at(name);
        const size_t set = size_t(batch * heads_kv * n * dim * type.bytes);  // of k, and again of v
        const size_t sets = std::max<size_t>(1, size_t(memory * double(size_t(1) << 30)) / (2 * set));
        Memory kv(2 * set * sets);
        fill(kv.data(), 2 * set * sets, type);
        std::vector<uint16_t> q(size_t(batch * rows * heads * dim), 0x3f80), o(q);
        for (size_t i = 0; i < q.size(); i++) q[i] = uint16_t(0x3e00 + i * 37 % 256);
        fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
        d.q_dtype = FA_BF16, d.kv_dtype = type.id, d.batch = batch, d.heads_q = heads, d.heads_kv = heads_kv, d.seqlen_q = rows;
        d.seqlen_k = n, d.dim_qk = dim;
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        std::vector<int32_t> table;
        if (page > 0) {
            d.operands |= FA_OPERAND_PAGE_TABLE;
            d.page_size = page, d.num_pages = batch * n / page;
            table.resize(size_t(d.num_pages));
            for (size_t i = 0; i < table.size(); i++) table[i] = int32_t(i * 7919 % table.size());
            a.page_table = table.data();
        } else if (by_head) {
            d.strided = FA_STRIDED_K | FA_STRIDED_V;
            const int64_t stride[4] = {heads_kv * n * dim, dim, n * dim, 1};
            std::copy(stride, stride + 4, d.k_stride), std::copy(stride, stride + 4, d.v_stride);
        }
        a.q = q.data(), a.o = o.data();
        std::vector<double> ours, read, share;
        size_t turn = 0;
        for (int r = -2; r < rounds; r++) {
            // As many calls as take some milliseconds.
            const size_t calls = std::max<size_t>(1, size_t(64e6 / double(2 * set)));
            const size_t first = turn;
            auto begin = Clock::now();
            for (size_t i = 0; i < calls; i++) read_all(kv.data() + (turn++ % sets) * 2 * set, 2 * set, threads);
            const double reading = seconds_since(begin) / double(calls);
            turn = first + (sets > 1 ? sets / 2 : 0);
            begin = Clock::now();
            for (size_t i = 0; i < calls; i++) {
                a.k = kv.data() + (turn++ % sets) * 2 * set;
                a.v = static_cast<const char*>(a.k) + set;
                if (fa_forward_ex(handle, &d, &a) != FA_OK) {
                    std::fprintf(stderr, "%s\n", fa_last_error(handle));
                    return 1;
                }
            }
            const double calling = seconds_since(begin) / double(calls);
            if (r < 0) continue;
            ours.push_back(calling), read.push_back(reading), share.push_back(reading / calling);
        }
        const double bytes = double(2 * set);
        std::printf("%-5s %6lld %4lld/%4lld %7lld %5lld | %9.1f %9.1f %9.1f | %7.1f%% (%.1f-%.1f)\n", name.c_str(), (long long)batch,
                    (long long)heads, (long long)heads_kv, (long long)n, (long long)dim, quantile(ours, .5) * 1e6,
                    bytes / quantile(ours, .5) / 1e9, bytes / quantile(read, .5) / 1e9, 100 * quantile(share, .5), 100 * quantile(share, 0),
                    100 * quantile(share, 1));
        results.push_back({{"type", name}, {"batch", batch}, {"heads", heads}, {"heads_kv", heads_kv}, {"rows", rows}, {"n", n}, {"dim", dim},
                           {"page", page}, {"by_head", by_head}, {"threads", threads}, {"memory", sets > 1}, {"seconds", quantile(ours, .5)},
                           {"bytes", bytes}, {"read_seconds", quantile(read, .5)}, {"share", quantile(share, .5)}});
    }
    fa_destroy(handle);
    if (!json.empty()) std::ofstream(json) << nlohmann::json{{"rounds", rounds}, {"decode", results}}.dump(1) << "\n";
}
