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
    if (!device.hopper || d.q_dtype != FA_BF16 || d.kv_dtype != FA_BF16) return false;
    if (d.o_dtype != FA_F32 && (d.o_dtype != d.q_dtype || (d.o_stride[0] | d.o_stride[1] | d.o_stride[2]) % 8 != 0)) return false;
    if (p.has(kOthers) || d.dropout_p > 0 || d.softcap > 0 || !(d.scale > 0 && d.scale < kPosInf)) return false;
    if (d.batch < 1 || d.seqlen_q < kLeast || d.seqlen_k < kLeast || d.dim_qk % 8 != 0 || d.dim_v % 8 != 0) return false;
    if (d.seqlen_q >= kMost || d.seqlen_k >= kMost || rows_of_q(p) >= kMost || rows_of_k(p) >= kMost || rows_of_q(p) < 1 || rows_of_k(p) < 1 ||
        padded_rows_of(p) * d.heads_q >= kMost || d.batch * d.heads_kv * ceil_div(d.seqlen_k, kLeast) >= kMost)
        return false;
    return walkable(d.q_stride, rows_of_q(p), d.heads_q, sequences_of_q(p)) && walkable(d.k_stride, rows_of_k(p), d.heads_kv, sequences_of_k(p)) &&
           walkable(d.v_stride, rows_of_k(p), d.heads_kv, sequences_of_k(p));
}

bool in_order(const Problem& p) { return (p.d.flags & FA_DETERMINISTIC) != 0; }
MaskRule rule_of_all(const Problem& p) { return mask_rule(p, sequence_of(p, fa_forward_args_t{}, 0)); }
bool bounded_right(const Problem& p) { return p.causal() || p.d.chunk > 0 || ((p.d.flags & FA_WINDOW) && p.d.window_right >= 0); }

// Which calls a kernel takes of those that any takes.
bool serves(const HopperBackwardKernel& h, const Problem& p) {
    if (h.way == Way::any) return true;
    if (in_order(p)) return false;
    if (h.way == Way::wide) return true;
    if (!sequences_alike(p) || p.d.seqlen_k < h.from) return false;
    if (h.way == Way::pair) return !bounded_right(p) && !(p.d.flags & FA_WINDOW);
    const RowBand seeing = row_band(rule_of_all(p), 0, p.d.seqlen_k, p.d.seqlen_q);
    return seeing.begin <= 0 && seeing.end >= p.d.seqlen_q;
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

uint64_t native_backward_bytes(const NativeBackward& native, const rt::Device&, const Problem& p) {
    return in_order(p) ? uint64_t(p.d.heads_q * padded_rows_of(p) / native.rows) * sizeof(uint32_t) : 0;
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
            if (s != rt::kSuccess) return s;
        }
    }
    return rt::kSuccess;
}

rt::Status launch_native_backward(const NativeBackward& native, const rt::Device&, const BackwardParams& x, void* memory, rt::Stream stream) {
    const HopperBackwardKernel& h = hopper(native);
    const Problem& p = x.p;
    const fa_attention_desc_t& d = p.d;
    HopperBackwardParams a;
    a.x = x;
    if (!describe(&a.q, x.a.q, d.q_dtype, d.q_stride, d.dim_qk, rows_of_q(p), d.heads_q, sequences_of_q(p), h.row_box) ||
        !describe(&a.dout, x.a.dout, d.q_dtype, x.a.dout_stride, d.dim_v, rows_of_q(p), d.heads_q, sequences_of_q(p), h.row_box) ||
        !describe(&a.k, x.a.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(p), d.heads_kv, sequences_of_k(p), native.keys) ||
        !describe(&a.v, x.a.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(p), d.heads_kv, sequences_of_k(p), native.keys))
        return cudaErrorInvalidValue;
    const int together = h.way == Way::pair || h.way == Way::wide ? 2 : 1;
    const int64_t heads = d.batch * d.heads_kv;
    a.key_blocks = int(ceil_div(d.seqlen_k, native.keys * together));
    // Where blocks differ in length the long ones of some heads come first.
    const bool differ = bounded_right(p) || (p.d.flags & FA_WINDOW) || !sequences_alike(p);
    const int64_t section = differ ? min_of(kv_heads_in_cache(p, h.dims), heads) : 1;
    a.sections = int(ceil_div(heads, section));
    a.section_blocks = divisor(section * a.key_blocks);
    a.section = divisor(section);
    a.last_section = divisor(heads - (a.sections - 1) * section);
    a.heads_kv = divisor(d.heads_kv);
    a.rule = sequences_alike(p) ? row_rule(rule_of_all(p)) : RowRule{};
    a.last_first = in_order(p) && bounded_right(p);
    a.turns = nullptr;
    rt::Status s = rt::kSuccess;
    if (in_order(p) && x.dq_sum) {
        a.turns = static_cast<uint32_t*>(memory);
        s = cudaMemsetAsync(memory, 0, native_backward_bytes(native, {}, p), stream);
    }
    const int64_t prepared = d.batch * d.heads_q * ceil_div(d.seqlen_q, kPaddedRows);
    if (s == rt::kSuccess) s = rt::launch_after(h.prepare, prepared, 256, 0, stream, x);
    if (s != rt::kSuccess) return s;
    s = rt::launch_after(h.kernel, together * a.key_blocks * heads, h.threads, h.shared_bytes, stream, a, together);
    if (s != rt::kSuccess || !x.dq_sum) return s;
    return rt::launch_after(h.finish, d.batch * d.heads_q * ceil_div(d.seqlen_q, native.rows), 256, uint64_t(native.rows * (h.dims + 4) * 4), stream, x);
}

}  // namespace gpu
}  // namespace fa
