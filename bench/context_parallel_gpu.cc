// Attention over the GPUs of one host by NCCL, one process a GPU, beside each GPU by itself with as much work: forward and backward, causal
// and dense, by every method, and decoding from a cache that is spread. Writes one JSON file.
//     fa_bench_context_parallel_gpu RANKS FILE [SECONDS [TOKENS…]]                      built with -DFA_BENCH=ON -DFA_CUDA=ON
// SECONDS: no row begins that would not end by then (default 200). TOKENS: of each GPU, in the order of their importance. bf16, 32 heads
// over 8 of k and v, 128 dims; rows are zigzag.
//
// All ways of a row take turns, and a time is that of the slowest GPU. "local" is what the efficiency is measured against: every GPU
// computes all rows of its share of the heads, at the same time as the others but without a word to them. That is the same number of
// operations, on warm clocks. The first row is compared with the whole problem on one GPU; a method whose results are others ends the
// program with a failure.
//
// "timeline": of one call, in milliseconds from its first work on. Each group of messages has when the work before it was done (ready),
// when its messages were (done), when the work needed them (needed) and when it went on (resumed): resumed − needed is what was not hidden.
#include <sys/mman.h>
#include <sys/wait.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>
#include "gpu_processes.h"
#include "nccl_trace.h"

