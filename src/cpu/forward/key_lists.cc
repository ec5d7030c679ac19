// Lists of blocks of keys, from the caller's entries to the bits that tiles ask.
#include "cpu/forward/key_lists.h"

namespace fa {
namespace cpu {

void expand_list(const Call& call, int64_t index) {
    const KeyLists& l = call.sets.lists;
    const ListTable table = list_table(*call.p, *call.a);
    uint64_t* const bits = l.words + index * l.size;
    memset(bits, 0, size_t(l.size) * sizeof *bits);
    for (int full = 0; full < 2; full++) {
        const ListSource from = list_source(table, l, index, full);
        uint64_t* const blocks = bits + (full ? l.full : l.masked);
        for (int64_t e = 0; from.entries && e < from.length(); e++) {
            const int64_t block = from.entries[e * from.step];
            if (block >= 0 && block < l.key_blocks) blocks[block / kWordKeys] |= uint64_t(1) << block % kWordKeys;
        }
    }
}

}  // namespace cpu
}  // namespace fa
