// The key side: rows of k and v.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

enum class KvOperand { k, v };
struct KvRowsF32 {
    const float* data;  // NULL: not loaded yet
    int64_t stride;
};
// f32 rows of keys [key, key + keys): in place where memory already holds them so, else converted into `buffer`.
KvRowsF32 load_k(const Call& call, const QueryTile& tile, int64_t key, int keys, float* buffer, Scratch& scratch);
KvRowsF32 load_v(const Call& call, const QueryTile& tile, int64_t key, int keys, float* buffer, Scratch& scratch);

// Addresses of rows of keys [key, key + keys) as they are stored, of one of the operand's own heads; the de-scale factors of the tile's,
// where rows are plain.
void locate_kv_rows(const Call& call, const QueryTile& tile, KvOperand operand, int64_t head, int64_t key, int keys, const char** rows);
void load_descales(const Call& call, const QueryTile& tile, KvOperand operand, int64_t key, int keys, float* factors);

}  // namespace cpu
}  // namespace fa
