// Where a key lies in pages, for Hopper's producers: locate_key (backend/problem.h) in 32 bits, which the dispatch has checked to be
// enough. A lookup stands before the TMA loads that wait for it, and a 64-bit division takes several times as long. `params`: a kernel's
// parameters.
#pragma once
#include "cuda/rt_cuda.h"
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

// A key's page, which need not exist, and the row in it.
struct PagedRow {
    int page, row;
    template <class Params>
    FA_MEMBER bool exists(const Params& params) const {
        return uint32_t(page) < uint32_t(params.x.pages.count);
    }
};
template <class Params>
FA_DEVICE PagedRow find_paged_row(const Params& params, int kv_batch, int key) {
    const int size = int(params.x.pages.size), column = key / size;
    return {params.x.pages.table[kv_batch * params.x.pages.row_stride + column], key - column * size};
}

// Where a block of 64 keys lies, in one page where there are pages, and how many of them there are before `end`; a page that does not
// exist holds none, and comes as zeros. `source`: k_begin and kv_index.
struct KeyBlock {
    int outer, row, keys;
};
template <class Params>
FA_DEVICE KeyBlock find_key_block(const Params& params, int4 source, int end, int key) {
    KeyBlock block{source.y, source.x + key, min(max(end - key, 0), 64)};
    if (!params.x.pages.table || block.keys == 0) return block;
    const PagedRow at = find_paged_row(params, source.y, key);
    return at.exists(params) ? KeyBlock{at.page, at.row, block.keys} : KeyBlock{-1, at.row, 0};
}

}  // namespace gpu
}  // namespace fa
