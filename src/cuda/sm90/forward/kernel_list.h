// What the host knows of a compiled forward kernel for sm_90a, and the lists of them. kernels.def names the kernels; CMake makes
// translation units of a few kernels each from it (forward/unit.cu.in), and dispatch.cu chooses among all of them.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

struct Sm90ForwardParams;
enum class MaskKind;
enum class ScoreMod;
enum class PvProduct;

struct Sm90Kernel {
    const char* name;
    int rows;  // of the tiles that a CTA computes at once
    int max_dim_v;
    MaskKind mask;
    ScoreMod score_mod;
    PvProduct pv;
    bool descale;      // does it multiply with factors of q, k and v?
    int cluster_size;  // CTAs that share k and v: 2 in pairs
    int min_seqlen_k;  // calls with fewer keys have a better kernel
    int cost;          // of a row's way through many keys, relative to the other kernels of its width
    int block_m, block_n, threads, shared_bytes;
    bool packs_heads;            // can a tile have rows of several heads?
    bool paged_kv;               // can k and v lie in pages?
    int k_box_rows, v_box_rows;  // rows of k and of v that one TMA load brings
    void (*kernel)(Sm90ForwardParams);
    constexpr int tiles_at_once() const { return (threads / 128 - 1) * 64 / block_m; }  // of a CTA
};

// A translation unit's kernels, of one type and width of q, in the order of kernels.def.
struct Sm90KernelList {
    const Sm90Kernel* kernel;
    int count;
};
template <int unit>
Sm90KernelList sm90_kernels();

}  // namespace gpu
}  // namespace fa
