#include "cpu/decode/kv_source.h"
#include "cpu/forward/kv_rows.h"

namespace fa {
namespace cpu {
namespace {

// De-scale factors are applied to S and P where that cannot overflow nor lose bits; others are applied to the converted values
// first.
constexpr float kMinDescale = 0x1p-40f, kMaxDescale = 0x1p40f;

bool all_in_range(const float* factors, int n) {
    bool all = true;
    for (int i = 0; i < n; i++) all &= fabsf(factors[i]) >= kMinDescale && fabsf(factors[i]) <= kMaxDescale;
    return all;
}

}  // namespace

const DecodeKernels& decode_kernels(const Kernels& kernels, int32_t dtype) {
    return kernels.decode[is_nibble_type(dtype) ? int(FA_F32) : type_index(dtype)];
}

void to_vec_pairs(const Kernels& kernels, bool deinterleaved, const float* from, int64_t dim, float* to, int64_t step) {
    const int64_t lanes = kernels.lanes, pair = 2 * lanes;
    for (int64_t first = 0; first < dim; first += pair, to += step) {
        const int64_t count = min_of(pair, dim - first);
        for (int64_t x = count; x < pair; x++) to[deinterleaved ? x / 2 + (x & 1) * lanes : x] = 0.f;
        for (int64_t x = 0; x < count; x++) to[deinterleaved ? x / 2 + (x & 1) * lanes : x] = from[first + x];
    }
}

KvSource make_source(const Call& call, KvOperand operand, const QueryTile* tiles, int count, int64_t key, bool matrix, const char** rows) {
    const Problem& p = *call.p;
    const bool k = operand == KvOperand::k, plain = k ? p.plain_k() : p.plain_v();
    const bool has_factors = plain && p.has(k ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE);
    const bool of_heads = (p.options & (k ? option::k_descale_stride : option::v_descale_stride)) == 0;
    const int32_t dtype = k ? p.d.k_dtype : p.d.v_dtype;
    const bool tiny_values = dtype == FA_F32 || dtype == FA_BF16;  // which sums would lose
    const int64_t head_step = (k ? p.d.k_stride : p.d.v_stride)[2] * type_bytes(dtype);
    KvSource source{operand, dtype, int(k ? p.d.dim_qk : p.d.dim_v), &decode_kernels(*call.k, dtype), rows, plain, {}};
    for (int i = 0; i < count; i++) {
        KvHead& head = source.head[i];
        head = {(k ? p.k_head(tiles[i].kv_head) : p.v_head(tiles[i].kv_head)) * head_step, 1.f, has_factors, false};
        if (has_factors && of_heads) {
            float factor;
            load_descales(call, tiles[i], operand, key, 1, &factor);
            head.scaled = !matrix && (tiny_values || !all_in_range(&factor, 1));
            if (!head.scaled) head.factor = factor;
        }
        head.in_place = plain && !head.scaled && !source.kernels->can_read;
    }
    return source;
}

int look_up_rows(const Call& call, const QueryTile& tile, int64_t key, int64_t end, uint64_t read, const KvSource& source, int at) {
    const char** const rows = source.rows + at;
    const int known = int(min_of(kTileKeys, end - key));
    locate_kv_rows(call, tile, source.operand, 0, key, known, rows);
    for (int j = known; j < kTileKeys; j++) rows[j] = rows[known - 1];
    if (read == ~uint64_t(0)) return kTileKeys;
    int count = 0;
    for (uint64_t rest = read; rest; rest &= rest - 1) rows[count++] = rows[__builtin_ctzll(rest)];
    return count;
}

void locate_chunk(const Call& call, const QueryTile& tile, const KvSource& source, const KvHead& head, const KvRows& rows, int64_t key,
                  int keys, float* widened, ChunkOperands& chunk, Scratch& scratch) {
    const bool k = source.operand == KvOperand::k;
    const DecodeKernels& kernels = *source.kernels;
    chunk.kernels = &kernels;
    chunk.rows = rows;
    chunk.dim = source.dim;
    chunk.scaled = head.scaled;
    if (chunk.scaled) {
        for (float& factor : chunk.factors) factor = 1.f;
        load_descales(call, tile, source.operand, key, keys, chunk.factors);
    }
    const bool can_read = source.plain && (!kernels.can_read || kernels.can_read(rows.row, rows.offset, keys, chunk.dim));
    if (can_read && (!chunk.scaled || all_in_range(chunk.factors, keys))) return;
    const bool unscaled = source.plain && !head.scaled;  // or the head's factor would act twice
    const KvRowsF32 loaded = unscaled ? KvRowsF32{}
                             : k      ? load_k(call, tile, key, keys, scratch.k, scratch)
                                      : load_v(call, tile, key, keys, scratch.v, scratch);
    chunk.kernels = &call.k->decode[FA_F32];
    chunk.rows.row = chunk.widened;
    chunk.rows.offset = 0;
    chunk.dim = int(padded(*call.k, source.dim));
    chunk.scaled = false;
    for (int j = 0; j < kMaxChunkKeys; j++) {
        float* row = widened + min_of(j, keys - 1) * chunk.dim;
        if (j < keys) {
            if (unscaled) call.k->widen[type_index(source.dtype)](rows.row[j] + rows.offset, source.dim, scratch.line);
            to_vec_pairs(*call.k, kernels.deinterleaved, unscaled ? scratch.line : loaded.data + j * loaded.stride, source.dim, row,
                         2 * call.k->lanes);
        }
        chunk.widened[j] = reinterpret_cast<const char*>(row);
    }
}

}  // namespace cpu
}  // namespace fa
