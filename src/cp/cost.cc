#include "cp/cost.h"

namespace fa {
namespace cp {
namespace {

constexpr double kFloat = 4;                     // bytes of sums and LSE
constexpr double kChunkBytes = double(1 << 26);  // of gathered keys
constexpr double kBackwardWork = 2.5;            // five products for the forward's two
constexpr double kStatuses = 2;                  // exchanges of 48 bytes around a call

double larger(double a, double b) { return a > b ? a : b; }

double largest_divisor_up_to(int64_t n, double limit) {
    int64_t found = 1;
    for (int64_t i = 1; i <= n && double(i) <= limit; ++i)
        if (n % i == 0) found = i;
    return double(found);
}

double chunks_of(const Sharing& sharing) {
    if (sharing.chunks > 0) return double(sharing.chunks);
    const double bytes_of_head = 2 * sharing.element * sharing.batch * sharing.n * sharing.dim;
    return double(sharing.heads_kv) / largest_divisor_up_to(sharing.heads_kv, kChunkBytes / bytes_of_head);
}

// Elements of q, and of k and v, of all ranks.
double q_elements(const Sharing& sharing) { return sharing.batch * sharing.n * sharing.dim * double(sharing.heads_q); }
double kv_elements(const Sharing& sharing) { return 2 * sharing.batch * sharing.n * sharing.dim * double(sharing.heads_kv); }

// What a rank moves in its memory and what its calls lose, beside attention: bytes, and calls of the core.
struct Beside {
    double bytes, calls;
};
Beside beside(Way way, const Sharing& sharing, const Sharded& sharded, bool backward) {
    const double ranks = double(sharing.ranks), own_q = q_elements(sharing) / ranks, kv = kv_elements(sharing);
    const double keys = sharded.forward.bytes, returned = backward ? sharded.forward.bytes * kFloat / sharing.element : 0;
    const double f32_dq = kFloat * own_q, f32_kv = kFloat * kv, own_kv = f32_kv / ranks;
    if (way == Way::ulysses) return {4 * (backward ? sharded.backward.bytes : keys), 1};  // packed and taken apart
    if (way == Way::all_gather) {
        const double gathered = 2 * keys + 2 * sharing.seen * kv * sharing.element, calls = 2 * chunks_of(sharing);
        if (!backward) return {gathered, calls};
        // f32 gradients of what was gathered are cleared and added to; those of other ranks' keys are packed, and added by the owner, whose
        // own are copied and at last rounded. dq is cleared, added to and rounded.
        return {gathered + 3 * sharing.seen * f32_kv + 5 * returned + 4 * own_kv + 4.5 * f32_dq, calls};
    }
    // Of a step's two pieces each has half of the rank's rows, whose f32 o is merged, and in the end rounded; in the backward it adds to
    // dq, dk, dv.
    const double pieces = 2 * ranks + 1, passed = 2 * keys;
    if (!backward) return {passed + pieces / 2 * 3 * f32_dq + 2 * f32_dq, pieces};
    return {passed + 3 * returned + f32_kv + 2 * pieces * own_kv + 1.5 * own_kv + (pieces + 2.5) * f32_dq, pieces};
}

double exchange(double bytes, const Machine& machine) { return bytes / machine.rate + machine.latency; }

}  // namespace

Sharded cost_of(Way way, const Sharing& sharing) {
    const double ranks = double(sharing.ranks), peers = ranks - 1, rows = sharing.batch * sharing.n;
    const double q = q_elements(sharing), kv = kv_elements(sharing), lse = rows * double(sharing.heads_q) * kFloat,
                 messages = kStatuses * peers;
    const double work = 4 * sharing.pairs * q * sharing.n / ranks;
    Sharded c{true, {work, 0, messages}, {kBackwardWork * work, 0, messages}};
    if (way == Way::ulysses) {
        const double share = peers / (ranks * ranks);
        c.possible = sharing.heads_kv % sharing.ranks == 0;
        c.forward.bytes = share * (sharing.element * (2 * q + kv) + lse);
        c.backward.bytes = share * (sharing.element * (3 * q + kv) + lse + sharing.element * (q + kv));
        c.forward.messages += 2 * peers;
        c.backward.messages += 2 * peers;
        return c;
    }
    // All-gather sends what the mask lets others see. The first rank returns the gradients of all keys, and half of its own are seen by
    // others where the mask is causal.
    const bool gathers = way == Way::all_gather;
    const double groups = gathers ? chunks_of(sharing) : 1, returned_by_first = gathers && sharing.pairs < 1 ? 0.5 : 1;
    c.forward.bytes = sharing.seen * peers / ranks * kv * sharing.element;
    c.backward.bytes = returned_by_first * c.forward.bytes + sharing.seen * peers / ranks * kv * kFloat;
    c.forward.messages += groups * peers;
    c.backward.messages += 2 * groups * peers;
    return c;
}

Seconds seconds_of(Way way, const Sharing& sharing, const Machine& machine) {
    const Sharded c = cost_of(way, sharing);
    const double speed = way == Way::ulysses || sharing.ranks == 1 ? machine.speed : machine.speed * machine.pieces;
    Seconds t{c.forward.flops / speed, c.backward.flops / speed};
    if (sharing.ranks == 1) return t;
    const double returned = c.forward.bytes * kFloat / sharing.element;  // gradients of keys, all-gather and ring
    if (way == Way::ulysses) {                                           // two exchanges a pass, before and after the work
        t.forward += exchange(c.forward.bytes, machine) + machine.latency;
        t.backward += exchange(c.backward.bytes, machine) + machine.latency;
    } else if (way == Way::all_gather) {  // the first chunk's keys come, and the last one's gradients go, while nothing is computed
        const double n = chunks_of(sharing), keys = exchange(c.forward.bytes / n, machine), gradients = exchange(returned / n, machine);
        t.forward = keys + (n - 1) * larger(keys, t.forward / n) + t.forward / n;
        t.backward = keys + (n - 1) * larger(keys + gradients, t.backward / n) + t.backward / n + gradients;
    } else {  // a step of the ring hides behind the work of one rank's keys
        const double n = double(sharing.ranks), steps = n - 1, keys = exchange(c.forward.bytes / steps, machine),
                     gradients = exchange(returned / steps, machine);
        t.forward = steps * larger(keys, t.forward / n) + t.forward / n;
        t.backward = larger(keys, t.backward / n) + (steps - 1) * larger(keys + gradients, t.backward / n) + t.backward / n + gradients;
    }
    for (int backward = 0; backward < 2; backward++) {
        const Beside b = beside(way, sharing, c, backward != 0);
        (backward ? t.backward : t.forward) +=
            kStatuses * machine.latency + b.calls * machine.call + (machine.memory > 0 ? b.bytes / machine.memory : 0);
    }
    return t;
}

}  // namespace cp
}  // namespace fa
