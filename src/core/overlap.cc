// Both questions become one: does a sum of terms step · x, each 0 <= x <= most, fall into a range? That is a knapsack problem, hard in
// general and easy here: layouts are nested, so that what the smaller terms can still add leaves few choices for the larger ones.
#include "core/overlap.h"
#include "core/rules.h"

namespace fa {

namespace {

struct Term {
    uint64_t step, most;
};

constexpr int kMaxTerms = 2 * kMaxRank;
// Of a search that is stopped nothing is proven. Nested layouts take a handful.
constexpr int kMaxNodes = 10000;

struct Sum {
    Term term[kMaxTerms];  // by ascending step
    int count = 0;
    int nodes = 0;

    void add(uint64_t step, uint64_t most) {
        if (step == 0 || most == 0) return;
        int at = count++;
        for (; at > 0 && term[at - 1].step > step; at--) term[at] = term[at - 1];
        term[at] = {step, most};
    }

    // Steps of the smaller term without a gap up to the larger one: together they are one term. So equal steps of two tensors join,
    // and so do the dimensions of a dense tensor.
    void join() {
        int kept = 0;
        for (int i = 1; i < count; i++) {
            Term& small = term[kept];
            const Term& large = term[i];
            const uint64_t ratio = large.step / small.step;
            if (large.step % small.step == 0 && ratio <= small.most + 1) small.most += ratio * large.most;
            else term[++kept] = large;
        }
        if (count > 0) count = kept + 1;
    }

    // Is a sum of terms 0 … last within [low, high]? No sum exceeds 2^64.
    bool reaches(int last, uint64_t low, uint64_t high) {
        if (last < 0) return low == 0;
        uint64_t rest = 0, divisor = 0;
        for (int i = 0; i <= last; i++) {
            if (i < last) rest += term[i].step * term[i].most;
            for (uint64_t b = term[i].step; b != 0;) {
                const uint64_t r = divisor % b;
                divisor = b;
                b = r;
            }
        }
        const Term t = term[last];
        const uint64_t all = rest + t.step * t.most;
        if (high > all) high = all;
        if (low > high || high / divisor * divisor < low) return false;
        if (last == 0) return true;
        uint64_t x = low > rest ? (low - rest - 1) / t.step + 1 : 0;
        const uint64_t end = high / t.step < t.most ? high / t.step : t.most;
        for (; x <= end && nodes++ < kMaxNodes; x++) {
            const uint64_t done = x * t.step;
            if (reaches(last - 1, low > done ? low - done : 0, high - done)) return true;
        }
        return false;
    }
};

// A tensor as runs of bytes: dimensions that leave no gap are taken into the run.
struct Runs {
    Term term[kMaxRank];
    int count = 0;
    uint64_t run;

    explicit Runs(const Tensor& tensor) : run(uint64_t(tensor.element)) {
        Sum sum;
        for (int i = 0; i < tensor.rank; i++)
            sum.add(uint64_t(tensor.stride[i]) * uint64_t(tensor.element), uint64_t(tensor.extent[i] - 1));
        for (int i = 0; i < sum.count; i++) {
            if (sum.term[i].step <= run) run += sum.term[i].step * sum.term[i].most;
            else term[count++] = sum.term[i];
        }
    }
};

}  // namespace

bool overlaps_itself(const Tensor& tensor) {
    if (tensor.empty()) return false;
    Term term[kMaxRank];
    int count = 0;
    Sum sorted;
    for (int i = 0; i < tensor.rank; i++) {
        if (tensor.extent[i] > 1 && tensor.stride[i] == 0) return true;
        sorted.add(uint64_t(tensor.stride[i]), uint64_t(tensor.extent[i] - 1));
    }
    for (int i = 0; i < sorted.count; i++) term[count++] = sorted.term[i];

    // Two elements that share an address differ first in some dimension `top`, by 1 + y, and the smaller steps make up for it, each by
    // -most to +most; shifted by most, all are terms from 0 up.
    uint64_t below = 0;
    for (int top = 0; top < count; top++) {
        if (below >= term[top].step) {
            Sum sum;
            for (int i = 0; i < top; i++) sum.add(term[i].step, 2 * term[i].most);
            sum.add(term[top].step, term[top].most - 1);
            sum.join();
            if (sum.reaches(sum.count - 1, below - term[top].step, below - term[top].step)) return true;
        }
        below += term[top].step * term[top].most;
    }
    return false;
}

Tensor without_repeats(Tensor tensor) {
    for (int i = 0; i < tensor.rank; i++)
        if (tensor.stride[i] == 0 && tensor.extent[i] > 1) tensor.extent[i] = 1;
    return tensor;
}

fa_status_t check_distinct(const Tensor& tensor, Message* message) {
    if (!overlaps_itself(tensor)) return FA_OK;
    char strides[kMaxRank * 24];
    int at = 0;
    for (int i = 0; i < tensor.rank; i++) at += snprintf(strides + at, sizeof strides - at, "%s%lld", i ? ", " : "", ll(tensor.stride[i]));
    return fail(message, FA_INVALID_ARGUMENT, "%s_stride is {%s}: expected strides that keep the elements of an output apart", tensor.name,
                strides);
}

bool overlap(const Tensor& a, const Tensor& b) {
    if (a.empty() || b.empty() || a.bound || b.bound) return false;
    const uint64_t a_begin = reinterpret_cast<uintptr_t>(a.base), a_last = a_begin + (span(a) - 1);
    const uint64_t b_begin = reinterpret_cast<uintptr_t>(b.base), b_last = b_begin + (span(b) - 1);
    if (a_last < b_begin || b_last < a_begin) return false;

    // Runs meet when a_begin + x and b_begin + y, x and y sums of steps, are less than a run apart. Counting y down from its largest
    // turns the difference into a sum.
    const Runs ra(a), rb(b);
    const uint64_t a_run_last = a_begin + (ra.run - 1), b_run_begin = b_last - (rb.run - 1);
    Sum sum;
    for (int i = 0; i < ra.count; i++) sum.add(ra.term[i].step, ra.term[i].most);
    for (int i = 0; i < rb.count; i++) sum.add(rb.term[i].step, rb.term[i].most);
    sum.join();
    return sum.reaches(sum.count - 1, b_run_begin > a_run_last ? b_run_begin - a_run_last : 0, b_last - a_begin);
}

}  // namespace fa
