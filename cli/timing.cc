#include "timing.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>
#include "machine.h"
#include "oracle/oracle.h"
#include "support/rng.h"
#include "table.h"

namespace tool {
namespace {

constexpr double kCachesHold = 320e6;   // bytes: a GPU's L2 has up to 60 MB, a server's L3 some hundreds
constexpr int64_t kMostCalls = 100000;  // of a round
constexpr uint64_t kSeed = 7;

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Sizes {
    uint64_t q, k, v, o;  // bytes; of k and v in one set, rounded up so that each set is as well aligned as the first
    int64_t sets;
    explicit Sizes(const Load& load) {
        const oracle::Reading r(load.desc, fa_forward_args_t FA_FORWARD_ARGS_INIT);
        const auto bytes = [](const oracle::Tensor& t, int32_t dtype) { return uint64_t(t.extent() * oracle::size_of(dtype)); };
        q = bytes(r.q_tensor, r.q_dtype);
        k = aligned(bytes(r.k_tensor, r.kv_dtype));
        v = aligned(bytes(r.v_tensor, r.kv_dtype));
        o = bytes(r.o_tensor, r.o_dtype);
        sets = load.cold && k + v > 0 ? std::max<int64_t>(1, int64_t(std::ceil(kCachesHold / double(k + v)))) : 1;
    }
    static uint64_t aligned(uint64_t size) { return (size + 255) / 256 * 256; }
    double total() const { return double(q) + double(o) + double(sets) * double(k + v); }
};

// Device memory that lives as long as the measurement.
class Tensors {
  public:
    Tensors(Handle& handle, const Load& load) : handle_(handle), load_(load), rng_(kSeed) {
        const fa_attention_desc_t& d = load.desc;
        const oracle::Reading r(d, args_);
        const Sizes sizes(load);
        args_.q = numbers(sizes.q, r.q_dtype);
        args_.o = room(sizes.o);
        std::byte* const k = numbers(sizes.k * uint64_t(sizes.sets), r.kv_dtype);
        std::byte* const v = numbers(sizes.v * uint64_t(sizes.sets), r.kv_dtype);
        for (int64_t set = 0; set < sizes.sets; ++set) sets_.push_back({k + sizes.k * uint64_t(set), v + sizes.v * uint64_t(set)});
        if (r.has(FA_OPERAND_PAGE_TABLE)) args_.page_table = copied(shuffled_pages());
        if (r.has(FA_OPERAND_ALIBI)) {
            std::vector<float> slopes(size_t(d.heads_q));
            if (fa_alibi_slopes(d.heads_q, slopes.data()) != FA_OK) fail(fa_last_error(nullptr));
            args_.alibi_slopes = copied(slopes);
        }
        if (r.has(FA_OPERAND_K_DESCALE)) args_.k_descale = args_.v_descale = copied(std::vector<float>{1 / unit_of(r.kv_dtype)});
        uint64_t workspace = 0;
        handle.check(fa_workspace_size(handle, &d, FA_OP_FORWARD, &workspace));
        args_.workspace = room(workspace);
        args_.workspace_size = workspace;
    }

    // The next call: enqueued on a GPU, done on the CPU.
    void call() {
        const Set& set = sets_[next_++ % sets_.size()];
        args_.k = set.k;
        args_.v = set.v;
        handle_.check(fa_forward_ex(handle_, &load_.desc, &args_));
    }

  private:
    struct Set {
        std::byte *k, *v;
    };

    static float unit_of(int32_t dtype) { return dtype == FA_I8 ? 40 : 1; }  // int8 holds normal numbers times this

    void* room(uint64_t bytes) {
        memory_.push_back(std::make_unique<DeviceMemory>(handle_, bytes));
        return memory_.back()->get();
    }

    template <class T>
    T* copied(const std::vector<T>& values) {
        void* to = room(values.size() * sizeof(T));
        handle_.check(fa_copy(handle_, to, values.data(), values.size() * sizeof(T)));
        return static_cast<T*>(to);
    }

    // Normal numbers: what a processor draws depends on its data. They repeat, because drawing so many takes longer than all else.
    std::byte* numbers(uint64_t bytes, int32_t dtype) {
        constexpr int64_t kDrawn = 1 << 18;
        const uint64_t size = uint64_t(oracle::size_of(dtype));
        std::vector<std::byte> values(std::min(bytes, kDrawn * size));
        for (int64_t i = 0; i < int64_t(values.size() / size); ++i)
            oracle::store(values.data(), i, dtype, unit_of(dtype) * rng_.normal());
        std::byte* to = static_cast<std::byte*>(room(bytes));
        for (uint64_t done = 0; done < bytes; done += values.size())
            handle_.check(fa_copy(handle_, to + done, values.data(), std::min<uint64_t>(values.size(), bytes - done)));
        return to;
    }

