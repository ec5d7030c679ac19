// Reading and writing tensors on a device: storage types and conversions, index arithmetic of every layout, and sequences whose lengths
// nobody has checked. The including file has defined the names of rt_cuda.h,
// rt_hip.h or rt_emu.h.
#pragma once
#include "backend/backend.h"
#include "backend/factors.h"
#include "spec/shape.h"

namespace fa {
namespace gpu {

// The storage types as C++ types, and four of them as one load.
struct F32 {
    float x;
};
struct F16 {
    uint16_t x;
};
struct Bf16 {
    uint16_t x;
};
struct E4m3 {
    uint8_t x;
};
struct E5m2 {
    uint8_t x;
};
struct I8 {
    int8_t x;
};
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
FA_FN bool vec4_aligned(const void* base, const RowStrides& strides, int32_t dtype) {
    return reinterpret_cast<uintptr_t>(base) % uintptr_t(4 * type_bytes(dtype)) == 0 &&
           (strides.batch | strides.row | strides.head) % 4 == 0;
}

// Whether rows of this tensor consist of aligned pieces of 16 bytes, of words of 4, or of elements.
FA_FN int32_t copy_width(const void* base, const RowStrides& strides, int64_t dim, int32_t dtype) {
    const int64_t bits =
        int64_t(reinterpret_cast<uintptr_t>(base)) | ((strides.batch | strides.row | strides.head | dim) * type_bytes(dtype));
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : int32_t(type_bytes(dtype));
}

// The same of blocks beside a kernel with so many columns: 16 where rows have as many dims, and are aligned pieces of columns / 16 bytes.
FA_FN int32_t block_copy_width(const void* base, const RowStrides& strides, int64_t dim, int32_t dtype, int64_t columns) {
    const int64_t bits = int64_t(reinterpret_cast<uintptr_t>(base)) | (strides.batch | strides.row | strides.head) * type_bytes(dtype);
    if (dim == columns && bits % (columns / 16) == 0) return 16;
    return (bits | row_bytes(dtype, dim)) % 4 == 0 ? 4 : 2;
}

// Bytes of the largest pieces, up to 16, that rows consist of and begin with.
FA_FN int32_t piece_width(const void* base, const RowStrides& strides, int64_t dim, int32_t dtype) {
    const int64_t bits = int64_t(reinterpret_cast<uintptr_t>(base)) | (strides.batch | strides.row | strides.head) * type_bytes(dtype) |
                         row_bytes(dtype, dim) | 16;
    return int32_t(bits & -bits);
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

// Element `dim` of a row of q, k or v that begins with unit `row`. A block's bytes are read one by one.
FA_DEVICE float load_dim(const void* base, int64_t row, int64_t dim, int32_t dtype) {
    if (is_nibble_type(dtype)) {
        const uint32_t pair = static_cast<const uint8_t*>(base)[row + dim / 2];
        return nibble_to_f32(dim & 1 ? pair >> 4 : pair & 15u, dtype);
    }
    if (!is_block_type(dtype)) return load_element(base, row + dim, dtype);
    const uint8_t* const block = static_cast<const uint8_t*>(base) + (row + dim / kBlockDims) * type_bytes(dtype);
    return nan_if_infinite(block_value(block, block_format(dtype), int(dim % kBlockDims)));
}

// Four neighbouring values of a block, from dim `first` on, a multiple of 4: as they are stored, and as f32. Loads of every format are the
// same but for their addresses, so that those of several quads can be under way at once; what a format has not is not used.
struct BlockQuad {
    uint32_t x;  // a byte each
    uint16_t d, m;
    uint8_t fifth;  // bits
};
FA_DEVICE BlockQuad load_block_quad(const uint8_t* block, BlockFormat format, int first) {
    const uint8_t* const head = block + (format.has_min ? 4 : 2);
    const uint8_t* const x = head + (format.bits == 8 ? first : first % 16 + (format.bits == 5 ? 4 : 0));
    BlockQuad quad;
    quad.d = block_word(block);
    quad.m = block_word(block + 2);
    quad.fifth = head[first / 8];
    quad.x = x[0] | uint32_t(x[1]) << 8 | uint32_t(x[2]) << 16 | uint32_t(x[3]) << 24;
    if (format.bits != 8) quad.x = quad.x >> (first < 16 ? 0 : 4) & 0x0f0f0f0fu;
    quad.fifth = format.bits == 5 ? quad.fifth >> first % 8 & 15 : 0;
    return quad;
}
FA_DEVICE void widen(const BlockQuad& quad, BlockFormat format, float value[4]) {
    const float d = nan_if_infinite(f16_to_f32(quad.d)), m = nan_if_infinite(f16_to_f32(quad.m));
    FA_UNROLL_FOR (int e = 0; e < 4; e++) {
        const uint32_t x = quad.x >> 8 * e & 255u;
        const int integer =
            format.bits == 8 ? int(int8_t(x)) : int(x | (quad.fifth >> e & 1u) << 4) - (format.has_min ? 0 : 1 << (format.bits - 1));
        value[e] = format.has_min ? d * float(integer) + m : d * float(integer);
    }
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

// A sequence, with every length and start forced into its tensor: metadata in device memory is not checked before a kernel runs,
// and a hostile value must not lead outside.
FA_FN Span bounded_span_of(const QuerySpans& spans, int64_t b) {
    Span span = span_of(spans, b);
    if (spans.packed()) span.begin = clamp(span.begin, 0, spans.total);
    span.length = clamp(span.length, 0, spans.packed() ? min_of(spans.seqlen, spans.total - span.begin) : spans.seqlen);
    return span;
}
FA_FN Sequence bounded_sequence(const SequenceTable& table, int64_t b) {
    Sequence seq = sequence_of(table, b);
    if (table.q.packed()) seq.q_begin = clamp(seq.q_begin, 0, table.q.total);
    seq.q_len = clamp(seq.q_len, 0, table.q.packed() ? min_of(table.q.seqlen, table.q.total - seq.q_begin) : table.q.seqlen);
    const int64_t kv_rows = table.packed_k() ? table.total_k : table.seqlen_k;
    seq.k_begin = clamp(seq.k_begin, 0, kv_rows);
    seq.k_len = clamp(seq.k_len, 0, min_of(table.seqlen_k, kv_rows - seq.k_begin));
    seq.kv_index = clamp(seq.kv_index, 0, max_of(table.kv_sequences - 1, 0));
    if (table.alignment == FA_ALIGN_BOTTOM_RIGHT) seq.off = seq.k_len - seq.q_len;
    return seq;
}

FA_FN int64_t key_index(const RowStrides& strides, const KeyLocation& at, int64_t kv_head) {
    return strides.index(at.outer, at.row, kv_head);
}

// Rows of q, k or v that are not plain (Problem): with factors, of any type and blocks, and a tail.
struct ScaledRows {
    Factors factors;
    int64_t dims;  // before the tail
    const void* tail;
    RowStrides tail_strides;
    int32_t tail_dtype;
};
// Dim c of the row that begins with unit `at` of the tensor itself.
FA_DEVICE float scaled_dim(const ScaledRows& rows, const void* data, int32_t dtype, int64_t at, int64_t outer, int64_t row, int64_t head,
                           int64_t c) {
    if (c >= rows.dims) return load_element(rows.tail, rows.tail_strides.index(outer, row, head) + c - rows.dims, rows.tail_dtype);
    const float x = load_dim(data, at, c, dtype);
    if (!rows.factors.factor) return x;
    return scaled_value(rows.factors, factor_index(rows.factors, outer, row, head) + c / rows.factors.block[1] * rows.factors.stride[3], x);
}

// The factor of a row that is plain and has one.
FA_FN float row_factor(const ScaledRows& rows, int64_t outer, int64_t row, int64_t head) {
    const int64_t* const s = rows.factors.stride;
    return nan_if_infinite(static_cast<const float*>(rows.factors.factor)[outer * s[0] + row * s[1] + head * s[2]]);
}

// Of kernels that read plain rows alone, the factors of q, k or v. NULL: none.
struct Descale {
    const float* data;
    RowStrides strides;
};
template <class Params>
FA_FN float query_descale(const Params& params, const Sequence& seq, int64_t batch, int64_t row, int64_t head) {
    return params.q_descale.data ? params.q_descale.data[query_index(params.q_descale.strides, seq, batch, row, head)] : 1.f;
}
FA_FN float key_descale(const Descale& descale, const KeyLocation& at, int64_t kv_head) {
    return descale.data[descale.strides.index(at.outer, at.row, kv_head)];
}

// Bytes between sequences or pages, rows and heads of a tensor, and of a row. outer: 0 where the tensor is packed.
struct ByteStrides {
    int64_t outer, row, head;
    int32_t row_bytes;
};
// Where an mma kernel finds rows of a tensor, and whether they consist of aligned 16-byte vectors, of words of 4, or of elements.
struct RowSource {
    const void* base;
    ByteStrides bytes;
    int32_t width;
};

}  // namespace gpu
}  // namespace fa
