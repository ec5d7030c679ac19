// Causal attention over the GPUs of one host by NCCL, forward and backward, beside the same on one of them: a line of JSON for each method.
//     fa_bench_context_parallel_gpu METHOD RANKS ROWS HEADS HEADS_K DIM [ROUNDS]                   built with -DFA_BENCH=ON -DFA_CUDA=ON
// METHOD: ulysses, all-gather, ring or all; the layout is zigzag, the type bf16, and a rank is a thread with a GPU. Times are those of the slowest
// rank, medians of the rounds, the two passes by themselves. `efficiency` is alone_seconds / (ranks · spread_seconds), where alone_seconds is one
// GPU's time for the whole problem: what the ranks reach of it on as much work each. `error` is the norm of what the first rank's o differs
// by, against that of the one GPU: a method whose o is another's ends the program with a failure.
#include <flashattn_cp_nccl.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kPattern = 1024;   // rows of random values, which repeat
constexpr double kMostError = 0.01;  // of bf16 values that were summed in another order

void must(fa_status_t status, const char* sentence) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), sentence);
    exit(1);
}

class Barrier {
  public:
    explicit Barrier(int threads) : threads_(threads) {}
    void meet() {
        std::unique_lock<std::mutex> lock(mutex_);
        const int64_t round = round_;
        if (++here_ == threads_) {
            here_ = 0;
            round_++;
            all_.notify_all();
        }
        all_.wait(lock, [&] { return round_ != round; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable all_;
    int threads_, here_ = 0;
    int64_t round_ = 0;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Shape {
    int64_t rows, heads, heads_k, dim;
};

fa_attention_desc_t describe(const Shape& s) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16;
    d.operands = FA_OPERAND_LSE;
    d.flags = FA_CAUSAL;
    d.alignment = FA_ALIGN_TOP_LEFT;
    d.batch = 1;
    d.seqlen_q = d.seqlen_k = s.rows;
    d.heads_q = s.heads;
    d.heads_k = s.heads_k;
    d.dim_qk = s.dim;
    return d;
}

// q, k, v, o, LSE and their gradients of some rows of the sequence, on a handle's device.
class Operands {
  public:
    Operands(fa_handle_t handle, const Shape& s, const std::vector<fa_cp_range_t>& ranges) : handle_(handle) {
        for (const fa_cp_range_t& r : ranges) rows_ += r.rows;
        const int64_t q = s.heads * s.dim, k = s.heads_k * s.dim;
        forward.q = filled(ranges, q, 1), forward.k = filled(ranges, k, 2), forward.v = filled(ranges, k, 3);
        forward.o = room(rows_ * q * 2), forward.lse = static_cast<float*>(room(rows_ * s.heads * 4));
        backward.forward = &forward;
        backward.dout = filled(ranges, q, 4);
        backward.dq = room(rows_ * q * 2), backward.dk = room(rows_ * k * 2), backward.dv = room(rows_ * k * 2);
    }
    Operands(const Operands&) = delete;
    Operands& operator=(const Operands&) = delete;
    ~Operands() {
        for (void* p : rooms_) fa_free(handle_, p);
    }
    int64_t rows() const { return rows_; }

    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;

  private:
    fa_handle_t handle_;
    std::vector<void*> rooms_;
    int64_t rows_ = 0;

    void* room(int64_t bytes) {
        void* p = nullptr;
        must(fa_malloc(handle_, uint64_t(std::max<int64_t>(bytes, 1)), &p), fa_last_error(handle_));
        rooms_.push_back(p);
        return p;
    }
    // Row i of the sequence has row i mod kPattern of the values, whoever has it.
    void* filled(const std::vector<fa_cp_range_t>& ranges, int64_t row, uint32_t seed) {
        std::vector<uint16_t> values(size_t(kPattern * row));
        for (uint16_t& value : values) {
            seed = seed * 1664525u + 1013904223u;
            const float f = float(seed >> 8) / float(1 << 23) - 1.f;
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            value = uint16_t(bits >> 16);
        }
        uint16_t* const to = static_cast<uint16_t*>(room(rows_ * row * 2));
        for (const fa_cp_range_t& r : ranges)
            for (int64_t done = 0, n; done < r.rows; done += n) {
                const int64_t from = (r.begin + done) % kPattern;
                n = std::min(kPattern - from, r.rows - done);
                must(fa_copy(handle_, to + (r.local + done) * row, values.data() + from * row, uint64_t(n * row * 2)),
                     fa_last_error(handle_));
            }
        return to;
    }
};

fa_handle_t handle_on(int device) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA;
    info.device = device;
    info.memory = FA_MEMORY_DEVICE;
    fa_handle_t handle;
    must(fa_create(&handle, &info), fa_last_error(nullptr));
    return handle;
}

struct Passes {
    double forward = 0, backward = 0;
};

// One GPU with the whole problem; o of it comes back.
Passes alone(const Shape& s, int rounds, std::vector<uint16_t>* o) {
    const fa_handle_t handle = handle_on(0);
    const fa_attention_desc_t d = describe(s);
    std::vector<double> forward, backward;
    {
        Operands x(handle, s, {{0, 0, s.rows, 0}});
        for (int round = -1; round < rounds; round++) {
            const double begin = now();
            must(fa_forward_ex(handle, &d, &x.forward), fa_last_error(handle));
            must(fa_synchronize(handle), fa_last_error(handle));
            const double middle = now();
            must(fa_backward(handle, &d, &x.backward), fa_last_error(handle));
            must(fa_synchronize(handle), fa_last_error(handle));
            if (round >= 0) forward.push_back(middle - begin), backward.push_back(now() - middle);
        }
        o->resize(size_t(s.rows * s.heads * s.dim));
        must(fa_copy(handle, o->data(), x.forward.o, o->size() * 2), fa_last_error(handle));
    }
    fa_destroy(handle);
    return {median(forward), median(backward)};
}

float widened(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

struct Result {
    std::vector<double> forward, backward;
    std::vector<uint64_t> bytes[2];
    double error = 0;
};

// What a rank's thread does. Every rank writes its times, and the slowest counts.
void run_rank(int rank, int ranks, ncclComm_t comm, int32_t method, const Shape& s, int rounds,
              const std::vector<uint16_t>& whole_o, Barrier* barrier, std::vector<Result>* results) {
    cudaSetDevice(rank);
    const fa_handle_t handle = handle_on(rank);
    fa_cp_transport_t transport;
    must(fa_cp_nccl_open(comm, &transport), "fa_cp_nccl_open");
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp;
    must(fa_cp_create(&cp, handle, &info), fa_cp_last_error(nullptr));
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS;
    spread.layout = FA_CP_LAYOUT_ZIGZAG;
    spread.method = method;
    std::vector<fa_cp_range_t> mine(2);
    int64_t count = 0;
    must(fa_cp_partition(&spread, rank, ranks, nullptr, 1, s.rows, mine.data(), 2, &count), fa_cp_last_error(nullptr));
    mine.resize(size_t(count));
    const fa_attention_desc_t d = describe(s);
    Result& result = (*results)[size_t(rank)];
    {
        Operands x(handle, s, mine);
        for (int round = -1; round < rounds; round++)
            for (int pass = 0; pass < 2; pass++) {
                uint64_t bytes = 0;
                barrier->meet();
                const double begin = now();
                must(pass == 0 ? fa_cp_forward(cp, &d, &spread, &x.forward) : fa_cp_backward(cp, &d, &spread, &x.backward),
                     fa_cp_last_error(cp));
                must(fa_cp_synchronize(cp), fa_cp_last_error(cp));
                const double took = now() - begin;
                fa_cp_traffic(cp, &bytes, nullptr);
                result.bytes[pass].assign(1, bytes);
                if (round >= 0) (pass == 0 ? result.forward : result.backward).push_back(took);
            }
        std::vector<uint16_t> o(size_t(x.rows() * s.heads * s.dim));
        must(fa_copy(handle, o.data(), x.forward.o, o.size() * 2), fa_last_error(handle));
        double off = 0, all = 0;
        const int64_t row = s.heads * s.dim;
        for (const fa_cp_range_t& r : mine)
            for (int64_t i = 0; i < r.rows * row; i++) {
                const double want = widened(whole_o[size_t(r.begin * row + i)]), got = widened(o[size_t(r.local * row + i)]);
                off += (got - want) * (got - want), all += want * want;
            }
        result.error = std::sqrt(off / all);
    }
    must(fa_cp_destroy(cp), "fa_cp_destroy");
    fa_cp_nccl_close(&transport);
    fa_destroy(handle);
}

double slowest(const std::vector<Result>& results, std::vector<double> Result::*times) {
    std::vector<double> rounds = results[0].*times;
    for (const Result& r : results)
        for (size_t i = 0; i < rounds.size(); i++) rounds[i] = std::max(rounds[i], (r.*times)[i]);
    return median(rounds);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 7) {
        fprintf(stderr, "fa_bench_context_parallel_gpu METHOD RANKS ROWS HEADS HEADS_K DIM [ROUNDS]\n");
        return 2;
    }
    const int ranks = atoi(argv[2]), rounds = argc > 7 ? std::max(atoi(argv[7]), 1) : 5;
    const Shape s{atoll(argv[3]), atoll(argv[4]), atoll(argv[5]), atoll(argv[6])};
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || ranks < 1 || ranks > devices) {
        fprintf(stderr, "%d ranks: expected 1 to %d, the CUDA devices of this host\n", ranks, devices);
        return 2;
    }
    const struct {
        const char* name;
        int32_t method;
    } methods[] = {{"ulysses", FA_CP_METHOD_ULYSSES}, {"all-gather", FA_CP_METHOD_ALL_GATHER}, {"ring", FA_CP_METHOD_RING}};
    std::vector<uint16_t> whole_o;
    const Passes one = alone(s, rounds, &whole_o);
    const double pairs = double(s.rows) * double(s.rows + 1) / 2, flops = 4 * double(s.dim) * double(s.heads) * pairs;
    bool wrong = false;
    for (const auto& m : methods) {
        if (strcmp(argv[1], "all") != 0 && strcmp(argv[1], m.name) != 0) continue;
        if (m.method == FA_CP_METHOD_ULYSSES && s.heads_k % ranks != 0) continue;
        std::vector<ncclComm_t> comms(static_cast<size_t>(ranks));
        if (ncclCommInitAll(comms.data(), ranks, nullptr) != ncclSuccess) must(FA_PEER_FAILED, "ncclCommInitAll");
        std::vector<Result> results(static_cast<size_t>(ranks));
        Barrier barrier(ranks);
        std::vector<std::thread> threads;
        for (int r = 0; r < ranks; r++)
            threads.emplace_back(
                [&, r] { run_rank(r, ranks, comms[size_t(r)], m.method, s, rounds, whole_o, &barrier, &results); });
        for (std::thread& t : threads) t.join();
        for (const ncclComm_t comm : comms) ncclCommDestroy(comm);
        const double forward = slowest(results, &Result::forward), backward = slowest(results, &Result::backward);
        uint64_t bytes[2] = {0, 0};
        double error = 0;
        for (const Result& r : results) {
            for (int pass = 0; pass < 2; pass++) bytes[pass] = std::max(bytes[pass], r.bytes[pass][0]);
            error = std::max(error, r.error);
        }
        wrong |= !(error <= kMostError);
        printf(
            "{\"method\": \"%s\", \"ranks\": %d, \"rows\": %lld, \"heads\": %lld, \"heads_k\": %lld, \"dim\": %lld, "
            "\"forward_seconds\": %.6g, \"backward_seconds\": %.6g, \"alone_forward_seconds\": %.6g, \"alone_backward_seconds\": "
            "%.6g, "
            "\"tflops_per_gpu\": %.4g, \"alone_tflops\": %.4g, \"efficiency\": %.4g, \"forward_bytes\": %llu, \"backward_bytes\": "
            "%llu, "
            "\"error\": %.3g}\n",
            m.name, ranks, (long long)s.rows, (long long)s.heads, (long long)s.heads_k, (long long)s.dim, forward, backward,
            one.forward, one.backward, 3.5e-12 * flops / (forward + backward) / ranks,
            3.5e-12 * flops / (one.forward + one.backward), (one.forward + one.backward) / (forward + backward) / ranks,
            (unsigned long long)bytes[0], (unsigned long long)bytes[1], error);
        fflush(stdout);
    }
    return wrong ? 1 : 0;
}
