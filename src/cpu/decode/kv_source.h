// How decoding reads k and v: rows where they lie and as they are stored, or widened to f32 where a kernel cannot read them.
#pragma once
#include "cpu/driver/call.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/kernels/matrix_table.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {

// Addresses of so many keys are looked up at once.
constexpr int kLookupKeys = 4 * kTileKeys;
constexpr int kMaxChunkKeys = kDecodeChunkKeys;

static inline int64_t padded(const Kernels& kernels, int64_t dim) { return round_up(dim, 2 * kernels.lanes); }

// How a tile's head is read.
struct KvHead {
    int64_t offset;  // bytes from head 0's row
    float factor;    // its de-scale factor, which scores or o are multiplied by; 1 where rows are scaled
    bool scaled;     // a factor for each chunk of keys is applied, or for each key
    bool in_place;   // the kernel reads all keys where they lie
};

// Rows of k or v for kLookupKeys keys, of its head 0, and how they are read.
struct KvSource {
    KvOperand operand;
    int32_t dtype;
    int dim;
    const DecodeKernels* kernels;
    const char** rows;  // [kLookupKeys + kTileKeys]
    bool plain;         // see Problem; else rows are converted to f32 first
    KvHead head[kMaxPanel];
};

// A chunk of keys as the kernels get it.
struct ChunkOperands {
    const DecodeKernels* kernels;
    KvRows rows;
    int dim;
    bool scaled;
    float factors[kMaxChunkKeys];
    const char* widened[kMaxChunkKeys];
};

// Those of f32 read what is converted first.
const DecodeKernels& decode_kernels(const Kernels& kernels, int32_t dtype);
// A row's elements in the order of the kernel's vector pairs, zeros behind, the pairs `step` apart.
void to_vec_pairs(const Kernels& kernels, bool deinterleaved, const float* from, int64_t dim, float* to, int64_t step);
// Of the tiles' heads, whose keys begin with `key`. matrix: matrix instructions read it, which take any factor of a head.
KvSource make_source(const Call& call, KvOperand operand, const QueryTile* tiles, int count, int64_t key, bool matrix, const char** rows);
// Addresses for those of keys [key, key + kTileKeys) that are to be read, one behind the other from source.rows[at] on; of keys behind
// `end`, the last one's. Returns their number.
int look_up_rows(const Call& call, const QueryTile& tile, int64_t key, int64_t end, uint64_t read, const KvSource& source, int at);
// The `keys` keys from `key` on of a tile's head. Those that the kernel cannot read as they are stored are converted to f32, and multiplied
// by their factors where these are not the head's.
void locate_chunk(const Call& call, const QueryTile& tile, const KvSource& source, const KvHead& head, const KvRows& rows, int64_t key,
                  int keys, float* widened, ChunkOperands& chunk, Scratch& scratch);

}  // namespace cpu
}  // namespace fa
