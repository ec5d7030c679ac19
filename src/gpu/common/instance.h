// What the host knows of the compiled kernels (shape, threads, shared memory, entry points), and the functions that return the
// lists of them, by policy and width. Each list is defined in the translation unit that compiles its kernels; rows (mma/rows.h,
// simt/kernel_rows.h, transposed/rows.h) name them all once.
#pragma once
#include "gpu/common/backward_params.h"
#include "gpu/common/mma_params.h"
#include "gpu/common/simt_params.h"

namespace fa {
namespace gpu {

// Types of k and v, and how they have factors, that decoding has kernels of their own for (mma/cache/scaled_decode.h).
enum class StoredFormat { none, q4_1, q5_0, q5_1, i8, e4m3, e2m1, e2m1_halves, int4 };

struct Instance {
    const char* family;  // fwd_simt, fwd_mma, fwd_mma_byte, _fp8, _blocks, _scaled, _stored, _latent or _byte_latent, fwd_mfma,
                         // fwd_mfma_byte, fwd_wmma, fwd_wmma_byte
    int rows, columns;   // of a tile: group-major query rows; the widest head dimension of v
    int dims;            // and of q and k, where these may be more
    int keys;            // of a tile
    int threads;
    int key_warps;                    // warps that share a row tile's keys
    bool scaled;                      // reads k and v as scaled_pipe.h does, or
    StoredFormat stored;              // as stored_pipe.h does, and takes such calls alone as stored_format() says
    bool gathers;                     // lists of keys
    int resident;                     // blocks that a multiprocessor holds at once
    void (*simt)(SimtForwardParams);  // NULL: an mma kernel, of which there is one for each Kind of mma/block.h
    void (*general)(MmaForwardParams);
    void (*plain)(MmaForwardParams);
    void (*paged)(MmaForwardParams);
    int64_t (*shared_bytes)(int64_t q_dims);
};

struct Instances {
    const Instance* list;
    int count;
};

// The kernels of a backward. A tile's gradients of more columns are computed in parts, by blocks of their own.
struct BackwardInstance {
    const char* family;  // bwd_simt, bwd_mma
    int columns;
    int rows, keys;              // of a tile
    int block_keys, block_rows;  // that a block of by_keys and of by_rows takes
    int threads;
    bool dq_by_atomics;                        // by_keys can add dq up in dq_acc, in any order: then by_rows is not needed
    void (*simt_by_keys)(SimtBackwardParams);  // dk and dv; NULL: the mma kernels below
    void (*simt_by_rows)(SimtBackwardParams);  // dq, always with the same bits
    void (*mma_by_keys)(MmaBackwardParams);
    void (*mma_by_rows)(MmaBackwardParams);
    int64_t by_keys_bytes, by_rows_bytes;  // of shared memory
    bool plain;                            // takes calls that plain_backward() says are plain, and no others
};
struct BackwardInstances {
    const BackwardInstance* list;
    int count;
};

// The kernels of some lists, in their order. A list has rows (kRows), those that it takes (has) and the kernel of one (kernel<row>()).
template <class Entry, int most>
struct KernelArray {
    Entry at[most];
    int used;
};
template <class List>
constexpr int kRowCount = int(sizeof List::kRows / sizeof *List::kRows);
template <class List, int row = 0, class Kernels>
constexpr void add_kernels(Kernels& kernels) {
    if constexpr (row < kRowCount<List>) {
        if constexpr (List::has(List::kRows[row])) kernels.at[kernels.used++] = List::template kernel<row>();
        add_kernels<List, row + 1>(kernels);
    }
}
template <class Entry, class... Lists>
constexpr auto list_kernels() {
    KernelArray<Entry, (kRowCount<Lists> + ...)> kernels{};
    (add_kernels<Lists>(kernels), ...);
    return kernels;
}

// By columns; the last one's serve any wider head in parts.
BackwardInstances simt_backward_instances();

// The SIMT kernel's, by columns, then by rows, tall ones first.
Instances simt_instances();

// The compiled kernels of a policy, for the types of q and of k and v, and of one width, tall ones first.
// Each list comes from a translation unit of its own.
template <class T>
struct MmaSync;  // f16 or bf16; mma/rows.h has policies of other caches
struct MmaTf32;  // f32
// On AMD's devices, of an instruction's family.
template <int generation, class T>
struct MfmaKernels;  // of CDNA, 3 for CDNA 2, too
template <class I, class T>
struct WmmaKernels;  // I: WmmaGfx11 or WmmaGfx12
struct WmmaGfx11;
struct WmmaGfx12;
template <class Kernels>
struct ByteKernels;  // beside k and v of 8 bits
template <class Kernels>
constexpr bool kTransposed = false;
template <int generation, class T>
constexpr bool kTransposed<MfmaKernels<generation, T>> = true;
template <class I, class T>
constexpr bool kTransposed<WmmaKernels<I, T>> = true;
template <class Kernels>
constexpr bool kTransposed<ByteKernels<Kernels>> = true;
template <class Mma, int width>
Instances mma_instances();
template <class Mma, int width>
BackwardInstances mma_backward_instances();

template <>
inline BackwardInstances mma_backward_instances<MmaTf32, 256>() {
    return {};
}  // a block has no room for such tiles

// Wide heads: those of 16 bits alone have kernels for them.
template <class Mma>
constexpr bool kWideHeads = false;
template <class T>
constexpr bool kWideHeads<MmaSync<T>> = true;

struct InstanceLists {
    Instances width[5];
};
template <class Mma>
InstanceLists lists_of() {
    InstanceLists lists{{mma_instances<Mma, 64>(), mma_instances<Mma, 128>(), mma_instances<Mma, 256>(), {}, {}}};
    if constexpr (kWideHeads<Mma>) lists.width[3] = mma_instances<Mma, 512>(), lists.width[4] = mma_instances<Mma, 576>();
    return lists;
}
// Those of latent attention are of one width.
template <class Mma, int width = 576>
InstanceLists latent_lists() {
    return {{mma_instances<Mma, width>(), {}, {}, {}, {}}};
}
struct BackwardLists {
    BackwardInstances width[4];
};
template <class Mma>
BackwardLists backward_lists_of() {
    BackwardLists lists{{mma_backward_instances<Mma, 64>(), mma_backward_instances<Mma, 128>(), mma_backward_instances<Mma, 256>(), {}}};
    if constexpr (kWideHeads<Mma>) lists.width[3] = mma_backward_instances<Mma, 512>();
    return lists;
}

}  // namespace gpu
}  // namespace fa
