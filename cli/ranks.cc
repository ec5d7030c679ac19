#include "ranks.h"
#include <algorithm>
#include <cmath>

namespace tool {

// The bandwidth that vendors state for one direction of one device or port, and the latency that message-passing libraries reach.
const std::vector<Link> kLinks = {{"nvlink", 450e9, 3e-6}, {"infiniband", 50e9, 5e-6}, {"ethernet", 12.5e9, 30e-6}};

const std::vector<Method> kMethods = {Method::ulysses, Method::all_gather, Method::ring};

const char* name_of(Method method) {
    return method == Method::ulysses ? "ulysses" : method == Method::all_gather ? "all-gather" : "ring";
}

namespace {

constexpr double kElement = 2, kFloat = 4;       // bytes of q, k, v, o and their gradients by heads; of sums and LSE
constexpr double kChunkBytes = double(1 << 26);  // of gathered keys, as libflashattn-cp chooses
constexpr double kBackwardWork = 2.5;            // five products for the forward's two
constexpr double kStatuses = 2;                  // exchanges of 48 bytes around a call

double largest_divisor_up_to(int64_t n, double limit) {
    int64_t found = 1;
    for (int64_t i = 1; i <= n && double(i) <= limit; ++i)
        if (n % i == 0) found = i;
    return double(found);
}

double chunks_of(const Sharing& s) {
    const double bytes_of_head = 2 * kElement * double(s.batch) * double(s.n) * double(s.dim);
    return double(s.heads_kv) / largest_divisor_up_to(s.heads_kv, kChunkBytes / bytes_of_head);
}

double exchange(double bytes, const Link& link) { return bytes / link.rate + link.latency; }

}  // namespace

Sharded cost_of(Method method, const Sharing& s) {
    const double ranks = double(s.ranks), peers = ranks - 1, rows = double(s.batch) * double(s.n), dim = double(s.dim);
    const double q = rows * dim * double(s.heads_q), kv = 2 * rows * dim * double(s.heads_kv);  // elements of q; of k and v
    const double lse = rows * double(s.heads_q) * kFloat, messages = kStatuses * peers;
    const double work = 2 * q * double(s.n) / ranks;  // half of 4 n² d for each head
    Sharded c{true, {work, 0, messages}, {kBackwardWork * work, 0, messages}};
    if (method == Method::ulysses) {
        const double share = peers / (ranks * ranks);
        c.possible = s.heads_kv % s.ranks == 0;
        c.forward.bytes = share * (kElement * (2 * q + kv) + lse);
        c.backward.bytes = share * (kElement * (3 * q + kv) + lse + kElement * (q + kv));
        c.forward.messages += 2 * peers;
        c.backward.messages += 2 * peers;
        return c;
    }
    // All-gather sends what the mask lets others see. The first rank returns the gradients of all keys, and half of its own are seen.
    const double groups = method == Method::all_gather ? chunks_of(s) : 1, seen = method == Method::all_gather ? 0.5 : 1;
    c.forward.bytes = peers / ranks * kv * kElement;
    c.backward.bytes = seen * c.forward.bytes + peers / ranks * kv * kFloat;
    c.forward.messages += groups * peers;
    c.backward.messages += 2 * groups * peers;
    return c;
}

double seconds_of(Method method, const Sharing& s, const Link& link, double speed) {
    const Sharded c = cost_of(method, s);
    const double statuses = s.ranks > 1 ? 2 * kStatuses * link.latency : 0;
    const double forward = c.forward.flops / speed, backward = c.backward.flops / speed;
    if (s.ranks == 1) return forward + backward;
    const double returned = c.forward.bytes * kFloat / kElement;  // gradients of keys, all-gather and ring
    if (method == Method::ulysses) {                             // two exchanges a pass, before and after the work
        return forward + backward + exchange(c.forward.bytes, link) + exchange(c.backward.bytes, link) + 2 * link.latency +
               statuses;
    }
    if (method == Method::all_gather) {  // the first chunk's keys come, and the last one's gradients go, while nothing is computed
        const double n = chunks_of(s), keys = exchange(c.forward.bytes / n, link), gradients = exchange(returned / n, link);
        return keys + (n - 1) * std::max(keys, forward / n) + forward / n + keys +
               (n - 1) * std::max(keys + gradients, backward / n) + backward / n + gradients + statuses;
    }
    const double steps = double(s.ranks) - 1, n = double(s.ranks);  // a step of the ring hides behind the work of one rank's keys
    const double keys = exchange(c.forward.bytes / steps, link), gradients = exchange(returned / steps, link);
    return steps * std::max(keys, forward / n) + forward / n + std::max(keys, backward / n) +
           (steps - 1) * std::max(keys + gradients, backward / n) + backward / n + gradients + statuses;
}

}  // namespace tool
