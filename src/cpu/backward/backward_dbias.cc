// dbias = dS, summed over what shares an element. Tiles are computed once more for it: a piece owns its elements, so that each sum is
// taken in one order whatever the threads do.
#include "cpu/backward/backward_call.h"

namespace fa {
namespace cpu {
namespace {

// What a piece covers: all of a dimension that dbias sums over, else one sequence, kv head or run of keys.
struct Piece {
    int64_t batch_begin, batch_end, head_begin, head_end, key_begin, key_end;
};

constexpr int64_t kPieceKeys = 4 * kTileKeys;

struct Cut {
    int64_t batches, heads, keys;
};

Cut cut_of(const GradientCall& g) {
    const fa_attention_desc_t& d = g.c.p->d;
    const int64_t* s = g.a->dbias_stride;
    return {s[0] ? d.batch : 1, s[1] ? d.heads_k : 1, s[3] ? ceil_div(d.seqlen_k, kPieceKeys) : 1};
}

Piece piece_at(const GradientCall& g, int64_t index) {
    const fa_attention_desc_t& d = g.c.p->d;
    const Cut cut = cut_of(g);
    const int64_t key = index % cut.keys, head = index / cut.keys % cut.heads, batch = index / cut.keys / cut.heads;
    Piece p{0, d.batch, 0, d.heads_k, 0, d.seqlen_k};
    if (g.a->dbias_stride[0]) p.batch_begin = batch, p.batch_end = batch + 1;
    if (g.a->dbias_stride[1]) p.head_begin = head, p.head_end = head + 1;
    if (g.a->dbias_stride[3]) p.key_begin = key * kPieceKeys, p.key_end = min_of(p.key_begin + kPieceKeys, d.seqlen_k);
    return p;
}

float* line_at(const GradientCall& g, int64_t batch, int64_t head, int64_t position) {
    const int64_t* s = g.a->dbias_stride;
    return g.a->dbias + batch * s[0] + head * s[1] + position * s[2];
}

void clear_piece(const GradientCall& g, const Piece& piece) {
    const int64_t group = g.c.p->group, step = g.a->dbias_stride[3];
    for (int64_t b = piece.batch_begin; b < piece.batch_end; b++)
        for (int64_t h = piece.head_begin * group; h < piece.head_end * group; h++)
            for (int64_t i = 0; i < g.c.p->d.seqlen_q; i++)
                for (int64_t j = piece.key_begin; j < piece.key_end; j++) line_at(g, b, h, i)[j * step] = 0.f;
}

void add_tile(const GradientCall& g, const QueryTile& t, int64_t key, int keys, const float* ds) {
    const int64_t step = g.a->dbias_stride[3];
    RowCursor at(t, g.c.p->group);
    for (int lane = 0; lane < t.rows; lane++, at.next()) {
        float* const line = line_at(g, t.batch, t.kv_head * at.group + at.group_head, at.position) + key * step;
        for (int j = 0; j < keys; j++) line[j * step] += ds[j * t.width + lane];
    }
}

void add_head(const GradientCall& g, const Piece& piece, int64_t batch, int64_t kv_head, GradientScratch& x) {
    const Call& c = g.c;
    find_deltas(g, batch, kv_head, 0, c.p->d.seqlen_q * c.p->group, x.own_delta, x);
    x.row_delta = x.own_delta;
    QueryTile t;
    for (int64_t block = 0; init_tile(c, batch, kv_head, block, &t); block++) {
        const KeyBand visible = visible_keys(t, *c.p, piece.key_begin, min_of(piece.key_end, t.seq.k_len));
        if (visible.begin >= visible.end) continue;
        load_rows(g, t, x);
        const int64_t first = piece.key_begin + (visible.begin - piece.key_begin) / kTileKeys * kTileKeys;
        for (int64_t key = first; key < visible.end; key += kTileKeys) {
            const int keys = int(min_of(kTileKeys, visible.end - key));
            KeyBlock tile{key, keys, {}, load_v(c, t, key, keys, x.v, x.w)};
            if (differentiate_tile(g, t, tile, key, keys, false, x)) add_tile(g, t, key, keys, x.dp);
        }
    }
}

}  // namespace

int64_t bias_pieces(const GradientCall& g) {
    const Cut cut = cut_of(g);
    return cut.batches * cut.heads * cut.keys;
}

void write_dbias(const GradientCall& g, int64_t index, GradientScratch& x) {
    const Piece piece = piece_at(g, index);
    if (!(g.a->flags & FA_BACKWARD_ACCUMULATE)) clear_piece(g, piece);
    for (int64_t b = piece.batch_begin; b < piece.batch_end; b++)
        for (int64_t h = piece.head_begin; h < piece.head_end; h++) add_head(g, piece, b, h, x);
}

}  // namespace cpu
}  // namespace fa
