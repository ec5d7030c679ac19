// The policies of the mma kernels, and the forward's kernels of each that are compiled, a row each: the lists of kernels, the choice among
// them and tests read them. Rows are ordered by dims, then by rows of a tile, tall ones first. Those with key warps are for decode.
#pragma once

namespace fa {
namespace gpu {

// Of f16 or bf16, beside MmaSync and MmaTf32.
template <class T>
struct MmaByte;  // beside k and v of 8 bits
template <class T>
struct MmaQuantised;  // and in blocks
template <class T>
struct MmaScaled;  // and of any types of 8 bits or fewer
template <class T>
struct MmaLatent;  // where v is the first dims of k
template <class T>
struct MmaLatentByte;  // the same beside k of e4m3 with a tail
template <class T>
struct MmaLatentMixed;  // which v has, too
struct MmaFp8;          // of 8 bits, as k and v

struct MmaRow {
    int dims;       // the widest head that it takes
    int row_warps;  // warps with rows of their own
    int row_tiles;  // tiles of 16 rows, or of 8, that each has
    int key_warps;  // warps that share a tile's keys
    int keys;       // of a tile
    int stages;     // of the pipeline
    int resident;   // blocks that a multiprocessor holds at once
};

// k and v of q's type. Tiles of 48 keys are there because with 64 registers spill.
constexpr MmaRow kMmaRows[] = {{64, 4, 2, 1, 64, 2, 2},  {64, 4, 1, 1, 64, 2, 3},  {64, 1, 2, 4, 64, 8, 2},  {64, 1, 1, 4, 128, 4, 3},
                               {128, 4, 2, 1, 48, 2, 2}, {128, 4, 1, 1, 64, 2, 2}, {128, 1, 2, 4, 64, 6, 2}, {128, 1, 1, 4, 64, 6, 2},
                               {256, 8, 1, 1, 64, 2, 1}, {256, 1, 1, 4, 64, 6, 1}, {512, 4, 1, 1, 32, 2, 1}, {512, 4, 1, 1, 16, 2, 1},
                               {512, 1, 1, 2, 32, 2, 1}, {576, 4, 1, 1, 32, 2, 1}, {576, 2, 1, 1, 16, 2, 1}, {576, 1, 1, 2, 32, 2, 1}};
constexpr MmaRow kMmaTf32Rows[] = {{64, 4, 1, 1, 64, 2, 2}, {128, 4, 1, 1, 48, 2, 2}, {256, 8, 1, 1, 32, 2, 1}};
// k and v of 8 bits: stages are half as large, so more fit.
constexpr MmaRow kMmaByteRows[] = {{128, 4, 1, 1, 64, 2, 2}, {128, 1, 1, 4, 128, 6, 2}, {256, 8, 1, 1, 64, 2, 1}, {256, 1, 1, 4, 64, 6, 2}};
// q, k and v of 8 bits.
constexpr MmaRow kMmaFp8Rows[] = {{64, 4, 2, 1, 64, 2, 2},   {64, 1, 1, 4, 128, 4, 3}, {128, 4, 2, 1, 48, 2, 2}, {128, 4, 1, 1, 64, 2, 2},
                                  {128, 1, 1, 4, 128, 6, 2}, {256, 8, 1, 1, 64, 2, 1}, {256, 1, 1, 4, 64, 6, 2}};
// k and v in blocks; those of few rows have tiles of 8.
constexpr MmaRow kMmaBlockRows[] = {{128, 4, 2, 1, 32, 2, 2}, {128, 4, 1, 1, 64, 2, 2}, {256, 8, 1, 1, 64, 2, 1}, {256, 1, 1, 4, 64, 4, 2}};
constexpr MmaRow kMmaBlockDecodeRows[] = {{128, 1, 2, 4, 128, 4, 2}, {128, 1, 1, 4, 128, 2, 4}};
// k and v of any types of 8 bits or fewer, with factors of 32 dims or more; and, of tiles of 8 rows, where k and v are of one type, and its
// factors and shifts of each row and head lie together.
constexpr MmaRow kMmaScaledRows[] = {
    {128, 4, 1, 1, 64, 2, 2}, {128, 1, 1, 4, 64, 4, 3}, {256, 8, 1, 1, 64, 2, 1}, {256, 1, 1, 4, 64, 2, 2}};
constexpr MmaRow kMmaScaledDecodeRows[] = {{128, 1, 2, 4, 128, 2, 2}, {128, 1, 1, 4, 128, 2, 3}};
// Latent attention, whose tile of keys serves as k and as v, for four warps to each row warp. Of 8 bits, tiles of 64 keys have four warps
// more; of factors of 64 dims these have no registers for more than 32.
constexpr MmaRow kMmaLatentRows[] = {{576, 2, 1, 1, 32, 3, 1}, {576, 1, 1, 1, 16, 4, 1}, {576, 1, 1, 1, 32, 3, 1}};
constexpr MmaRow kMmaLatentByteRows[] = {{576, 2, 1, 1, 32, 3, 1}, {576, 1, 1, 1, 32, 3, 2}, {576, 1, 1, 1, 64, 3, 1}};
constexpr MmaRow kMmaLatentMixedRows[] = {{512, 2, 1, 1, 32, 3, 1}, {512, 1, 1, 1, 32, 3, 2}, {512, 1, 1, 1, 32, 4, 2}};

// What is compiled of these rows, by the type of products: the family, as fa_explain names it, the widest heads, as takes() of a policy
// says, and the rows of an instruction's tile. Tests look for each of them.
struct MmaKernels {
    const char *family, *type;
    const MmaRow* rows;
    int count, widest, tile_rows;
    template <int n>
    constexpr MmaKernels(const char* family_name, const char* product_type, const MmaRow (&list)[n], int widest_dims = 576, int tile = 16)
        : family(family_name), type(product_type), rows(list), count(n), widest(widest_dims), tile_rows(tile) {}
};
constexpr MmaKernels kMmaKernels[] = {
    {"fwd_mma", "f16", kMmaRows},
    {"fwd_mma", "bf16", kMmaRows},
    {"fwd_mma", "f32", kMmaTf32Rows},
    {"fwd_mma_byte", "f16", kMmaByteRows, 128},
    {"fwd_mma_byte", "bf16", kMmaByteRows},
    {"fwd_mma_fp8", "f16", kMmaFp8Rows},
    {"fwd_mma_blocks", "f16", kMmaBlockRows, 128},
    {"fwd_mma_blocks", "bf16", kMmaBlockRows},
    {"fwd_mma_blocks", "f16", kMmaBlockDecodeRows, 128, 8},
    {"fwd_mma_blocks", "bf16", kMmaBlockDecodeRows, 256, 8},
    {"fwd_mma_scaled", "f16", kMmaScaledRows, 128},
    {"fwd_mma_scaled", "bf16", kMmaScaledRows},
    {"fwd_mma_stored", "f16", kMmaScaledDecodeRows, 128, 8},
    {"fwd_mma_stored", "bf16", kMmaScaledDecodeRows, 256, 8},
    {"fwd_mma_latent", "f16", kMmaLatentRows},
    {"fwd_mma_latent", "bf16", kMmaLatentRows},
    {"fwd_mma_byte_latent", "bf16", kMmaLatentByteRows},
    {"fwd_mma_byte_latent", "bf16", kMmaLatentMixedRows},
};

}  // namespace gpu
}  // namespace fa