    std::vector<int32_t> shuffled_pages() {
        std::vector<int32_t> pages(size_t(load_.desc.num_pages));
        std::iota(pages.begin(), pages.end(), 0);
        for (size_t n = pages.size(); n > 1; --n) std::swap(pages[n - 1], pages[size_t(rng_.between(0, int64_t(n) - 1))]);
        return pages;
    }

    Handle& handle_;
    const Load& load_;
    test::Rng rng_;
    fa_forward_args_t args_ = FA_FORWARD_ARGS_INIT;
    std::vector<std::unique_ptr<DeviceMemory>> memory_;
    std::vector<Set> sets_;
    size_t next_ = 0;
};

struct Round {
    double seconds, enqueue;  // of one call
};

Round time_calls(Handle& handle, Tensors& tensors, int64_t calls) {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) tensors.call();
    const double enqueue = since(begin);
    handle.check(fa_synchronize(handle));
    return {since(begin) / double(calls), enqueue / double(calls)};
}

}  // namespace

double flops_of(const fa_attention_desc_t& d) {
    const bool windowed = d.flags & FA_WINDOW, causal = d.flags & FA_CAUSAL;
    const int64_t off = d.alignment == FA_ALIGN_BOTTOM_RIGHT ? d.seqlen_k - d.seqlen_q : 0;
    const int64_t left = windowed ? d.window_left : -1, right = causal ? 0 : windowed ? d.window_right : -1;
    double pairs = 0;
    for (int64_t i = 0; i < d.seqlen_q; ++i) {
        const int64_t first = left < 0 ? 0 : std::max<int64_t>(0, i + off - left);
        const int64_t last = right < 0 ? d.seqlen_k - 1 : std::min(d.seqlen_k - 1, i + off + right);
        pairs += double(std::max<int64_t>(0, last - first + 1));
    }
    return 2 * pairs * double(d.batch) * double(d.heads_q) * double(d.dim_qk + (d.dim_v ? d.dim_v : d.dim_qk));
}

double cache_bytes_of(const fa_attention_desc_t& d) {
    const double heads = double(d.heads_kv ? d.heads_kv : d.heads_q), dims = double(d.dim_qk + (d.dim_v ? d.dim_v : d.dim_qk));
    return double(d.batch) * double(d.seqlen_k) * heads * dims * double(oracle::size_of(d.kv_dtype ? d.kv_dtype : d.q_dtype));
}

std::string obstacle(Handle& handle, const Load& load) {
    const fa_status_t status = fa_supports(handle, &load.desc, FA_OP_FORWARD);
    if (status == FA_UNSUPPORTED) return fa_last_error(handle);
    handle.check(status);
    uint64_t workspace = 0;
    handle.check(fa_workspace_size(handle, &load.desc, FA_OP_FORWARD, &workspace));
    const double needed = double(workspace) + Sizes(load).total(), available = memory_of(handle.backend());
    if (needed <= available) return "";
    return "needs " + engineering(needed, "B") + ", " + engineering(available, "B") + " are available";
}

Speed measure(Handle& handle, const Load& load, const Rounds& rounds) {
    Tensors tensors(handle, load);
    time_calls(handle, tensors, 1);  // loads the kernel
    const double one = std::max(time_calls(handle, tensors, 1).seconds, 1e-9);
    Speed speed;
    speed.calls = std::clamp<int64_t>(int64_t(std::ceil(rounds.seconds / one)), 1, kMostCalls);
    time_calls(handle, tensors, speed.calls);  // clocks and caches settle
    std::vector<double> seconds, enqueue;
    for (int64_t round = 0; round < rounds.count; ++round) {
        const Round r = time_calls(handle, tensors, speed.calls);
        seconds.push_back(r.seconds);
        enqueue.push_back(r.enqueue);
    }
    speed.median = median(seconds);
    speed.best = *std::min_element(seconds.begin(), seconds.end());
    speed.worst = *std::max_element(seconds.begin(), seconds.end());
    speed.enqueue = median(enqueue);
    return speed;
}

}  // namespace tool
