// Rows that masks leave at most half of their keys, in calls of few rows: sequences of a batch that share one cache, say, or the leaves of
// a tree. A tile of all rows would multiply each row by every key that some row sees. Decoding reads a row's own keys alone. Which rows
// those are follows from each row's own masks, since bits depend on it.
#include "cpu/forward/sparse_rows.h"
#include "cpu/forward/kept_keys.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/visible_keys.h"

namespace fa {
namespace cpu {
namespace {

// The rows of one position, from lane `first` of the tile on, as a tile for decoding.
QueryTile position_tile(const Call& call, const QueryTile& tile, int first) {
    QueryTile rows = tile;
    rows.first = tile.first + first;
    rows.rows = int(min_of(call.p->group - rows.first % call.p->group, int64_t(tile.rows - first)));
    rows.panel_index = 0;
    return rows;
}

// Does a row see at most half of the keys that bands leave it of [begin, end)?
bool is_sparse_row(const Call& call, const QueryTile& row, int64_t begin, int64_t end) {
    const KeyBand band = visible_keys(call, row, begin, end);
    int64_t left = (band.end - band.begin) / 2;
    QueryTile one = row;
    one.rows = 1;  // heads are masked alike
    for (int64_t key = band.begin; key < band.end && left >= 0; key += kTileKeys) {
        uint64_t word;
        kept_words(call, one, key, low_bits(band.end - key), &word);
        left -= __builtin_popcountll(word);
    }
    return left >= 0;
}

void copy_state(const PartialState& from, int rows, int64_t dim, int64_t width, int first, PartialState& to) {
    for (int r = 0; r < rows; r++) {
        to.m[first + r] = from.m[r];
        to.l[first + r] = from.l[r];
        for (int64_t x = 0; x < dim; x++) to.acc[x * width + first + r] = from.acc[r * dim + x];
    }
}

}  // namespace

bool streams_sparse_rows(const Call& call, const QueryTile& tile) {
    const Problem& p = *call.p;
    return p.has(FA_OPERAND_MASK | FA_OPERAND_BIAS) && p.group <= call.decode.rows && tile.method == &call.method &&
           tile.seq.q_len * p.group <= kMaxRows && p.group * p.d.dim_v <= kTileKeys * kMaxRows && heads_share_masks(call);
}

uint64_t find_sparse_rows(const Call& call, const QueryTile& tile, int64_t begin, int64_t end) {
    uint64_t sparse = 0;
    for (int first = 0; first < tile.rows;) {
        const QueryTile rows = position_tile(call, tile, first);
        if (is_sparse_row(call, rows, begin, end)) sparse |= low_bits(rows.rows) << first;
        first += rows.rows;
    }
    return sparse;
}

void run_sparse_rows(const Call& call, const QueryTile& tile, uint64_t sparse, int64_t begin, int64_t end, PartialState& state,
                     Scratch& scratch) {
    // By vectors: as f32 tiles, they round neither q nor P.
    Method vectors = call.decode;
    vectors.matrix = vectors.rounds_q = vectors.rounds_to_8_bits = false;
    for (int first = 0; first < tile.rows;) {
        QueryTile rows = position_tile(call, tile, first);
        if (sparse >> first & 1) {
            float m[kMaxRows], l[kMaxRows];
            PartialState own{scratch.s, m, l};
            rows.method = &vectors;
            init_state(rows, call.p->d.dim_v, own);
            vectors.pack_q(call, rows, 0, scratch);
            vectors.mainloop(call, &rows, 1, begin, end, &own, scratch);
            copy_state(own, rows.rows, call.p->d.dim_v, tile.width, first, state);
        }
        first += rows.rows;
    }
}

}  // namespace cpu
}  // namespace fa
