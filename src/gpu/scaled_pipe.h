// Tiles of k and v of any type of 8 bits or fewer: a KvPipe of fwd_mma.h. Asynchronous copies bring rows to the stages as they are stored, with the
// words that hold their factors and shifts. When a tile is wanted its stage becomes numbers of 16 bits, each 32 dims with a factor and an offset, in a
// tile behind the stages (mma_scaled.h); there is one, for k and v by turns.
#pragma once
#include "gpu/fwd_mma.h"
#include "gpu/mma_scaled.h"

namespace fa {
namespace gpu {

// 32 dims as they are stored to the bytes of integers or of 8-bit floats: those of 4 bits and of blocks to integers around 0.
struct StoredBlock {
    uint32_t word[8];

    // `count` words from an even address on.
    template <int count>
    FA_MEMBER static void load(const char* row, int at, uint32_t* to) {
        const uint32_t* const from = reinterpret_cast<const uint32_t*>(row + (at & ~3));
        if (at % 4) {
            uint32_t before = from[0];
            FA_UNROLL for (int i = 0; i < count; i++) {
                const uint32_t next = from[i + 1];
                to[i] = rt::prmt(before, next, 0x5432);
                before = next;
            }
        } else {
            FA_UNROLL for (int i = 0; i < count; i++) to[i] = from[i];
        }
    }
    // Bytes less `middle`, which they are at most 128 larger than.
    FA_MEMBER static uint32_t less(uint32_t bytes, int middle) { return (bytes + uint32_t(128 - middle) * 0x01010101u) ^ 0x80808080u; }
    FA_MEMBER static uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u << 4 & 0x10101010u; }

    // Block `c` of a row. Of q4_1 and its like the middle is the type's own.
    FA_MEMBER void load_block(const char* row, int c, BlockFormat f) {
        const int head = f.has_min ? 4 : 2, at = c * block_bytes(f) + head;
        if (f.bits == 8) return load<8>(row, at, word);
        uint32_t fifth = 0;
        if (f.bits == 5) load<1>(row, at, &fifth);
        load<4>(row, at + (f.bits == 5 ? 4 : 0), word);
        FA_UNROLL for (int i = 3; i >= 0; i--) {
            word[4 + i] = less((word[i] >> 4 & 0x0f0f0f0fu) | spread(fifth >> (16 + 4 * i)), 1 << (f.bits - 1));
            word[i] = less((word[i] & 0x0f0f0f0fu) | spread(fifth >> 4 * i), 1 << (f.bits - 1));
        }
    }
    // 32 neighbouring 4-bit values: those of E2M1 doubled, of U4 less 8.
    FA_MEMBER void load_nibbles(const char* row, int c, int32_t dtype) {
        load<4>(row, 16 * c, word);
        FA_UNROLL for (int i = 3; i >= 0; i--) {
            const uint32_t both = word[i], low = both & 0x0f0f0f0fu, high = both >> 4 & 0x0f0f0f0fu;
            FA_UNROLL for (int half = 0; half < 2; half++) {
                const uint32_t codes = rt::prmt(low, high, half ? 0x7362 : 0x5140);
                if (dtype == FA_E2M1) {
                    const uint32_t which = both >> 16 * half & 0x7777u, sign = (codes >> 3 & 0x01010101u) * 255u;
                    const uint32_t positive = rt::prmt(0x03020100u, 0x0c080604u, which), negative = rt::prmt(0xfdfeff00u, 0xf4f8fafcu, which);
                    word[2 * i + half] = (positive & ~sign) | (negative & sign);
                } else {
                    word[2 * i + half] = less(dtype == FA_I4 ? codes ^ 0x08080808u : codes, 8);
                }
            }
        }
    }
};

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::scaled> {
    static constexpr int kBlocks = M::dims / kBlockDims, kPitch = stored_pitch(M::dims), kFactorAt = stored_bytes(M::dims),
                         kShiftAt = kFactorAt + 4 * kBlocks, kPlaceAt = kShiftAt + 4 * kBlocks, kDown = M::threads / kBlocks;
    static_assert(M::threads % kBlocks == 0 && M::keys % kDown == 0, "a thread has one block of some rows");

    const MmaForwardParams& x;
    const int begin, end;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type, int first, int last) : x(params), begin(first), end(last) {}
    FA_MEMBER void load(bool value, int j, int i) {
        if (begin + j * M::keys < end) load_tile(x, value, j, i, begin + j * M::keys, end);
        rt::cp_async_commit();
    }
    template <int n>
    FA_MEMBER void wait() { rt::cp_async_wait<n>(); }
    // All threads of the block come here. Those that read the last tile have passed a barrier.
    FA_MEMBER const char* tile(bool value, int i) const {
        widen_tile(x, value, i);
        rt::barrier();
        return M::stage_tile(M::stages);
    }

