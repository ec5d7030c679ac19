// Lists of keys as lists of slots, which the latent kernels gather: each key once, in ascending order, without those that a length or the
// diagonal leaves out, and at its place in a page or a sequence. So what a list says does not depend on how often it says it, nor bits on
// the order.
#pragma once
#include "cuda/sm90/latent/params.h"

namespace fa {
namespace gpu {

constexpr int kSlotThreads = 512;
constexpr int64_t kMostListedKeys = int64_t(1) << 20;  // of a sequence: 128 KB of bits

struct LatentKeyLists {
    ListTable from;
    SequenceTable sequences;
    Pages pages;
    int lists;       // of a sequence
    int keys, most;  // of a sequence; entries of a list of slots
    int rows;        // of a page, or of a sequence
    bool causal;     // with a list for each row
    int32_t *slots, *counts;
};

FA_KERNEL void FA_BOUNDS(kSlotThreads, 1) list_latent_slots(FA_PARAM LatentKeyLists params) {
    rt::release_successor();
    rt::fetch_parameters(params);
    uint32_t* const bits = reinterpret_cast<uint32_t*>(rt::shared_memory());
    __shared__ int of_warp[kSlotThreads / 32];
    const int batch = int(blockIdx.x) / params.lists, list = int(blockIdx.x) % params.lists, thread = int(threadIdx.x),
              words = (params.keys + 31) / 32;
    const int own = (words + kSlotThreads - 1) / kSlotThreads, first = min(own * thread, words), last = min(first + own, words);
    for (int i = thread; i < words; i += kSlotThreads) bits[i] = 0;
    rt::wait_for_predecessor();
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const int end = int(params.causal ? min_of(seq.k_len, seq.off + list + 1) : seq.k_len);
    const ListSource from = list_source(params.from, batch, 0, list, 0);
    const int entries = int(from.length());
    __syncthreads();
    for (int e = thread; e < entries; e += kSlotThreads) {
        const int key = from.entries[e * from.step];
        if (key >= 0 && key < end) atomicOr(&bits[key / 32], 1u << key % 32);
    }
    __syncthreads();
    int before = 0;  // keys of other threads' words
    for (int i = first; i < last; i++) before += __popc(bits[i]);
    const int all = before;
    FA_UNROLL_FOR (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (thread % 32 >= step) before += other;
    }
    if (thread % 32 == 31) of_warp[thread / 32] = before;
    __syncthreads();
    before -= all;
    int sum = 0;
    for (int i = 0; i < kSlotThreads / 32; i++) {
        if (i == thread / 32) before += sum;
        sum += of_warp[i];
    }
    int32_t* to = params.slots + int64_t(blockIdx.x) * params.most;
    if (thread == 0) params.counts[blockIdx.x] = min(sum, params.most);
    for (int i = first; i < last; i++)
        for (uint32_t word = bits[i]; word != 0 && before < params.most; word &= word - 1, before++) {
            const KeyLocation at = locate_key(params.pages, seq, 32 * i + __ffs(int(word)) - 1);
            to[before] = at.valid ? int32_t(at.outer * params.rows + at.row) : -1;
        }
}

}  // namespace gpu
}  // namespace fa
