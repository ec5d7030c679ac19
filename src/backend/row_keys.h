// Masks that are data: the keys that ranges and lists leave each row. Backends take them 64 keys at a time, as bits.
#pragma once
#include "backend/problem.h"
#include "spec/shape.h"

namespace fa {

// The ranges of keys that rows see, as pairs (begin, end): ascending, apart, possibly empty, and possibly beyond the keys.
struct KeyRanges {
    const int32_t* pairs;   // NULL: rows see all
    RowStrides rows;        // in pairs
    int64_t max, interval;  // intervals of a row, and pairs between two
};
static inline KeyRanges key_ranges(const Problem& problem, const fa_forward_args_t& args) {
    const int64_t* s = problem.d.key_range_stride;
    return {problem.has(FA_OPERAND_KEY_RANGES) ? args.key_ranges : nullptr, lse_strides(s, problem.packed_q()), problem.d.key_range_max,
            s[3]};
}
// What they leave a row, whose first pair is number `row`, of keys [key, key + 64).
FA_FN uint64_t range_bits(const KeyRanges& ranges, int64_t row, int64_t key) {
    uint64_t bits = 0;
    for (int64_t t = 0; t < ranges.max; t++) {
        const int32_t* const pair = ranges.pairs + 2 * (row + t * ranges.interval);
        const int64_t begin = pair[0], end = pair[1];
        if (begin >= end) continue;
        if (begin >= key + kWordKeys) break;
        bits |= key_bits(begin, end, key);
    }
    return bits;
}
// The first key from `key` on; INT64_MAX: none.
FA_FN int64_t next_in_ranges(const KeyRanges& ranges, int64_t row, int64_t key) {
    for (int64_t t = 0; t < ranges.max; t++) {
        const int32_t* const pair = ranges.pairs + 2 * (row + t * ranges.interval);
        if (pair[0] < pair[1] && pair[1] > key) return max_of(key, int64_t(pair[0]));
    }
    return INT64_MAX;
}
// The keys from a row's first to its last, of so many.
FA_FN KeyBand range_hull(const KeyRanges& ranges, int64_t row, int64_t seqlen_k) {
    KeyBand hull{seqlen_k, 0};
    for (int64_t t = 0; t < ranges.max; t++) {
        const int32_t* const pair = ranges.pairs + 2 * (row + t * ranges.interval);
        if (pair[0] >= pair[1]) continue;
        hull.begin = min_of(hull.begin, int64_t(pair[0]));
        hull.end = max_of(hull.end, int64_t(pair[1]));
    }
    return {max_of(hull.begin, 0), min_of(hull.end, seqlen_k)};
}

// Lists of blocks of keys (FlexAttention's BlockMask) as bits, a list for each block of rows and list head: the blocks that key_list names,
// where masks act, and those of full_list, where they do not. A backend writes them into its workspace first (expand_list() below), so
// that they can be asked by rows and by keys.
struct KeyLists {
    uint64_t* words;                // NULL: none
    int64_t row_block, key_block;   // rows that share a list, keys of a bit
    int64_t key_blocks;             // that a list may name
    int64_t masked, full;           // words before the bits of either; −1: it is not given
    int64_t size;                   // words of a list
    int64_t count, row_blocks;      // lists in all, and of a head
    int64_t heads, heads_per_list;  // list heads of a sequence, query heads that share one
    int64_t batches, list_heads;    // of which there are lists: 1 where all share them
};
static inline KeyLists key_lists(const Problem& problem, void* memory) {
    const fa_attention_desc_t& d = problem.d;
    KeyLists lists{};
    if (!problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST) || problem.slots()) return lists;
    lists.words = static_cast<uint64_t*>(memory);
    lists.row_block = d.list_rows;
    lists.key_block = d.list_keys;
    lists.key_blocks = ceil_div(d.seqlen_k, d.list_keys);
    const int64_t width = lists.key_blocks / kWordKeys + 2;  // one beyond the last bit, which unaligned reads may touch
    lists.masked = problem.has(FA_OPERAND_KEY_LIST) ? 0 : -1;
    lists.full = problem.has(FA_OPERAND_FULL_LIST) ? (lists.masked + 1) * width : -1;
    lists.size = width * (lists.masked == 0 && lists.full > 0 ? 2 : 1);
    lists.row_blocks = ceil_div(problem.packed_q() ? d.total_q : d.seqlen_q, d.list_rows);
    lists.batches = problem.packed_q() ? 1 : d.list_stride[0] == 0 && d.list_count_stride[0] == 0 ? min_of(d.batch, 1) : d.batch;
    lists.list_heads = d.list_stride[1] == 0 && d.list_count_stride[1] == 0 ? 1 : d.list_heads;
    lists.heads_per_list = d.heads_q / d.list_heads;
    lists.count = lists.batches * lists.list_heads * lists.row_blocks;
    return lists;
}
static inline int64_t key_list_bytes(const Problem& problem) {
    const KeyLists lists = key_lists(problem, nullptr);
    return lists.count * lists.size * int64_t(sizeof(uint64_t));
}
// The bits of the list that a row of a sequence has.
FA_FN const uint64_t* list_of(const KeyLists& lists, const Sequence& sequence, int64_t batch, int64_t head, int64_t row) {
    const int64_t b = lists.batches == 1 ? 0 : batch, g = lists.list_heads == 1 ? 0 : head / lists.heads_per_list;
    return lists.words + ((b * lists.list_heads + g) * lists.row_blocks + (sequence.q_begin + row) / lists.row_block) * lists.size;
}
FA_FN bool names_block(const uint64_t* blocks, int64_t block) { return (blocks[block / kWordKeys] >> block % kWordKeys & 1) != 0; }
// Keys [key, key + 64) of the blocks that are named.
FA_FN uint64_t listed_bits(const KeyLists& lists, const uint64_t* blocks, int64_t key) {
    if (lists.key_block == 1) {
        const int64_t word = key / kWordKeys, from = key % kWordKeys;
        return blocks[word] >> from | (from ? blocks[word + 1] << (kWordKeys - from) : 0);
    }
    uint64_t bits = 0;
    for (int64_t b = key / lists.key_block; b < lists.key_blocks && b * lists.key_block < key + kWordKeys; b++)
        if (names_block(blocks, b)) bits |= key_bits(b * lists.key_block, (b + 1) * lists.key_block, key);
    return bits;
}
// The first key from `key` on of a block that is named; INT64_MAX: none.
FA_FN int64_t next_listed(const KeyLists& lists, const uint64_t* blocks, int64_t key) {
    for (int64_t b = key / lists.key_block; b < lists.key_blocks; b++) {
        if (blocks[b / kWordKeys] == 0) b |= kWordKeys - 1;
        else if (names_block(blocks, b)) return max_of(key, b * lists.key_block);
    }
    return INT64_MAX;
}
FA_FN int64_t listed_end(const KeyLists& lists, const uint64_t* blocks) {
    for (int64_t b = lists.key_blocks - 1; b >= 0; b--) {
        if (blocks[b / kWordKeys] == 0) b -= b % kWordKeys;
        else if (names_block(blocks, b)) return (b + 1) * lists.key_block;
    }
    return 0;
}

