#include "timing.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include "machine.h"
#include "signals.h"
#include "table.h"

namespace tool {
namespace {

constexpr int64_t kMostCalls = 100000;    // of a round
constexpr double kCeilingPart = 0.15;     // of a round's time, for each ceiling
constexpr double kFewestReadBytes = 1e6;  // fewer are found in the nearest caches, which limit nothing

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Something that bounds a call from below, however it is made.
struct Bound {
    std::string name;
    const char* unit;
    double amount;  // that a call needs
    std::function<double(double seconds)> rate;
    std::vector<double> rates;  // by round
};

class Contestant {
  public:
    Contestant(Handle& handle, const Load& load) : handle_(handle), load_(load), tensors_(handle, load) {
        if (handle.backend() == FA_BACKEND_CPU) find_bounds();
    }

    void prepare(double seconds) {
        time_calls(1);  // loads the kernel
        const double one = std::max(time_calls(1), 1e-9);
        speed_.calls = std::clamp<int64_t>(int64_t(std::ceil(seconds / one)), 1, kMostCalls);
        if (speed_.calls > 1) time_calls(speed_.calls);  // clocks and caches settle
        enqueue_.clear();
    }

    void run(double seconds, bool ceilings_first) {
        if (ceilings_first) measure_bounds(seconds);
        seconds_.push_back(time_calls(speed_.calls));
        if (!ceilings_first) measure_bounds(seconds);
    }

    Speed speed(const Contestant& first) {
        speed_.median = median(seconds_);
        speed_.best = *std::min_element(seconds_.begin(), seconds_.end());
        speed_.worst = *std::max_element(seconds_.begin(), seconds_.end());
        speed_.enqueue = median(enqueue_);
        for (const Bound& b : bounds_) {
            std::vector<double> shares;
            for (size_t r = 0; r < seconds_.size(); ++r) shares.push_back(b.amount / b.rates[r] / seconds_[r]);
            const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
            speed_.ceilings.push_back({b.name, b.unit, median(b.rates), median(shares), *low, *high});
        }
        std::sort(speed_.ceilings.begin(), speed_.ceilings.end(), [](const Ceiling& a, const Ceiling& b) { return a.share > b.share; });
        if (this != &first) {
            std::vector<double> costs;
            const double work = flops_of(load_) / flops_of(first.load_);
            for (size_t r = 0; r < seconds_.size(); ++r) costs.push_back(seconds_[r] / first.seconds_[r] / work);
            speed_.cost = median(costs);
        }
        return speed_;
    }

  private:
    void find_bounds() {
        const int64_t isa = handle_.get(FA_PARAM_MAX_ISA);
        const int threads = threads_of(handle_.get(FA_PARAM_THREADS));
        const std::string kernel = handle_.explain(&load_.desc);
        const auto says = [&](const char* text) { return kernel.find(text) != std::string::npos; };
        // Products of bytes are decoding's, which reading bounds.
        const bool in_bf16 = load_.desc.precision == FA_PRECISION_NATIVE && (says("products of bf16") || says("products of 8 bits"));
        if (const Unit* unit = unit_for(in_bf16 ? int32_t(FA_BF16) : load_.desc.q_dtype, isa))
            bounds_.push_back({unit->name, "FLOP/s", flops_of(load_), [=](double s) { return arithmetic_rate(*unit, threads, s); }, {}});
        if (cache_bytes_of(load_) < kFewestReadBytes) return;
        const auto rate = [this, threads, read = reader_for(isa), sets = tensors_.sets()](double s) {
            return read_rate(read, sets, tensors_.turn, threads, s);
        };
        bounds_.push_back({"reading k and v", "B/s", cache_bytes_of(load_), rate, {}});
    }

    void measure_bounds(double seconds) {
        for (Bound& b : bounds_) b.rates.push_back(b.rate(kCeilingPart * seconds));
    }

    double time_calls(int64_t calls) {
        const auto begin = Clock::now();
        for (int64_t i = 0; i < calls; ++i) tensors_.call();
        enqueue_.push_back(since(begin) / double(calls));
        handle_.check(fa_synchronize(handle_));
        return since(begin) / double(calls);
    }

    Handle& handle_;
    const Load& load_;
    Tensors tensors_;
    std::vector<Bound> bounds_;
    std::vector<double> seconds_, enqueue_;
    Speed speed_;
};

}  // namespace

std::string obstacle(Handle& handle, const Load& load) {
    const fa_status_t status = fa_supports(handle, &load.desc, load.op());
    if (status == FA_UNSUPPORTED) return fa_last_error(handle);
    handle.check(status);
    uint64_t workspace = 0;
    handle.check(fa_workspace_size(handle, &load.desc, load.op(), &workspace));
    const double needed = double(workspace) + bytes_of(load, handle.backend()), available = memory_of(handle.backend());
    if (needed <= available) return "";
    return "needs " + engineering(needed, "B") + ", " + engineering(available, "B") + " are available";
}

std::vector<Speed> measure(Handle& handle, const Group& group, const Rounds& rounds) {
    std::vector<std::unique_ptr<Contestant>> contestants;
    for (const Load& load : group) {
        if (interrupted()) return {};
        contestants.push_back(std::make_unique<Contestant>(handle, load));
        contestants.back()->prepare(rounds.seconds);
    }
    for (int64_t round = 0; round < rounds.count; ++round) {
        const bool even = round % 2 == 0;  // there and back again, so that what drifts with time favours nobody
        for (size_t i = 0; i < contestants.size(); ++i) {
            if (interrupted()) return {};
            contestants[even ? i : contestants.size() - 1 - i]->run(rounds.seconds, even);
        }
    }
    std::vector<Speed> speeds;
    for (const auto& c : contestants) speeds.push_back(c->speed(*contestants.front()));
    return speeds;
}

}  // namespace tool