namespace {

constexpr int kMostRounds = 12;
constexpr int64_t kHeads = 32, kHeadsK = 8, kDim = 128;
constexpr int64_t kPattern = 1024;     // rows of random values, which repeat
constexpr double kMostError = 0.01;    // of bf16 values that were summed in another order
constexpr double kRowSeconds = 3;      // that a row's rounds may take, if they are more than two
constexpr double kLikelySpeed = 4e14;  // FLOP/s, to guess how long a row will take

void must(fa_status_t status, const char* sentence) {
    if (status != FA_OK) give_up(fa_status_name(status), sentence);
}
void must(cudaError_t error) {
    if (error != cudaSuccess) give_up("CUDA", cudaGetErrorString(error));
}
void must(ncclResult_t result) {
    if (result != ncclSuccess) give_up("NCCL", ncclGetErrorString(result));
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Shape {
    int64_t rows, heads, heads_k;
    bool causal;
};

fa_attention_desc_t describe(const Shape& shape) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16;
    d.operands = FA_OPERAND_LSE;
    if (shape.causal) d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT;
    d.batch = 1;
    d.seqlen_q = d.seqlen_k = shape.rows;
    d.heads_q = shape.heads;
    d.heads_k = shape.heads_k;
    d.dim_qk = kDim;
    return d;
}
double flops_of(const Shape& shape) {  // of a forward
    const double pairs = shape.causal ? double(shape.rows) * double(shape.rows + 1) / 2 : double(shape.rows) * double(shape.rows);
    return 4 * double(kDim) * double(shape.heads) * pairs;
}
constexpr double kBoth = 3.5;  // a forward and a backward, of a forward's operations

// q, k, v, o, LSE and their gradients of some rows of the sequence.
class Operands {
  public:
    Operands(fa_handle_t handle, const Shape& shape, const std::vector<fa_cp_range_t>& ranges) : handle_(handle) {
        for (const fa_cp_range_t& r : ranges) rows_ += r.rows;
        const int64_t q = shape.heads * kDim, k = shape.heads_k * kDim;
        forward.q = filled(ranges, q, 1), forward.k = filled(ranges, k, 2), forward.v = filled(ranges, k, 3);
        forward.o = room(rows_ * q * 2), forward.lse = static_cast<float*>(room(rows_ * shape.heads * 4));
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

struct Gpu {
    fa_handle_t handle;
    ncclComm_t comm;
    fa_cp_transport_t transport;
    Trace trace;
    fa_cp_t cp;
};

void open_gpu(Gpu* gpu) {
    must(cudaSetDevice(own_rank));
    if (own_rank == 0) {
        must(ncclGetUniqueId(&shared->id));
        shared->id_ready = 1;
    }
    while (!shared->id_ready)
        if (shared->failed) _exit(1);
    must(ncclCommInitRank(&gpu->comm, all_ranks, shared->id, own_rank));
    must(fa_cp_nccl_open(gpu->comm, &gpu->transport), "fa_cp_nccl_open");
    gpu->trace.attach(&gpu->transport);
    fa_create_info_t own = FA_CREATE_INFO_INIT;
    own.backend = FA_BACKEND_CUDA, own.device = own_rank, own.memory = FA_MEMORY_DEVICE;
    must(fa_create(&gpu->handle, &own), fa_last_error(nullptr));
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &gpu->transport;
    info.timeout_ms = 30000;
    must(fa_cp_create(&gpu->cp, gpu->handle, &info), fa_cp_last_error(nullptr));
}

// Seconds of a group of messages: with each of `peers` ranks behind this one `bytes` are exchanged.
double exchange(Gpu* gpu, int peers, uint64_t bytes) {
    const fa_cp_transport_t& t = gpu->transport;
    void *out, *in;
    must(fa_malloc(gpu->handle, bytes * uint64_t(peers), &out), fa_last_error(gpu->handle));
    must(fa_malloc(gpu->handle, bytes * uint64_t(peers), &in), fa_last_error(gpu->handle));
    std::vector<fa_cp_message_t> messages;
    for (int p = 1; p <= peers; p++) {
        messages.push_back({(own_rank + p) % all_ranks, FA_CP_SEND, bytes, static_cast<char*>(out) + uint64_t(p - 1) * bytes, 0});
        messages.push_back(
            {(own_rank - p + all_ranks) % all_ranks, FA_CP_RECEIVE, bytes, static_cast<char*>(in) + uint64_t(p - 1) * bytes, 0});
    }
    std::vector<double> times;
    for (int round = -2; round < 9; round++) {
        uint64_t ticket;
        must(t.enter(t.user, nullptr), "enter");
        meet();
        const double begin = now();
        must(t.start(t.user, messages.data(), int64_t(messages.size()), &ticket), "start");
        must(t.wait(t.user, ticket, 10000), "wait");
        must(t.leave(t.user), "leave");
        must(t.synchronize(t.user, 10000), "synchronize");
        const double took = slowest(now() - begin);
        if (round >= 0) times.push_back(took);
    }
    fa_free(gpu->handle, out), fa_free(gpu->handle, in);
    return median(times);
}

void measure_link(Gpu* gpu) {
    constexpr uint64_t kLarge = uint64_t(256) << 20;
    const int others = all_ranks - 1;
    const double next = exchange(gpu, 1, kLarge), all = exchange(gpu, others, kLarge / uint64_t(others)),
                 small = exchange(gpu, others, 1024);
    std::vector<double> times;
    std::vector<char> everybody(size_t(48 * all_ranks));
    const char own[48] = "";
    for (int i = 0; i < 20; i++) {
        meet();
        const double begin = now();
        must(gpu->transport.gather_host(gpu->transport.user, own, everybody.data(), sizeof own, 10000), "gather_host");
        times.push_back(slowest(now() - begin));
    }
    begin_row();
    write_text(
        "\"what\": \"link\", \"next_gb_per_second\": %.4g, \"all_to_all_gb_per_second\": %.4g, "
        "\"group_microseconds\": %.4g, \"agreement_microseconds\": %.4g}",
        1e-9 * double(kLarge) / next, 1e-9 * double(kLarge) / all, 1e6 * small, 1e6 * median(times));
}

float widened(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
// The norm of what own rows of a tensor differ by from the whole's, against the whole's.
double error_of(fa_handle_t handle, const void* own, const void* whole, const std::vector<fa_cp_range_t>& mine, int64_t row) {
    double off = 0, all = 0;
    for (const fa_cp_range_t& r : mine) {
        std::vector<uint16_t> got(size_t(r.rows * row)), want(got.size());
        must(fa_copy(handle, got.data(), static_cast<const uint16_t*>(own) + r.local * row, got.size() * 2), fa_last_error(handle));
        must(fa_copy(handle, want.data(), static_cast<const uint16_t*>(whole) + r.begin * row, want.size() * 2), fa_last_error(handle));
        for (size_t i = 0; i < got.size(); i++) {
            const double w = widened(want[i]), g = widened(got[i]);
            off += (g - w) * (g - w), all += w * w;
        }
    }
    return std::sqrt(off / all);
}

struct Way {
    const char* name;
    int32_t method;  // −1: each GPU by itself
};
constexpr Way kWays[] = {
    {"local", -1}, {"ulysses", FA_CP_METHOD_ULYSSES}, {"all-gather", FA_CP_METHOD_ALL_GATHER}, {"ring", FA_CP_METHOD_RING}};
constexpr size_t kWayCount = sizeof kWays / sizeof *kWays;

enum { kForward, kBackward, kPasses };
constexpr const char* kPassNames[] = {"forward", "backward"};

class Row {
  public:
    Row(Gpu* gpu, const Shape& shape)
        : gpu_(gpu),
          shape_(shape),
          share_{shape.rows, shape.heads / all_ranks, shape.heads_k / all_ranks, shape.causal},
          mine_(partition(shape.rows)),
          spread_(gpu->handle, shape, mine_),
          local_(gpu->handle, share_, {{0, 0, shape.rows, 0}}) {}

    // At least one round that is not counted, in which buffers grow.
    void measure() {
        double first = 0;
        int rounds = 1;
        for (int round = 0; round <= rounds; round++) {
            const double begin = now();
            for (size_t n = 0; n < kWayCount; n++) {
                const size_t way = round % 2 ? kWayCount - 1 - n : n;
                for (int pass = 0; pass < kPasses; pass++) {
                    const double took = run(kWays[way], pass);
                    if (round > 0) seconds_[way][pass].push_back(took);
                }
            }
            if (round > 0) continue;
            first = slowest(now() - begin);
            rounds = std::clamp(int(kRowSeconds / first), 1, kMostRounds);
        }
    }

    // The largest error of o, dq, dk and dv against the whole problem on this GPU.
    double error(const Way& way) {
        const Operands whole(gpu_->handle, shape_, {{0, 0, shape_.rows, 0}});
        const fa_attention_desc_t d = describe(shape_);
        must(fa_forward_ex(gpu_->handle, &d, &whole.forward), fa_last_error(gpu_->handle));
        must(fa_backward(gpu_->handle, &d, &whole.backward), fa_last_error(gpu_->handle));
        run(way, kForward), run(way, kBackward);
        const int64_t q = shape_.heads * kDim, k = shape_.heads_k * kDim;
        const double errors[] = {error_of(gpu_->handle, spread_.forward.o, whole.forward.o, mine_, q),
                                 error_of(gpu_->handle, spread_.backward.dq, whole.backward.dq, mine_, q),
                                 error_of(gpu_->handle, spread_.backward.dk, whole.backward.dk, mine_, k),
                                 error_of(gpu_->handle, spread_.backward.dv, whole.backward.dv, mine_, k)};
        const double most = *std::max_element(errors, errors + 4);
        return slowest(std::isfinite(most) ? most : 1e30);
    }

    void write(bool checked, bool traced) {
        const double flops = flops_of(share_);
        double local = 0;
        for (int pass = 0; pass < kPasses; pass++) local += median(seconds_[0][pass]);
        for (size_t way = 0; way < kWayCount; way++) {
            const double error_found = checked && way > 0 ? error(kWays[way]) : 0;
            const double both = median(seconds_[way][kForward]) + median(seconds_[way][kBackward]);
            begin_row();
            write_text(
                "\"what\": \"training\", \"way\": \"%s\", \"ranks\": %d, \"tokens_per_gpu\": %lld, \"causal\": %s, \"rounds\": %zu, "
                "\"tflops_per_gpu\": %.4g, \"efficiency\": %.4g",
                kWays[way].name, all_ranks, (long long)(shape_.rows / all_ranks), shape_.causal ? "true" : "false",
                seconds_[way][kForward].size(), 1e-12 * kBoth * flops / both, local / both);
            for (int pass = 0; pass < kPasses; pass++)
                write_text(
                    ", \"%s\": {\"seconds\": %.6g, \"least_seconds\": %.6g, \"tflops_per_gpu\": %.4g, \"efficiency\": %.4g, "
                    "\"bytes\": %llu, \"messages\": %llu}",
                    kPassNames[pass], median(seconds_[way][pass]),
                    *std::min_element(seconds_[way][pass].begin(), seconds_[way][pass].end()),
                    1e-12 * (pass == kForward ? 1 : kBoth - 1) * flops / median(seconds_[way][pass]),
                    median(seconds_[0][pass]) / median(seconds_[way][pass]), (unsigned long long)bytes_[way][pass],
                    (unsigned long long)messages_[way][pass]);
            if (checked && way > 0) write_text(", \"error\": %.3g", error_found);
            if (traced && way > 0) {
                write_text(", \"timeline\": {");
                for (int pass = 0; pass < kPasses; pass++) {
                    gpu_->trace.on();
                    run(kWays[way], pass);
                    write_text("%s\"%s\": %s", pass ? ", " : "", kPassNames[pass], gpu_->trace.off().c_str());
                }
                write_text("}");
            }
            write_text("}");
            if (!(error_found <= kMostError)) give_up(kWays[way].name, "its results are not those of one GPU");
        }
    }

  private:
    Gpu* gpu_;
    Shape shape_, share_;
    std::vector<fa_cp_range_t> mine_;
    Operands spread_, local_;
    std::vector<double> seconds_[kWayCount][kPasses];
    uint64_t bytes_[kWayCount][kPasses] = {}, messages_[kWayCount][kPasses] = {};

    static fa_cp_desc_t spread_of(int32_t method) {
        fa_cp_desc_t spread = FA_CP_DESC_INIT;
        spread.shard = FA_CP_SHARD_ROWS;
        spread.layout = FA_CP_LAYOUT_ZIGZAG;
        spread.method = method;
        return spread;
    }
    static std::vector<fa_cp_range_t> partition(int64_t rows) {
        const fa_cp_desc_t spread = spread_of(0);
        std::vector<fa_cp_range_t> mine(2);
        int64_t count = 0;
        must(fa_cp_partition(&spread, own_rank, all_ranks, nullptr, 1, rows, mine.data(), 2, &count), fa_cp_last_error(nullptr));
        mine.resize(size_t(count));
        return mine;
    }
    double run(const Way& way, int pass) {
        const fa_attention_desc_t d = describe(way.method < 0 ? share_ : shape_);
        const fa_cp_desc_t spread = spread_of(way.method);
        meet();
        const double begin = now();
        if (way.method < 0) {
            must(pass == kForward ? fa_forward_ex(gpu_->handle, &d, &local_.forward) : fa_backward(gpu_->handle, &d, &local_.backward),
                 fa_last_error(gpu_->handle));
            must(fa_synchronize(gpu_->handle), fa_last_error(gpu_->handle));
        } else {
            must(pass == kForward ? fa_cp_forward(gpu_->cp, &d, &spread, &spread_.forward)
                                  : fa_cp_backward(gpu_->cp, &d, &spread, &spread_.backward),
                 fa_cp_last_error(gpu_->cp));
            must(fa_cp_synchronize(gpu_->cp), fa_cp_last_error(gpu_->cp));
            fa_cp_traffic(gpu_->cp, &bytes_[&way - kWays][pass], &messages_[&way - kWays][pass]);
        }
        return slowest(now() - begin);
    }
};

// One row of queries for each sequence, over a cache of kCacheKeys keys in all, of which each GPU has its part.
constexpr int64_t kCacheKeys = int64_t(1) << 20;
void measure_decode(Gpu* gpu, int64_t batch) {
    const int64_t keys = kCacheKeys / batch / all_ranks;
    const std::vector<fa_cp_range_t> rows = {{0, 0, batch, 0}}, cache = {{0, 0, batch * keys, 0}};
    const Operands q(gpu->handle, {0, kHeads, kHeadsK, false}, rows), kv(gpu->handle, {0, kHeadsK, kHeadsK, false}, cache);
    fa_attention_desc_t d = describe({keys, kHeads, kHeadsK, false});
    d.batch = batch, d.seqlen_q = 1;
    fa_forward_args_t args = q.forward;
    args.k = kv.forward.k, args.v = kv.forward.v;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_KEYS;
    std::vector<double> local, merged;
    for (int round = -1; round < 9; round++)
        for (const bool alone : {true, false}) {
            constexpr int kCalls = 20;
            meet();
            const double begin = now();
            for (int i = 0; i < kCalls; i++)
                must(alone ? fa_forward_ex(gpu->handle, &d, &args) : fa_cp_forward(gpu->cp, &d, &spread, &args),
                     alone ? fa_last_error(gpu->handle) : fa_cp_last_error(gpu->cp));
            must(alone ? fa_synchronize(gpu->handle) : fa_cp_synchronize(gpu->cp), "waiting for the device");
            const double took = slowest(now() - begin) / kCalls;
            if (round >= 0) (alone ? local : merged).push_back(took);
        }
    uint64_t bytes = 0;
    fa_cp_traffic(gpu->cp, &bytes, nullptr);
    const double read = 2.0 * 2.0 * double(kCacheKeys / all_ranks) * double(kHeadsK * kDim);
    begin_row();
    write_text(
        "\"what\": \"decode\", \"ranks\": %d, \"batch\": %lld, \"keys_in_all\": %lld, \"local_seconds\": %.6g, \"seconds\": %.6g, "
        "\"efficiency\": %.4g, \"local_tb_per_second\": %.4g, \"tb_per_second_per_gpu\": %.4g, \"bytes\": %llu}",
        all_ranks, (long long)batch, (long long)kCacheKeys, median(local), median(merged), median(local) / median(merged),
        1e-12 * read / median(local), 1e-12 * read / median(merged), (unsigned long long)bytes);
}

void run_rank(double end, const std::vector<int64_t>& tokens) {
    Gpu gpu;
    open_gpu(&gpu);
    measure_link(&gpu);
    const auto fits = [end](double seconds) { return slowest(now() + seconds) < end; };
    bool first = true;
    const auto training = [&](int64_t n, bool causal, bool traced) {
        const Shape s{n * all_ranks, kHeads, kHeadsK, causal};
        const double guess = 2 + 2 * double(kWayCount) * kBoth * flops_of(s) / all_ranks / kLikelySpeed;
        if (!fits(guess)) {
            begin_row();
            write_text("\"what\": \"left out\", \"tokens_per_gpu\": %lld, \"causal\": %s, \"guessed_seconds\": %.0f}", (long long)n,
                       causal ? "true" : "false", guess);
            return;
        }
        Row row(&gpu, s);
        row.measure();
        row.write(first, traced);
        first = false;
    };
    for (const bool causal : {true, false}) {
        for (size_t i = 0; i < tokens.size(); i++) training(tokens[i], causal, causal && i < 2);
        for (int64_t batch = 1; causal && batch <= 32; batch *= 2)
            if (fits(3)) measure_decode(&gpu, batch);
    }
    meet();
    must(fa_cp_destroy(gpu.cp), "fa_cp_destroy");
    _exit(0);  // the communicators end with their processes
}

}  // namespace

int main(int argc, char** argv) {
    all_ranks = argc > 2 ? atoi(argv[1]) : 0;
    if (all_ranks < 2 || all_ranks > kMostRanks || kHeadsK % all_ranks != 0) {
        fprintf(stderr, "fa_bench_context_parallel_gpu RANKS FILE [SECONDS [TOKENS…]]: RANKS divides %lld\n", (long long)kHeadsK);
        return 2;
    }
    const double seconds = argc > 3 ? atof(argv[3]) : 200, end = now() + seconds;
    std::vector<int64_t> tokens;
    for (int i = 4; i < argc; i++) tokens.push_back(atoll(argv[i]));
    if (tokens.empty()) tokens = {8192, 32768, 131072, 16384, 65536};
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return perror("mmap"), 1;
    shared = static_cast<Shared*>(memory);
    std::vector<pid_t> processes;
    for (int r = 0; r < all_ranks; r++) {  // before CUDA is touched
        processes.push_back(fork());
        if (processes.back() == 0) {
            own_rank = r;
            run_rank(end, tokens);
        }
    }
    int left = all_ranks;
    bool failed = false;
    while (left > 0) {
        int status;
        const pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) left--, failed |= status != 0;
        else usleep(20000);
        if ((failed || now() > end + 60) && left > 0) {
            shared->failed = 1, failed = true;
            sleep(1);
            for (const pid_t p : processes) kill(p, SIGKILL);
            while (waitpid(-1, nullptr, 0) > 0) continue;
            left = 0;
        }
    }
    cudaDeviceProp device;
    FILE* file = cudaGetDeviceProperties(&device, 0) == cudaSuccess ? fopen(argv[2], "w") : nullptr;
    if (!file) return fprintf(stderr, "%s cannot be written\n", argv[2]), 1;
    int version = 0;
    ncclGetVersion(&version);
    const time_t today = time(nullptr);
    char date[16] = "";
    strftime(date, sizeof date, "%F", gmtime(&today));
    fprintf(file, "{\"device\": \"%s\", \"gpus\": %d, \"library\": \"%d.%d.%d\", \"nccl\": %d, \"date\": \"%s\", \"dtype\": \"bf16\", ",
            device.name, all_ranks, FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH, version, date);
    fprintf(file, "\"heads\": %lld, \"heads_k\": %lld, \"dim\": %lld, \"complete\": %s, \"rows\": [%s\n]}\n", (long long)kHeads,
            (long long)kHeadsK, (long long)kDim, failed ? "false" : "true", shared->text);
    fclose(file);
    return failed ? 1 : 0;
}