// Both, beside the masks that are bands.
struct RowSets {
    KeyRanges ranges;
    KeyLists lists;
    constexpr bool any() const { return ranges.pairs != nullptr || lists.words != nullptr; }
};
// Keys [key, key + 64) that a row sees before boolean masks, and those of them where these do not act. Of a list: where masks act, and
// where they do not.
struct RowKeys {
    uint64_t visible, unmasked;
};
FA_FN RowKeys list_keys(const KeyLists& lists, const uint64_t* list, int64_t seqlen_k, int64_t key) {
    return {lists.masked < 0 ? 0 : listed_bits(lists, list + lists.masked, key),
            lists.full < 0 ? 0 : listed_bits(lists, list + lists.full, key) & key_bits(0, seqlen_k, key)};
}
FA_FN RowKeys row_keys(const RowSets& sets, const Sequence& sequence, const KeyBand& band, int64_t batch, int64_t head, int64_t row,
                       int64_t key) {
    RowKeys keys{key_bits(band.begin, band.end, key), 0};
    if (sets.ranges.pairs) keys.visible &= range_bits(sets.ranges, query_index(sets.ranges.rows, sequence, batch, row, head), key);
    if (!sets.lists.words) return keys;
    const RowKeys listed = list_keys(sets.lists, list_of(sets.lists, sequence, batch, head, row), sequence.k_len, key);
    return {(keys.visible & listed.visible) | listed.unmasked, listed.unmasked};
}
// A key from `key` on before which the row sees none.
FA_FN int64_t next_row_key(const RowSets& sets, const Sequence& sequence, int64_t batch, int64_t head, int64_t row, int64_t key) {
    if (!sets.lists.words) return next_in_ranges(sets.ranges, query_index(sets.ranges.rows, sequence, batch, row, head), key);
    const uint64_t* const list = list_of(sets.lists, sequence, batch, head, row);
    int64_t next = INT64_MAX;
    if (sets.lists.masked >= 0) next = next_listed(sets.lists, list + sets.lists.masked, key);
    if (sets.lists.full >= 0) next = min_of(next, next_listed(sets.lists, list + sets.lists.full, key));
    return next;
}
// From the first to the last key that a row may see.
FA_FN KeyBand row_hull(const RowSets& sets, const Sequence& sequence, KeyBand band, int64_t batch, int64_t head, int64_t row) {
    if (sets.ranges.pairs) {
        const KeyBand hull = range_hull(sets.ranges, query_index(sets.ranges.rows, sequence, batch, row, head), sequence.k_len);
        band = {max_of(band.begin, hull.begin), min_of(band.end, hull.end)};
    }
    if (!sets.lists.words) return band;
    const uint64_t* const list = list_of(sets.lists, sequence, batch, head, row);
    KeyBand all{sequence.k_len, 0};
    if (sets.lists.masked >= 0) {
        const uint64_t* const blocks = list + sets.lists.masked;
        all = {max_of(band.begin, next_listed(sets.lists, blocks, 0)), min_of(band.end, listed_end(sets.lists, blocks))};
        if (all.begin >= all.end) all = {sequence.k_len, 0};
    }
    if (sets.lists.full >= 0) {
        const uint64_t* const blocks = list + sets.lists.full;
        all = {min_of(all.begin, next_listed(sets.lists, blocks, 0)), max_of(all.end, listed_end(sets.lists, blocks))};
    }
    return {all.begin, min_of(all.end, sequence.k_len)};
}

