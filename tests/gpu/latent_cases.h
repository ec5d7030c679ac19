// Calls of latent attention for the tests of every kernel.
#pragma once
#include <algorithm>
#include "support/latent.h"

namespace test::gpu {

// Latent attention: one tile and several, the last of them full and not; keys that end within a block, at one's end and at a pair's; with
// splits and without, over pages, with sequences that have no keys, diagonals that end where a block does, and tiles of a chunk of prefill
// that see few of the keys or none of a split; more tiles than there are multiprocessors.
inline std::vector<Case> latent_cases() {
    struct Shape {
        int64_t batch, heads, rows, keys;
    };
    enum { alike, ragged, in_pages, in_long_pages, to_f32, layouts };
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16})
        for (const int64_t dim : {576, 512})
            for (const Shape& shape :
                 {Shape{3, 16, 1, 1}, Shape{3, 1, 2, 129}, Shape{2, 64, 1, 256}, Shape{2, 16, 4, 320}, Shape{2, 128, 2, 460},
                  Shape{1, 16, 1, 5000}, Shape{2, 2, 150, 160}, Shape{3, 5, 8, 1025}, Shape{150, 2, 1, 140}})
                for (const int splits : {0, 1, 5})
                    for (int layout = alike; layout < layouts; layout++) {
                        if (shape.batch > 100 && (splits == 1 || (layout != ragged && layout != in_pages))) continue;
                        Case c = shaped({shape.batch, shape.heads, 1, shape.rows, shape.keys, dim, 512}, dtype);
                        c.d.flags = FA_V_IN_K;
                        c.d.num_splits = splits;
                        if (layout != alike) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                        if (layout == to_f32) c.d.o_dtype = FA_F32;
                        else if (layout != alike) {
                            c.d.operands |= FA_OPERAND_SEQUSED_K;
                            for (int64_t b = 0; b < shape.batch; b++)
                                c.metadata.seqused_k.push_back(int32_t(b % 3 == 2 ? 0 : shape.keys - b % 3 * shape.keys / 3));
                        }
                        if (layout == in_pages || layout == in_long_pages) paged(c, layout == in_pages ? 64 : 192);
                        cases.push_back(std::move(c));
                    }
    return cases;
}

// The same by kernels that find each row's address: keys that lists of slots name, in pages of any size, and of 8 bits with factors of 128
// dims and of 64, powers of two and, where rounding is permitted, others; and tokens whose factors and tail follow their bytes.
inline std::vector<Case> latent_row_cases() {
    struct Shape {
        int64_t batch, heads, rows, keys;
    };
    enum { slots, counted_slots, in_pages, in_odd_pages, alike, layouts };
    const LatentForm forms[] = {{512, 64, 512, 128, FA_E8M0},
                                {448, 64, 512, 64, FA_E8M0},
                                {512, 64, 512, 128, FA_F32},
                                {512, 64, 512, 64, FA_E8M0},
                                {512, 64, 512, 128, FA_F32}};
    constexpr int kWhole = 8;
    std::vector<Case> cases;
    for (int kind = 0; kind <= kWhole; kind++)  // four of q's type, five of 8 bits
        for (const Shape& shape : {Shape{3, 16, 1, 1}, Shape{2, 64, 1, 256}, Shape{2, 12, 2, 320}, Shape{2, 100, 3, 129},
                                   Shape{1, 16, 1, 5000}, Shape{3, 5, 8, 1025}, Shape{150, 2, 1, 140}})
            for (const int splits : {0, 1, 5})
                for (int layout = slots; layout < layouts; layout++) {
                    const bool bytes = kind >= 4, of_slots = layout <= counted_slots;
                    if ((layout == alike && !bytes) || (shape.batch > 100 && (splits == 1 || layout % 2 == 0))) continue;
                    const int64_t dim = kind % 2 ? 512 : 576, page_size = layout == in_odd_pages || layout == counted_slots ? 7 : 48;
                    Case c = bytes ? latent_bytes(forms[kind - 4], shape.batch, shape.heads, shape.rows, shape.keys)
                                   : shaped({shape.batch, shape.heads, 1, shape.rows, shape.keys, dim, 512}, kind < 2 ? FA_BF16 : FA_F16);
                    c.d.flags = FA_V_IN_K;
                    c.d.num_splits = splits;
                    if (bytes) {  // whole words
                        int64_t (&stride)[4] = c.d.k_descale_stride;
                        stride[2] = 0, stride[1] = 8, stride[0] = 8 * shape.keys;
                        if (c.d.k_descale_dtype == FA_F32 && kind != kWhole) c.d.precision = FA_PRECISION_NATIVE;
                    }
                    if (of_slots) {
                        want_slots(c.d, page_size, shape.keys / page_size + 3, 1, 1, shape.keys);
                        c.d.seqlen_k = 0;
                        if (layout == slots) {
                            c.d.operands &= ~FA_OPERAND_KEY_LIST_COUNT;
                            for (int64_t& stride : c.d.list_count_stride) stride = 0;
                        }
                    } else {
                        causal(c, FA_ALIGN_BOTTOM_RIGHT);
                        if (layout != alike) {
                            paged(c, page_size);
                            c.d.operands |= FA_OPERAND_SEQUSED_K;
                            for (int64_t b = 0; b < shape.batch; b++)
                                c.metadata.seqused_k.push_back(int32_t(b % 3 == 2 ? 0 : shape.keys - b % 3 * shape.keys / 3));
                        }
                    }
                    if (bytes && (of_slots || layout != alike)) c.d.k_descale_stride[0] = 8 * page_size;
                    if (kind == kWhole) make_tokens_whole(c, of_slots || layout != alike ? page_size : shape.keys);
                    if (layout == in_odd_pages) c.d.o_dtype = FA_F32;
                    cases.push_back(std::move(c));
                }
    return cases;
}

// For the kernels of mma.sync: of 16 bits with an output that Hopper's do not write, and of 8.
inline std::vector<Case> latent_mma_cases(int64_t batch, int64_t heads, int64_t rows, int64_t keys) {
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_E4M3, FA_E8M0})  // the last two of factors of 128 dims and of 64
        for (const int splits : {0, 1, 5}) {
            const bool bytes = dtype == FA_E4M3 || dtype == FA_E8M0;
            const LatentForm form = dtype == FA_E4M3 ? LatentForm{512, 64, 512, 128, FA_F32} : LatentForm{448, 64, 512, 64, FA_E8M0};
            Case c = bytes ? latent_bytes(form, batch, heads, rows, keys, 2) : shaped({batch, heads, 2, rows, keys, 576, 512}, dtype);
            c.d.flags = FA_V_IN_K;
            if (!bytes) c.d.o_dtype = dtype == FA_F16 ? FA_BF16 : FA_F16;
            if (splits == 5) c.d.split_size = 64;  // the tallest tiles
            else c.d.num_splits = splits;
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            cases.push_back(std::move(c));
        }
    return cases;
}

}  // namespace test::gpu
