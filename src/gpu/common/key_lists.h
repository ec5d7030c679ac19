// Lists of blocks of keys, from the caller's entries to the bits that tiles ask: a launch before the others.
#pragma once
#include "gpu/common/memory.h"
#include "backend/row_keys.h"

namespace fa {
namespace gpu {

struct ListParams {
    ListTable table;
    KeyLists lists;
};

// A block for each list. Each thread makes words of its own from all entries, so that nothing is added up. Entries beyond the keys name
// nothing.
constexpr int kListThreads = 128;
FA_KERNEL void FA_BOUNDS(kListThreads, 1) expand_lists(FA_PARAM ListParams params) {
    const KeyLists& lists = params.lists;
    uint64_t* const bits = lists.words + rt::block() * lists.size;
    for (int full = 0; full < 2; full++) {
        const int64_t at = full ? lists.full : lists.masked;
        if (at < 0) continue;
        const ListSource from = list_source(params.table, lists, rt::block(), full);
        const int64_t length = from.entries ? from.length() : 0;  // lists without room for an entry may be NULL
        for (int64_t word = rt::thread(); word < lists.key_blocks / kWordKeys + 2; word += kListThreads) {
            uint64_t named = 0;
            for (int64_t e = 0; e < length; e++) {
                const int64_t block = from.entries[e * from.step];
                if (block >= 0 && block < lists.key_blocks && block / kWordKeys == word) named |= uint64_t(1) << block % kWordKeys;
            }
            bits[at + word] = named;
        }
    }
}

}  // namespace gpu
}  // namespace fa
