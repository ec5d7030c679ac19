// The host's part of Hopper's backward kernels: which calls they take, and the launches.
#include "cuda/bwd_rows_sm90.h"
#include "cuda/hopper_backward.h"
#include "cuda/tensor_map.h"

namespace fa {
namespace gpu {
namespace {

const HopperBackwardKernel& hopper(const NativeBackward& native) { return *static_cast<const HopperBackwardKernel*>(native.how); }

// What works on single scores, or on few rows or keys, is better served by the smaller tiles of bwd_mma.h. So is f16, whose range is too
// small for gradients of scores as they come: those kernels find a unit for each tile.
constexpr int64_t kLeast = 128;
constexpr uint32_t kOthers = FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI;

bool takes(const rt::Device& device, const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    if (!device.hopper || d.q_dtype != FA_BF16 || d.k_dtype != FA_BF16) return false;
    if (d.o_dtype != FA_F32 && (d.o_dtype != d.q_dtype || (d.o_stride[0] | d.o_stride[1] | d.o_stride[2]) % 8 != 0)) return false;
    if (p.has(kOthers) || d.dropout_p > 0 || d.softcap > 0 || !(d.scale > 0 && mild_scale(d.scale))) return false;
    if (d.batch < 1 || d.seqlen_q < kLeast || d.seqlen_k < kLeast || d.dim_qk % 8 != 0 || d.dim_v % 8 != 0) return false;
    if (d.seqlen_q >= kMost || d.seqlen_k >= kMost || rows_of_q(p) >= kMost || rows_of_k(p) >= kMost || rows_of_q(p) < 1 || rows_of_k(p) < 1 ||
        padded_rows_of(p) * d.heads_q >= kMost || d.batch * d.heads_k * ceil_div(d.seqlen_k, kLeast) >= kMost)
        return false;
    return walkable(d.q_stride, rows_of_q(p), d.heads_q, sequences_of_q(p)) && walkable(d.k_stride, rows_of_k(p), d.heads_k, sequences_of_k(p)) &&
           walkable(d.v_stride, rows_of_k(p), d.heads_k, sequences_of_k(p));
}

bool in_order(const Problem& p) { return (p.d.flags & FA_DETERMINISTIC) != 0; }
MaskRule rule_of_all(const Problem& p) { return mask_rule(p, sequence_of(p, fa_forward_args_t{}, 0)); }
bool bounded_right(const Problem& p) { return p.causal() || p.d.chunk > 0 || ((p.d.flags & FA_WINDOW) && p.d.window_right >= 0); }

// Which calls a kernel takes of those that any takes.
bool serves(const HopperBackwardKernel& h, const Problem& p) {
    if (h.way == Way::any) return true;
    if (in_order(p)) return false;
    if (h.way == Way::wide) return true;
    if (!sequences_alike(p)) return false;
    // All rows see a key, and the keys of every block are seen.
    const MaskRule rule = rule_of_all(p);
    const int64_t rows = p.d.seqlen_q, last = (p.d.seqlen_k - 1) / 128 * 128;
    const RowBand all = row_band(rule, 0, p.d.seqlen_k, rows);
    return all.begin <= 0 && all.end >= rows && row_band(rule, 0, 128, rows).end > 0 && row_band(rule, last, p.d.seqlen_k - last, rows).begin < rows;
}

constexpr int kDims[] = {64, 128, 256};
HopperBackwardKernels kernels_of(int dims) {
    return dims == 64 ? hopper_backward_kernels<64>() : dims == 128 ? hopper_backward_kernels<128>() : hopper_backward_kernels<256>();
}

// kv heads whose rows of q, dout and dq the cache holds.
int64_t kv_heads_in_cache(const Problem& p, int dims) {
    constexpr int64_t cache = 32 << 20;
    const int64_t bytes = max_of(p.d.seqlen_q, int64_t(1)) * p.group * dims * 8;
    return max_of(cache / bytes, int64_t(1));
}

int blocks_together(const HopperBackwardKernel& h) { return h.way == Way::wide ? 2 : 1; }

// The order of a kernel's blocks, the parts of it whose rows are prepared one after the other, and the blocks at its end that are split by rows.
struct Order {
    int64_t heads, key_blocks;           // kv heads of all sequences; of each, blocks or pairs
    int64_t sections, section;           // heads that take turns; the last section has what remains as well
    int64_t parts, part;                 // heads; the last part likewise
    int64_t split, pieces;               // blocks or pairs, and in how many each
    int64_t helping() const { return ceil_div(part * key_blocks, int64_t(2)); }  // blocks or pairs of a part that prepare rows of the next
    int64_t helpers_end() const { return parts > 1 ? (parts - 2) * part * key_blocks + helping() : 0; }
    int64_t counters() const { return round_up(parts, int64_t(4)); }
};
Order order_of(const NativeBackward& native, const rt::Device& device, const Problem& p) {
    const HopperBackwardKernel& h = hopper(native);
    const fa_attention_desc_t& d = p.d;
    Order o;
    o.heads = d.batch * d.heads_k;
    o.key_blocks = ceil_div(d.seqlen_k, native.keys * blocks_together(h));
    const int64_t slots = device.multiprocessors / blocks_together(h), steps = ceil_div(d.seqlen_q, native.rows) * p.group;
    // Where blocks differ in length the long ones of some heads come first, and behind the last section's long ones must be short ones enough.
    const bool differ = bounded_right(p) || (p.d.flags & FA_WINDOW) || !sequences_alike(p);
    const int64_t together = max_of(kv_heads_in_cache(p, h.dims), slots * 7 / 4 / o.key_blocks);
    o.sections = differ ? max_of(o.heads / together, int64_t(1)) : o.heads;
    o.section = o.heads / o.sections;
    // A part of short blocks lasts longer than one of them, so that its rows' turn comes in time; very short ones have no time for them at all.
    const bool steady = !differ || (!(p.d.flags & FA_WINDOW) && steps >= 32);
    const bool by_parts = h.way == Way::plain && d.o_dtype == d.q_dtype && steady;
    const int64_t least = steps >= 32 ? slots : slots + slots / 2;
    o.part = round_up(max_of(least / o.key_blocks, int64_t(1)), o.section);
    o.parts = by_parts ? ceil_div(o.sections * o.section, o.part) : 1;
    if (o.parts == 1) o.part = o.heads;
    o.split = 0, o.pieces = 1;
    // What is left of whole rounds of blocks alike. A piece's start and end take as long as a few steps.
    const int64_t blocks = o.heads * o.key_blocks, left = blocks % slots, border = 5;
    if (!h.add_split || differ || left == 0 || blocks - left < o.helpers_end()) return o;
    for (int64_t pieces = 2, best = steps + border; pieces <= 16 && pieces * 8 * p.group <= steps; pieces++) {
        const int64_t time = ceil_div(left * pieces, slots) * (ceil_div(steps, pieces) + border);
        if (time < best) best = time, o.split = left, o.pieces = pieces;
    }
    return o;
}

}  // namespace

const NativeBackward* native_backward_for(const rt::Device& device, const Problem& p) {
    if (!takes(device, p)) return nullptr;
    for (const int dims : kDims) {
        if (dims < p.d.dim_qk || dims < p.d.dim_v) continue;
        const HopperBackwardKernels list = kernels_of(dims);
        for (int i = 0; i < list.count; i++) {
            const HopperBackwardKernel& h = hopper(list.native[i]);
            if (serves(h, p)) return &list.native[i];
        }
    }
    return nullptr;
}

bool native_backward_reads(const Problem& p, const fa_backward_args_t& a) {
    const int64_t* const strides[] = {a.dq_stride, a.dk_stride, a.dv_stride};
    for (const int64_t* s : strides)
        if ((s[0] | s[1] | s[2]) % 8 != 0) return false;
    return walkable(a.dout_stride, rows_of_q(p), p.d.heads_q, sequences_of_q(p));
}

uint64_t native_backward_bytes(const NativeBackward& native, const rt::Device& device, const Problem& p) {
    if (in_order(p)) return uint64_t(p.d.heads_q * padded_rows_of(p) / native.rows) * sizeof(uint32_t);
    const Order order = order_of(native, device, p);
    const int64_t sums = order.split * order.pieces * blocks_together(hopper(native)) * 2 * native.keys * hopper(native).dims;
    return uint64_t(order.counters() + sums) * sizeof(float);
}

rt::Status prepare_native_backward(const rt::Device& device) {
    if (!device.hopper) return rt::kSuccess;
    for (const int dims : kDims) {
        const HopperBackwardKernels list = kernels_of(dims);
        for (int i = 0; i < list.count; i++) {
            const HopperBackwardKernel& h = hopper(list.native[i]);
            rt::Status s = cudaFuncSetAttribute(reinterpret_cast<const void*>(h.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, h.shared_bytes);
            if (s == rt::kSuccess) s = rt::prepare(h.prepare, device);
            if (s == rt::kSuccess) s = rt::prepare(h.finish, device);
            if (s == rt::kSuccess && h.add_split) s = rt::prepare(h.add_split, device);
            if (s != rt::kSuccess) return s;
        }
    }
    return rt::kSuccess;
}

rt::Status launch_native_backward(const NativeBackward& native, const rt::Device& device, const BackwardParams& x, void* memory, rt::Stream stream) {
    const HopperBackwardKernel& h = hopper(native);
    const Problem& p = x.p;
    const fa_attention_desc_t& d = p.d;
    HopperBackwardParams a;
    a.x = x;
    if (!describe(&a.q, x.a.q, d.q_dtype, d.q_stride, d.dim_qk, rows_of_q(p), d.heads_q, sequences_of_q(p), native.rows) ||
        !describe(&a.dout, x.g.dout, d.q_dtype, x.g.dout_stride, d.dim_v, rows_of_q(p), d.heads_q, sequences_of_q(p), native.rows) ||
        !describe(&a.k, x.a.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(p), d.heads_k, sequences_of_k(p), native.keys) ||
        !describe(&a.v, x.a.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(p), d.heads_k, sequences_of_k(p), native.keys))
        return cudaErrorInvalidValue;
    const Order order = order_of(native, device, p);
    const int together = blocks_together(h);
    const int64_t chunks_of_head = p.group * ceil_div(d.seqlen_q, kPaddedRows), takes_of_chunk = kPaddedRows / Ahead::rows;
    a.key_blocks = int(order.key_blocks);
    a.sections = int(order.sections);
    a.section_blocks = divisor(order.section * order.key_blocks);
    a.section = divisor(order.section);
    a.last_section = divisor(order.heads - (order.sections - 1) * order.section);
    a.ahead.ready = static_cast<uint32_t*>(memory);
    a.ahead.parts = int(order.parts);
    a.begun = static_cast<int*>(memory);
    a.blocks = int(order.key_blocks * order.heads + order.split * (order.pieces - 1));
    a.at_work = h.way == Way::plain ? min_of(a.blocks, device.multiprocessors) : a.blocks;
    a.ahead.blocks = divisor(order.part * order.key_blocks);
    a.ahead.takes = int(order.part * chunks_of_head * takes_of_chunk);
    a.ahead.all = int(order.heads * chunks_of_head * takes_of_chunk);
    a.ahead.takes_of_head = divisor(ceil_div(d.seqlen_q, kPaddedRows) * takes_of_chunk);
    a.ahead.heads_q = divisor(d.heads_q);
    a.ahead.padded_rows_of_one = int(round_up(d.seqlen_q, kPaddedRows));
    a.ahead.helping = int(order.helping());
    a.ahead.o_step = d.o_stride[1] * 2 * 256 / h.dims;
    a.ahead.dout_step = x.g.dout_stride[1] * 2 * 256 / h.dims;
    a.split.from = order.split > 0 ? int(order.heads * order.key_blocks - order.split) : INT32_MAX;
    a.split.by = divisor(order.pieces);
    a.split.sums = static_cast<float*>(memory) + order.counters();
    a.heads_k = divisor(d.heads_k);
    a.rule = x.alike ? row_rule(x.alike_rule) : RowRule{};
    a.last_first = in_order(p) && bounded_right(p);
    a.turns = nullptr;
    rt::Status s = rt::kSuccess;
    if (in_order(p) && x.dq_sum) {
        a.turns = static_cast<uint32_t*>(memory);
        s = cudaMemsetAsync(memory, 0, native_backward_bytes(native, device, p), stream);
    }
    if (s == rt::kSuccess) s = rt::launch_after(h.prepare, order.part * chunks_of_head, 256, 0, stream, a);
    if (s != rt::kSuccess) return s;
    s = rt::launch_after(h.kernel, together * a.at_work, h.threads, h.shared_bytes, stream, a, together);
    if (s == rt::kSuccess && order.split > 0)
        s = rt::launch_after(h.add_split, order.split * together * 2 * (h.dims / 32), 256, 0, stream, a);
    if (s != rt::kSuccess || !x.dq_sum) return s;
    return rt::launch_after(h.finish, d.batch * d.heads_q * ceil_div(d.seqlen_q, native.rows), 256, uint64_t(native.rows * (h.dims + 4) * 4), stream, x);
}

}  // namespace gpu
}  // namespace fa