    // ---- from memory to a stage

    // Row r of a tile: its page or sequence, and its row there; −1: it is not there.
    struct Rows {
        const typename M::Source& from;
        const int64_t* location;  // NULL: keys lie one behind the other
        int64_t outer, first;
        int left;
        FA_MEMBER Rows(const MmaForwardParams& x, bool value, int j, int key, int end)
            : from(value ? M::shared().tile.v : M::shared().tile.k),
              location(x.pages.table ? M::shared().location[j % M::kLocationTiles] : nullptr), outer(M::shared().tile.seq.kv_index),
              first(M::shared().tile.seq.k_begin + key), left(end - key) {
            base = location ? from.base : from.base + key * from.row;
        }
        const char* base;
        FA_MEMBER KeyLocation locate(int r) const {
            if (!location) return {outer, first + r, r < left};
            return {location[r] >> 32, int64_t(uint32_t(location[r])), location[r] >= 0};
        }
        FA_MEMBER const char* row(int r) const {
            if (!location) return base + r * from.row;
            return base + (location[r] >> 32) * from.outer + uint32_t(location[r]) * from.row;
        }
        FA_MEMBER bool there(int r) const { return location ? location[r] >= 0 : r < left; }
    };
    FA_COLD_MEMBER static void load_tile(const MmaForwardParams& x, bool value, int j, int i, int key, int end) {
        const Rows rows(x, value, j, key, end);
        char* const stage = M::stage_tile(i);
        switch (rows.from.width) {
            case 16: copy_rows<16>(rows, stage); break;
            case 8: copy_rows<8>(rows, stage); break;
            case 4: copy_rows<4>(rows, stage); break;
            case 2: copy_rows<2>(rows, stage); break;
            default: copy_rows<1>(rows, stage); break;
        }
        const Factors& f = value ? x.v_factors : x.k_factors;
        const int c = rt::thread() % kBlocks;
        if (!f.factor || c * kBlockDims >= (value ? x.dim_v : x.dim_qk)) return;
        const int64_t in_row = M::shared().tile.kv_head * f.stride[2] + int64_t(c * kBlockDims / int(f.block[1])) * f.stride[3];
        FA_UNROLL_BY(2)
        for (int r = rt::thread() / kBlocks; r < M::keys; r += kDown) {
            const KeyLocation at = rows.locate(r);
            const int64_t in_block = f.block[0] == 1 ? at.row : int64_t(uint32_t(at.row) / uint32_t(f.block[0]));
            const int64_t index = at.outer * f.stride[0] + in_block * f.stride[1] + in_row;
            char* const row = stage + r * kPitch;
            const int place = copy_factor(row + kFactorAt + 4 * c, f.factor, index, f.dtype, at.valid);
            const void* const second = f.shift ? f.shift : f.block[1] == kBlockDims / 2 ? f.factor : nullptr;
            const int64_t second_index = f.shift ? index : index + f.stride[3];
            row[kPlaceAt + c] = char(place | (second ? copy_factor(row + kShiftAt + 4 * c, second, second_index, f.dtype, at.valid) << 2 : 0));
        }
    }
    // The word that holds a factor; returns where in it that begins.
    FA_MEMBER static int copy_factor(char* to, const void* factors, int64_t index, int32_t dtype, bool there) {
        const int size = int(type_bytes(dtype));
        const char* const from = static_cast<const char*>(factors) + index * size;
        const int place = int(reinterpret_cast<uintptr_t>(from) % 4);
        rt::cp_async_word(rt::smem_addr(to), from - place, there ? place + size : 0);
        return place;
    }
    // Rows by `size` bytes at a time; those that are not there become 0.
    template <int size>
    FA_MEMBER static void copy_rows(const Rows& rows, char* stage) {
        const int across = int(uint32_t(rows.from.bytes) / size), down = M::threads / across, over = M::threads % across;
        int r = rt::thread() / across, column = rt::thread() % across;
        while (r < M::keys) {
            char* const to = stage + r * kPitch + column * size;
            const char* const from = rows.row(r) + column * size;
            if constexpr (size == 16) {
                rt::cp_async16(rt::smem_addr(to), from, rows.there(r));
            } else if constexpr (size >= 4) {
                rt::cp_async<size>(rt::smem_addr(to), from, rows.there(r));
            } else if constexpr (size == 2) {
                *reinterpret_cast<uint16_t*>(to) = rows.there(r) ? *reinterpret_cast<const uint16_t*>(from) : uint16_t(0);
            } else {
                *to = rows.there(r) ? *from : char(0);
            }
            r += down;
            column += over;
            if (column >= across) column -= across, r++;
        }
    }