// A list as the caller has it.
struct ListSource {
    const int32_t *entries, *count;  // NULL: no such list; its length is `most`
    int64_t step, most;
    constexpr int64_t length() const { return !entries ? 0 : !count ? most : *count < 0 ? 0 : *count < most ? *count : most; }
};
struct ListTable {
    const int32_t *entries[2], *counts[2];
    int64_t stride[4], count_stride[3], most;
};
static inline ListTable list_table(const Problem& problem, const fa_forward_args_t& args) {
    const auto given = [&](uint64_t operand, const int32_t* array) { return problem.has(operand) ? array : nullptr; };
    ListTable table{};
    table.entries[0] = given(FA_OPERAND_KEY_LIST, args.key_list);
    table.entries[1] = given(FA_OPERAND_FULL_LIST, args.full_list);
    table.counts[0] = given(FA_OPERAND_KEY_LIST_COUNT, args.key_list_count);
    table.counts[1] = given(FA_OPERAND_FULL_LIST_COUNT, args.full_list_count);
    for (int i = 0; i < 4; i++) table.stride[i] = problem.d.list_stride[i];
    for (int i = 0; i < 3; i++) table.count_stride[i] = problem.d.list_count_stride[i];
    table.most = problem.d.list_max;
    return table;
}
FA_FN ListSource list_source(const ListTable& table, int64_t batch, int64_t head, int64_t block, int full) {
    const int32_t *const entries = table.entries[full], *const counts = table.counts[full];
    return {entries ? entries + batch * table.stride[0] + head * table.stride[1] + block * table.stride[2] : nullptr,
            counts ? counts + batch * table.count_stride[0] + head * table.count_stride[1] + block * table.count_stride[2] : nullptr,
            table.stride[3], table.most};
}
// Number `index` of KeyLists.count; full: of full_list.
FA_FN ListSource list_source(const ListTable& table, const KeyLists& lists, int64_t index, int full) {
    const int64_t block = index % lists.row_blocks, of_head = index / lists.row_blocks;
    return list_source(table, of_head / lists.list_heads, of_head % lists.list_heads, block, full);
}

