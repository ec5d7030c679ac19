// Which keys a tile of query rows visits, and which of them it must edit: bands of causal, window and chunk masks, known from the first
// and last row; ranges and lists, which rows have of their own, as a word of 64 keys for
// each.
#include "cpu/forward/visible_keys.h"

namespace fa {
namespace cpu {
namespace {

static_assert(kTileKeys == kWordKeys, "a bit for each key of a tile");

// visit(lane, position, head) for each row of the tile.
template <class Visit>
void each_row(const Call& call, const QueryTile& tile, Visit visit) {
    RowCursor at(tile, call.p->group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) visit(lane, at.position, tile.kv_head * at.group + at.group_head);
}

// The list that all rows of the tile have; NULL: none, or several.
const uint64_t* common_list(const Call& call, const QueryTile& tile) {
    if (!call.sets.lists.words) return nullptr;
    const int64_t group = call.p->group, last = tile.position(tile.rows - 1, group);
    const uint64_t* const list = list_of(call.sets.lists, tile.seq, tile.batch, tile.kv_head * group, tile.position(0, group));
    return list == list_of(call.sets.lists, tile.seq, tile.batch, (tile.kv_head + 1) * group - 1, last) ? list : nullptr;
}

}  // namespace

KeyBand visible_keys(const Call& call, const QueryTile& tile, int64_t begin, int64_t end) {
    const KeyBand first = key_band(tile.rule, tile.position(0, call.p->group), tile.seq.k_len);
    const KeyBand last = key_band(tile.rule, tile.position(tile.rows - 1, call.p->group), tile.seq.k_len);
    if (!call.sets.any()) return {max_of(begin, first.begin), min_of(end, last.end)};
    KeyBand all{end, begin};
    each_row(call, tile, [&](int, int64_t position, int64_t head) {
        const KeyBand row = row_hull(call.sets, tile.seq, key_band(tile.rule, position, tile.seq.k_len), tile.batch, head, position);
        if (row.begin >= row.end) return;
        all.begin = min_of(all.begin, row.begin);
        all.end = max_of(all.end, row.end);
    });
    return {max_of(begin, all.begin), min_of(end, all.end)};
}

KeyBand visible_range(const Call& call, const QueryTile* tiles, int count, int64_t begin, int64_t end, KeyBand* visible) {
    KeyBand range{end, begin};
    for (int i = 0; i < count; i++) {
        visible[i] = visible_keys(call, tiles[i], begin, end);
        if (visible[i].begin >= visible[i].end) continue;
        range.begin = min_of(range.begin, visible[i].begin);
        range.end = max_of(range.end, visible[i].end);
    }
    return range;
}

RowKeys visible_bits(const Call& call, const QueryTile& tile, int64_t position, int64_t head, int64_t key) {
    return row_keys(call.sets, tile.seq, key_band(tile.rule, position, tile.seq.k_len), tile.batch, head, position, key);
}

KeyBand common_keys(const Call& call, const QueryTile& tile, int64_t begin, int64_t end) {
    const KeyBand first = key_band(tile.rule, tile.position(0, call.p->group), tile.seq.k_len);
    const KeyBand last = key_band(tile.rule, tile.position(tile.rows - 1, call.p->group), tile.seq.k_len);
    KeyBand common{max_of(begin, last.begin), min_of(end, first.end)};
    if (call.sets.lists.words || (call.sets.ranges.pairs && call.sets.ranges.max > 1)) return {end, begin};
    if (!call.sets.any()) return common;
    each_row(call, tile, [&](int, int64_t position, int64_t head) {
        const KeyBand row = row_hull(call.sets, tile.seq, {0, tile.seq.k_len}, tile.batch, head, position);
        common.begin = max_of(common.begin, row.begin);
        common.end = min_of(common.end, row.end);
    });
    return common;
}

TileClass visible_words(const Call& call, const QueryTile& tile, int64_t key, uint64_t within, int lanes, uint64_t* words) {
    uint64_t some = 0, all = ~uint64_t(0);
    RowSets own = call.sets;
    RowKeys listed{~uint64_t(0), 0};
    if (const uint64_t* list = common_list(call, tile)) {  // most blocks are absent or full: no row need be asked
        listed = list_keys(call.sets.lists, list, tile.seq.k_len, key);
        const bool none = ((listed.visible | listed.unmasked) & within) == 0;
        if (none || (listed.unmasked & within) == within) {
            for (int lane = 0; lane < lanes; lane++) words[lane] = none || lane >= tile.rows ? 0 : within;
            return none ? TileClass::empty : TileClass::full;
        }
        own.lists.words = nullptr;
    }
    each_row(call, tile, [&](int lane, int64_t position, int64_t head) {
        const KeyBand band = key_band(tile.rule, position, tile.seq.k_len);
        const uint64_t seen = row_keys(own, tile.seq, band, tile.batch, head, position, key).visible;
        const uint64_t bits = words[lane] = ((seen & listed.visible) | listed.unmasked) & within;
        some |= bits;
        all &= bits;
    });
    for (int lane = tile.rows; lane < lanes; lane++) words[lane] = 0;
    return some == 0 ? TileClass::empty : all == within ? TileClass::full : TileClass::partial;
}

TileClass classify(const Call& call, const QueryTile& tile, int64_t key, int keys) {
    const int64_t top = tile.position(0, call.p->group), rows = tile.position(tile.rows - 1, call.p->group) - top + 1;
    const TileClass band = tile_class(tile.rule, top, rows, key, keys, tile.seq.k_len);
    if (!call.sets.any() || (band == TileClass::empty && !call.sets.lists.words)) return band;
    uint64_t words[kMaxRows];
    return visible_words(call, tile, key, low_bits(keys), tile.rows, words);
}

int64_t next_visible_block(const Call& call, const QueryTile* tiles, int count, int64_t start, int64_t key) {
    int64_t nearest = INT64_MAX;
    for (int i = 0; i < count; i++) {
        if (common_list(call, tiles[i])) {
            const int64_t head = tiles[i].head(0, call.p->group), position = tiles[i].position(0, call.p->group);
            nearest = min_of(nearest, next_row_key(call.sets, tiles[i].seq, tiles[i].batch, head, position, key));
            continue;
        }
        each_row(call, tiles[i], [&](int, int64_t position, int64_t head) {
            nearest = min_of(nearest, next_row_key(call.sets, tiles[i].seq, tiles[i].batch, head, position, key));
        });
    }
    return nearest == INT64_MAX ? nearest : start + (nearest - start) / kTileKeys * kTileKeys;
}

void mask_tile(const Call& call, const QueryTile& tile, int64_t key, int keys, Scratch& scratch) {
    uint64_t gaps[kMaxRows] = {}, any = 0;
    for (int lane = tile.rows; lane < tile.width; lane++) scratch.band_begin[lane] = 0, scratch.band_end[lane] = keys;
    each_row(call, tile, [&](int lane, int64_t position, int64_t head) {
        const uint64_t bits = visible_bits(call, tile, position, head, key).visible & low_bits(keys);
        scratch.band_begin[lane] = bits ? __builtin_ctzll(bits) : 0;
        scratch.band_end[lane] = bits ? kWordKeys - __builtin_clzll(bits) : 0;
        any |= gaps[lane] = ~bits & key_bits(scratch.band_begin[lane], scratch.band_end[lane], 0);
    });
    call.k->mask_bands(scratch.s, tile.vectors, keys, scratch.band_begin, scratch.band_end);
    for (int lane = 0; any && lane < tile.rows; lane++)
        for (uint64_t rest = gaps[lane]; rest; rest &= rest - 1) scratch.s[__builtin_ctzll(rest) * tile.width + lane] = kNegInf;
}

}  // namespace cpu
}  // namespace fa
