// What each pool of threads costs a program: the time of a call, and the processor time of the process, which tells what waiting threads
// take from others.
//
//     fa_bench_pools [ROUNDS]
//
// Each scenario runs with each pool in a process of its own, all in turn, ROUNDS times (5); the table has medians over the rounds.
#include <flashattn.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

double processor_time() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) * 1e6 + double(t.tv_nsec) * 1e-3;
}

int cores() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "fa_bench_pools: %s\n", what);
    exit(1);
}

struct Pool {
    const char* name;
    int64_t pool, threads;
    const char* wait_policy;
};
const Pool kPools[] = {{"1 thread", FA_POOL_OWN, 1, nullptr},
                       {"OpenMP", FA_POOL_OPENMP, 0, nullptr},
                       {"OpenMP, passive", FA_POOL_OPENMP, 0, "passive"},
                       {"own", FA_POOL_OWN, 0, nullptr}};

// One attention with its memory and a handle of its own.
class Attention {
  public:
    Attention(const Pool& pool, int64_t rows, int64_t keys) {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = FA_BACKEND_CPU;
        if (fa_create(&handle_, &info) != FA_OK) fail(fa_last_error(nullptr));
        if (fa_param_set(handle_, FA_PARAM_THREAD_POOL, pool.pool) != FA_OK ||
            fa_param_set(handle_, FA_PARAM_THREADS, pool.threads) != FA_OK)
            fail(fa_last_error(handle_));
        desc_.q_dtype = FA_BF16;
        desc_.batch = 1;
        desc_.heads_q = rows == 1 ? 32 : 8;
        desc_.heads_k = 8;
        desc_.seqlen_q = rows;
        desc_.seqlen_k = keys;
        desc_.dim_qk = 128;
        q_.resize(size_t(desc_.heads_q * rows * 128), 0x3f80);
        k_.resize(size_t(8 * keys * 128), 0x3f00);
        v_ = k_;
        o_ = q_;
        for (int i = 0; i < 3; i++) run();
    }
    Attention(const Attention&) = delete;
    ~Attention() { fa_destroy(handle_); }
    void run() {
        if (fa_forward(handle_, &desc_, q_.data(), k_.data(), v_.data(), o_.data()) != FA_OK) fail(fa_last_error(handle_));
    }

  private:
    fa_handle_t handle_ = nullptr;
    fa_attention_desc_t desc_ = FA_ATTENTION_DESC_INIT;
    std::vector<uint16_t> q_, k_, v_, o_;
};

// Busy for so long, like a program that has other things to compute.
void compute(double microseconds) {
    const auto begin = Clock::now();
    while (since(begin) < microseconds) {
    }
}

// A program's own threads, one for each core with the calling one, which look without a pause for the next phase to compute.
class Foreign {
  public:
    Foreign() {
        for (int i = 1; i < cores(); i++)
            threads_.emplace_back([this] {
                for (int phase = 0; wait_for(phase + 1); phase++) {
                    compute(kPhase);
                    done_++;
                }
            });
    }
    ~Foreign() {
        phase_ = -1;
        for (std::thread& t : threads_) t.join();
    }
    void run() {
        done_ = 0;
        phase_++;
        compute(kPhase);
        while (done_ < int(threads_.size())) {
        }
    }

  private:
    static constexpr double kPhase = 200;
    bool wait_for(int phase) {
        int now;
        while ((now = phase_) >= 0 && now < phase) {
        }
        return now >= 0;
    }
    std::atomic<int> phase_{0}, done_{0};
    std::vector<std::thread> threads_;
};

struct Cost {
    double wall, processor;  // µs a call
};

Cost cost_of(int calls, const std::function<void()>& call, const std::function<void()>& between = [] {}) {
    std::vector<double> walls;
    const double before = processor_time();
    for (int i = 0; i < calls; i++) {
        const auto begin = Clock::now();
        call();
        walls.push_back(since(begin));
        between();
    }
    return {median(walls), (processor_time() - before) / calls};
}