    // ---- from a stage to numbers

    FA_COLD_MEMBER static void widen_tile(const MmaForwardParams& x, bool value, int i) {
        const int c = rt::thread() % kBlocks, first = rt::thread() / kBlocks;
        const char* from = M::stage_tile(i) + first * kPitch;
        char* to = M::stage_tile(M::stages) + first * M::kRowBytes;
        FA_UNROLL_BY(1)
        for (int r = first; r < M::keys; r += kDown) {
            if (value) widen_block<Bf16>(from, to, c, x.v_dtype, x.v_factors, int(x.dim_v), x.v_unit);
            else widen_block<typename M::Element>(from, to, c, x.k_dtype, x.k_factors, int(x.dim_qk), 1.f);
            from += kDown * kPitch;
            to += kDown * M::kRowBytes;
        }
    }
    template <class E>
    FA_MEMBER static void widen_block(const char* from, char* to, int c, int32_t dtype, const Factors& f, int dim, float unit) {
        Scaling32& scaling = *reinterpret_cast<Scaling32*>(to + 2 * M::dims + int(sizeof(Scaling32)) * c);
        float* const numbers = reinterpret_cast<float*>(to + 2 * kBlockDims * c);
        StoredBlock block{};
        scaling = {0.f, 0.f};
        if (c * kBlockDims < dim) scaling = load(block, from, c, dtype, f, unit);
        FA_UNROLL for (int i = 0; i < 8; i += 2) {
            uint32_t pairs[4];
            FA_UNROLL for (int w = 0; w < 2; w++) {
                if (dtype == FA_E4M3) MmaByte<E>::template widen<false>(E4m3{}, block.word[i + w], pairs[2 * w], pairs[2 * w + 1]);
                else if (dtype == FA_E5M2) MmaByte<E>::template widen<false>(E5m2{}, block.word[i + w], pairs[2 * w], pairs[2 * w + 1]);
                else MmaByte<E>::template widen<false>(I8{}, block.word[i + w], pairs[2 * w], pairs[2 * w + 1]);
            }
            const float words[] = {float_of(pairs[0]), float_of(pairs[1]), float_of(pairs[2]), float_of(pairs[3])};
            rt::store4(numbers + 2 * i, words);
        }
    }
    FA_MEMBER static Scaling32 load(StoredBlock& block, const char* from, int c, int32_t dtype, const Factors& f, float unit) {
        if (is_block_type(dtype)) {
            const BlockFormat format = block_format(dtype);
            const char* const head = from + c * block_bytes(format);
            const float d = rt::load_f16(head);
            block.load_block(from, c, format);
            return {d * unit, format.has_min ? fmaf(d, float(1 << (format.bits - 1)), rt::load_f16(head + 2)) * unit : 0.f};
        }
        if (is_nibble_type(dtype)) block.load_nibbles(from, c, dtype);
        else StoredBlock::load<8>(from, kBlockDims * c, block.word);
        const int place = from[kPlaceAt + c];
        const bool halves = f.factor && f.block[1] == kBlockDims / 2;
        const float factor = f.factor ? load_factor(from + kFactorAt + 4 * c + (place & 3), 0, f.dtype) : 1.f,
                    second = f.shift || halves ? load_factor(from + kShiftAt + 4 * c + (place >> 2), 0, f.dtype) : 0.f;
        if (dtype == FA_E2M1) unit *= 0.5f;
        if (halves) return {factor * unit, second * unit};
        return {factor * unit, (dtype == FA_U4 ? fmaf(factor, 8.f, second) : second) * unit};
    }
};

}  // namespace gpu
}  // namespace fa
