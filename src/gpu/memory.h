// Reading and writing tensors on a device: storage types and conversions, index arithmetic of every layout, sequences whose lengths
// nobody has checked, and where a key lies in a paged or packed cache. The including file has defined the names of rt_cuda.h,
// rt_hip.h or rt_emu.h.
#pragma once
#include "backend/backend.h"
#include "spec/shape.h"

namespace fa {
namespace gpu {

// The storage types as C++ types, and four of them as one load.
struct F32 { float x; };
struct F16 { uint16_t x; };
struct Bf16 { uint16_t x; };
struct E4m3 { uint8_t x; };
struct E5m2 { uint8_t x; };
struct I8 { int8_t x; };
FA_FN float to_f32(F32 v) { return v.x; }
FA_FN float to_f32(F16 v) { return f16_to_f32(v.x); }
FA_FN float to_f32(Bf16 v) { return bf16_to_f32(v.x); }
FA_FN float to_f32(E4m3 v) { return e4m3_to_f32(v.x); }
FA_FN float to_f32(E5m2 v) { return e5m2_to_f32(v.x); }
FA_FN float to_f32(I8 v) { return float(v.x); }
template <class T>
struct alignas(4 * sizeof(T)) Vec4 {
    T element[4];
};

// May rows of this tensor be read four elements at a time?
FA_FN bool vec4_aligned(const void* base, const int64_t stride[4], int32_t dtype) {
    return reinterpret_cast<uintptr_t>(base) % uintptr_t(4 * type_bytes(dtype)) == 0 && (stride[0] | stride[1] | stride[2]) % 4 == 0;
}

// Whether rows of this tensor consist of aligned pieces of 16 bytes, of words of 4, or of elements.
FA_FN int32_t copy_width(const void* base, const int64_t stride[4], int64_t dim, int32_t dtype) {
    const int64_t bits = int64_t(reinterpret_cast<uintptr_t>(base)) | ((stride[0] | stride[1] | stride[2] | dim) * type_bytes(dtype));
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : int32_t(type_bytes(dtype));
}

FA_DEVICE float load_element(const void* base, int64_t i, int32_t dtype) {
    switch (dtype) {
        case FA_F32: return static_cast<const float*>(base)[i];
        case FA_F16: return f16_to_f32(static_cast<const uint16_t*>(base)[i]);
        case FA_BF16: return bf16_to_f32(static_cast<const uint16_t*>(base)[i]);
        case FA_E4M3: return e4m3_to_f32(static_cast<const uint8_t*>(base)[i]);
        case FA_E5M2: return e5m2_to_f32(static_cast<const uint8_t*>(base)[i]);
        default: return float(static_cast<const int8_t*>(base)[i]);
    }
}

// Element `dim` of a row that begins with unit `row`. A block's bytes are read one by one.
FA_DEVICE float load_dim(const void* base, int64_t row, int64_t dim, int32_t dtype) {
    if (!is_block_type(dtype)) return load_element(base, row + dim, dtype);
    const uint8_t* const block = static_cast<const uint8_t*>(base) + (row + dim / kBlockDims) * type_bytes(dtype);
    return block_value(block, block_format(dtype), int(dim % kBlockDims));
}

FA_DEVICE void store_element(void* base, int64_t i, int32_t dtype, float x) {
    switch (dtype) {
        case FA_F32: static_cast<float*>(base)[i] = x; break;
        case FA_F16: static_cast<uint16_t*>(base)[i] = f32_to_f16(x); break;
        case FA_BF16: static_cast<uint16_t*>(base)[i] = f32_to_bf16(x); break;
        case FA_E4M3: static_cast<uint8_t*>(base)[i] = f32_to_e4m3(x); break;
        case FA_E5M2: static_cast<uint8_t*>(base)[i] = f32_to_e5m2(x); break;
        default: static_cast<int8_t*>(base)[i] = f32_to_i8(x); break;
    }
}

FA_FN int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

// The sequence, with every length and start forced into its tensor: metadata in device memory is not checked before a kernel runs,
// and a hostile value must not lead outside.
FA_FN Sequence bounded_sequence(const Problem& p, const fa_forward_args_t& a, int64_t b) {
    Sequence s = sequence_of(p, a, b);
    if (p.packed_q()) s.q_begin = clamp(s.q_begin, 0, p.d.total_q);
    s.q_len = clamp(s.q_len, 0, p.packed_q() ? min_of(p.d.seqlen_q, p.d.total_q - s.q_begin) : p.d.seqlen_q);
    const int64_t kv_rows = p.packed_k() ? p.d.total_k : p.d.seqlen_k;
    s.k_begin = clamp(s.k_begin, 0, kv_rows);
    s.k_len = clamp(s.k_len, 0, min_of(p.d.seqlen_k, kv_rows - s.k_begin));
    const int64_t rows = p.has(FA_OPERAND_KV_BATCH_IDX) ? p.d.kv_batch : p.d.batch;
    s.kv_index = clamp(s.kv_index, 0, max_of(rows - 1, 0));
    if (p.d.alignment == FA_ALIGN_BOTTOM_RIGHT) s.off = s.k_len - s.q_len;
    return s;
}

// Where a key's row lies: `outer` is the page, the cache's sequence or the sequence; `row` counts within it. A page id out of range
// makes the key vanish.
struct KeyLocation {
    int64_t outer, row;
    bool valid;
};

FA_FN KeyLocation locate_key(const Problem& p, const fa_forward_args_t& a, const Sequence& s, int64_t key) {
    const int64_t row = s.k_begin + key;
    if (!p.paged()) return {s.kv_index, row, true};
    const int64_t page = a.page_table[s.kv_index * p.d.page_table_stride + row / p.d.page_size];
    return {page, row % p.d.page_size, page >= 0 && page < p.d.num_pages};
}

FA_FN int64_t key_index(const Problem& p, const int64_t stride[4], const KeyLocation& at, int64_t kv_head) {
    return (p.packed_k() ? 0 : at.outer * stride[0]) + at.row * stride[1] + kv_head * stride[2];
}

FA_FN float key_descale(const void* descale, const int64_t stride[4], const KeyLocation& at, int64_t kv_head) {
    return static_cast<const float*>(descale)[at.outer * stride[0] + at.row * stride[1] + kv_head * stride[2]];
}

FA_FN float query_descale(const Problem& p, const fa_forward_args_t& a, const Sequence& s, int64_t batch, int64_t row, int64_t head) {
    if (!p.has(FA_OPERAND_Q_DESCALE)) return 1.f;
    const int64_t* t = p.d.q_descale_stride;
    return static_cast<const float*>(a.q_descale)[batch * t[0] + (s.q_begin + row) * t[1] + head * t[2]];
}

}  // namespace gpu
}  // namespace fa