// Lists of slots of a paged cache: all keys that a block of rows has, in the order of its list.
struct SlotLists {
    ListTable table;
    int64_t row_block;         // rows that share a list; 0: no lists of slots
    int64_t heads_per_list;    // query heads that share one, a multiple of those that share a kv head
    int64_t page_size, slots;  // of a page, and of the cache
    constexpr bool any() const { return row_block > 0; }
};
static inline SlotLists slot_lists(const Problem& problem, const fa_forward_args_t& args) {
    if (!problem.slots()) return {};
    return {list_table(problem, args), problem.d.list_rows, problem.d.heads_q / problem.d.list_heads, problem.d.page_size,
            problem.d.num_pages * problem.d.page_size};
}
FA_FN ListSource slots_of(const SlotLists& lists, const Sequence& sequence, int64_t batch, int64_t head, int64_t row) {
    return list_source(lists.table, batch, head / lists.heads_per_list, (sequence.q_begin + row) / lists.row_block, 0);
}
FA_FN KeyLocation locate_slot(const SlotLists& lists, int64_t slot) {
    return {slot / lists.page_size, slot % lists.page_size, slot >= 0 && slot < lists.slots};
}

// Lists whose rows go through their entries as those of slots do, one by one: keys, or blocks of them, those of full_list first.
struct GatheredLists {
    SlotLists lists;
    bool slots;     // else entries are keys of the sequence, or
    int64_t block;  // blocks of so many
    constexpr bool any() const { return lists.any(); }
    constexpr bool blocks() const { return block > 1; }
};
static inline GatheredLists gathered_lists(const Problem& problem, const fa_forward_args_t& args) {
    return {{list_table(problem, args), problem.d.list_rows, problem.d.heads_q / problem.d.list_heads, problem.d.page_size,
             problem.d.num_pages * problem.d.page_size},
            problem.slots(),
            problem.d.list_keys};
}
FA_FN ListSource full_blocks_of(const SlotLists& lists, const Sequence& sequence, int64_t batch, int64_t head, int64_t row) {
    return list_source(lists.table, batch, head / lists.heads_per_list, (sequence.q_begin + row) / lists.row_block, 1);
}
FA_FN KeyLocation locate_entry(const GatheredLists& gathered, const Pages& pages, const Sequence& sequence, int64_t keys, int64_t entry) {
    if (gathered.slots) return locate_slot(gathered.lists, entry);
    if (entry < 0 || entry >= keys) return {0, 0, false};
    return locate_key(pages, sequence, entry);
}

// Tiles of `rows` rows, of which a sequence has for each kv head as many as its group-major rows need. They begin anew after `period` rows:
// those with lists of their own that they gather share no tile.
struct RowTiles {
    int64_t rows, period, of_period;  // of_period: tiles
};
static inline RowTiles row_tiles(const Problem& problem, int64_t rows, bool gathers) {
    const int64_t period = gathers ? problem.d.list_rows * problem.group : INT64_MAX;
    return {rows, period, ceil_div(period, rows)};
}
static inline RowTiles row_tiles(const Problem& problem, int64_t rows) { return row_tiles(problem, rows, problem.slots()); }
FA_FN int64_t tile_count(const RowTiles& tiles, int64_t rows) {
    return rows / tiles.period * tiles.of_period + ceil_div(rows % tiles.period, tiles.rows);
}
FA_FN int64_t tile_begin(const RowTiles& tiles, int64_t tile) {
    return tile / tiles.of_period * tiles.period + tile % tiles.of_period * tiles.rows;
}
FA_FN int64_t tile_end(const RowTiles& tiles, int64_t tile) {
    return min_of(tile_begin(tiles, tile) + tiles.rows, (tile / tiles.of_period + 1) * tiles.period);
}
// The most rows that tiles may share: of a sequence and kv head, or of a list whose entries they gather.
static inline int64_t rows_together(const Problem& problem, bool gathers) {
    return (gathers ? min_of(problem.d.list_rows, problem.d.seqlen_q) : problem.d.seqlen_q) * problem.group;
}
static inline int64_t rows_together(const Problem& problem) { return rows_together(problem, problem.slots()); }

}  // namespace fa