Cost many_handles(const Pool& pool) {
    constexpr int kCalls = 50;
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    const int callers = 4 * cores();
    std::atomic<bool> go{false};
    for (int t = 0; t < callers; t++)
        threads.emplace_back([&] {
            Attention attention(pool, 1, 1024);
            ready++;
            while (!go) sched_yield();
            for (int i = 0; i < kCalls; i++) attention.run();
        });
    while (ready < callers) sched_yield();
    const double before = processor_time();
    const auto begin = Clock::now();
    go = true;
    for (std::thread& t : threads) t.join();
    return {since(begin) / (kCalls * callers), (processor_time() - before) / (kCalls * callers)};
}

struct Scenario {
    const char* name;
    Cost (*run)(const Pool&);
};
const Scenario kScenarios[] = {
    {"decode, 1k keys, call after call",
     [](const Pool& pool) {
         Attention attention(pool, 1, 1024);
         return cost_of(300, [&] { attention.run(); });
     }},
    {"decode, 8k keys, call after call",
     [](const Pool& pool) {
         Attention attention(pool, 1, 8192);
         return cost_of(40, [&] { attention.run(); });
     }},
    {"prefill, 1k rows, 1k keys",
     [](const Pool& pool) {
         Attention attention(pool, 1024, 1024);
         return cost_of(5, [&] { attention.run(); });
     }},
    {"decode, 1k keys, 200 us of other work between",
     [](const Pool& pool) {
         Attention attention(pool, 1, 1024);
         return cost_of(300, [&] { attention.run(); }, [] { compute(200); });
     }},
    {"decode, 1k keys, 3 ms of sleep between",
     [](const Pool& pool) {
         Attention attention(pool, 1, 1024);
         return cost_of(200, [&] { attention.run(); }, [] { usleep(3000); });
     }},
    {"decode, 1k keys, in turn with 200 us of a busy pool of others",
     [](const Pool& pool) {
         Attention attention(pool, 1, 1024);
         Foreign foreign;
         return cost_of(200, [&] {
             foreign.run();
             attention.run();
         });
     }},
    {"decode, 1k keys, on 4 threads a core with a handle each", many_handles},
};

Cost in_a_process(const char* self, size_t scenario, const Pool& pool) {
    int ends[2];
    if (pipe(ends) != 0) fail("no pipe");
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        if (pool.wait_policy) setenv("OMP_WAIT_POLICY", pool.wait_policy, 1);
        else unsetenv("OMP_WAIT_POLICY");
        execl(self, self, "--one", std::to_string(scenario).c_str(), pool.name, static_cast<char*>(nullptr));
        _exit(1);
    }
    close(ends[1]);
    FILE* file = fdopen(ends[0], "r");
    Cost cost{};
    const bool read = fscanf(file, "%lf %lf", &cost.wall, &cost.processor) == 2;
    fclose(file);
    waitpid(child, nullptr, 0);
    if (!read) fail("a measurement failed");
    return cost;
}

int run_one(const char* scenario, const char* pool) {
    for (const Pool& p : kPools)
        if (strcmp(p.name, pool) == 0) {
            const Cost cost = kScenarios[atoi(scenario)].run(p);
            printf("%f %f\n", cost.wall, cost.processor);
            return 0;
        }
    return 1;
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 4 && strcmp(arguments[1], "--one") == 0) return run_one(arguments[2], arguments[3]);
    const int rounds = count > 1 ? atoi(arguments[1]) : 5;
    if (rounds < 1) fail("expected a number of rounds");
    printf("%d cores, medians of %d rounds: microseconds a call, of the clock and of all processors\n", cores(), rounds);
    for (size_t s = 0; s < std::size(kScenarios); s++) {
        std::map<const char*, std::vector<double>> wall, processor;
        for (int round = 0; round < rounds; round++)
            for (const Pool& pool : kPools) {
                const Cost cost = in_a_process("/proc/self/exe", s, pool);
                wall[pool.name].push_back(cost.wall);
                processor[pool.name].push_back(cost.processor);
            }
        printf("\n%s\n", kScenarios[s].name);
        for (const Pool& pool : kPools) printf("  %-16s %10.1f %10.1f\n", pool.name, median(wall[pool.name]), median(processor[pool.name]));
        fflush(stdout);
    }
    return 0;
}
