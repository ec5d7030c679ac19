// The instructions of sm_90a that the Hopper kernels use, one function each, named after the PTX: mbarriers, the tensor memory
// accelerator (TMA), bulk copies, clusters, setmaxnreg and wgmma. Addresses of shared memory are 32-bit (smem_addr); what
// mma_cuda.h has for every NVIDIA GPU, such as ldmatrix, is not repeated here.
#pragma once
#include <cuda.h>
#include "cuda/mma_cuda.h"

namespace fa {
namespace rt {

// ---- mbarriers: 64-bit barriers in shared memory, which complete one phase after the other; a wait names the phase by its parity, 0 or 1

FA_DEVICE void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
FA_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FA_DEVICE void mbarrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives, and makes the phase wait for that many bytes of copies as well: mbarrier.arrive.expect_tx.
FA_DEVICE void mbarrier_expect_tx(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FA_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred done;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
// Is the phase complete? Without waiting.
FA_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t phase) {
    uint32_t done;
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.b32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return done != 0;
}
// Arrives when the cp_async copies of this thread so far have come.
FA_DEVICE void cp_async_mbarrier_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// ---- named barriers 1 … 15 of a block, among `threads` threads: sync waits for all of them, arrive does not wait
FA_DEVICE void named_barrier_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
FA_DEVICE void named_barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- clusters

FA_DEVICE int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// `barrier`: an address in the cluster's shared memory (mapa). Without .release, which would cost a fence: the kernels arrive
// remotely only to say that their reads have ended.
FA_DEVICE void mbarrier_arrive_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
FA_DEVICE void mbarrier_arrive_remote(uint32_t barrier, int rank) { mbarrier_arrive_cluster(mapa(barrier, rank)); }
// A word to the shared memory of the CTA `rank`, whose mbarrier counts the 4 bytes.
FA_DEVICE void st_async(uint32_t to, uint32_t barrier, int rank, int word) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(mapa(to, rank)), "r"(word),
                 "r"(mapa(barrier, rank))
                 : "memory");
}

// ---- TMA and bulk copies. A tensor map's box is 64 columns by some rows from (column, row, head, sequence) on; in shared memory its rows
// have 128 bytes, whose 16-byte units are swizzled (CU_TENSOR_MAP_SWIZZLE_128B).

FA_DEVICE void prefetch_tensormap(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull, kEvictLast = 0x14F0000000000000ull;  // L2 cache policies
FA_DEVICE void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int column, int row, int head, int sequence, uint64_t keep) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "l"(keep)
        : "memory");
}
FA_DEVICE void tma_load_5d(uint32_t to, const CUtensorMap* map, uint32_t barrier, const int (&at)[5], uint64_t keep) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "l"(keep)
        : "memory");
}
// Multicast: to the same address in both CTAs of a cluster of two; the mbarrier at that address of each counts the bytes.
FA_DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap* map, uint32_t barrier, int column, int row, int head, int sequence,
                                  uint64_t keep) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "h"(uint16_t(3)), "l"(keep)
        : "memory");
}
// Without a tensor map: a multiple of 16 bytes as they lie in memory.
FA_DEVICE void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}
// From this CTA's shared memory to the same address in the CTA `rank`, whose mbarrier counts the bytes.
FA_DEVICE void bulk_copy_to_cta(uint32_t to, uint32_t from, int bytes, uint32_t barrier, int rank) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(mapa(to, rank)),
                 "r"(from), "r"(bytes), "r"(mapa(barrier, rank))
                 : "memory");
}
// Adds floats of shared memory to global ones, as a bulk group of its own. bulk_wait_group waits until all groups of this thread
// have been added, bulk_wait_group_read until they have been read from shared memory.
FA_DEVICE void tma_reduce_add(float* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
FA_DEVICE void bulk_wait_group_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FA_DEVICE void bulk_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Counters in global memory by which CTAs order what they write there.
FA_DEVICE uint32_t ld_acquire(const uint32_t* p) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
FA_DEVICE void red_release_add(uint32_t* p, uint32_t x) {
    asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
// Orders this thread's accesses to global memory before later ones by bulk copies (the async proxy).
FA_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
FA_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// The lane's number, read from its special register where it is needed: it takes no register before.
FA_DEVICE int read_laneid() {
    int index;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(index));
    return index;
}
// Transposes 4 × 4 words among four neighbouring lanes: word j of lane i becomes word i of lane j.
FA_DEVICE void transpose_4x4(uint32_t (&word)[4], int lane) {
    FA_UNROLL_FOR (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(~0u, lane & 1 ? word[i] : word[i + 1], 1);
        if (lane & 1) word[i] = other;
        else word[i + 1] = other;
    }
    FA_UNROLL_FOR (int i = 0; i < 2; i++) {
        const uint32_t other = __shfl_xor_sync(~0u, lane & 2 ? word[i] : word[i + 2], 2);
        if (lane & 2) word[i] = other;
        else word[i + 2] = other;
    }
}

// The larger magnitudes of two pairs, numbers going before NaN; and whether one of a pair's is infinite.
template <bool f16>
FA_DEVICE uint32_t max_magnitude(uint32_t a, uint32_t b) {
    uint32_t r;
    if constexpr (f16) asm("{\n.reg .b32 m;\nabs.f16x2 m, %2;\nmax.f16x2 %0, %1, m;\n}" : "=r"(r) : "r"(a), "r"(b));
    else asm("{\n.reg .b32 m;\nabs.bf16x2 m, %2;\nmax.bf16x2 %0, %1, m;\n}" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
template <bool f16>
FA_DEVICE bool any_infinite(uint32_t magnitudes) {
    constexpr uint32_t infinite = f16 ? 0x7c00u : 0x7f80u;
    return (magnitudes & 0xffffu) == infinite || magnitudes >> 16 == infinite;
}
// Orders this thread's writes to shared memory before later reads by wgmma and bulk copies (the async proxy).
FA_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FA_DEVICE void st_shared_v4(uint32_t at, const float* from) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]) : "memory");
}
FA_DEVICE void ld_shared_v4(uint32_t at, float* to) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(at) : "memory");
}
FA_DEVICE uint4 ld_shared_v4(uint32_t at) {
    uint4 word;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "r"(at) : "memory");
    return word;
}
FA_DEVICE void st_shared_v4(uint32_t at, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
FA_DEVICE float2 ld_shared_v2(uint32_t at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}
// The inverse of load_matrices and load_matrices_transposed (ldmatrix).
FA_DEVICE void stmatrix(uint32_t row, const uint32_t r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
FA_DEVICE void stmatrix_trans(uint32_t row, const uint32_t r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                 "r"(r[3])
                 : "memory");
}
// The first `bytes` of 4 or 8, and zeros for the others; not waited for.
template <int size>
FA_DEVICE void cp_async_some(uint32_t to, const char* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(size) : "memory");
}
FA_DEVICE void st_shared_zero_v4(uint32_t at) { asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory"); }

// 2^x, within 1 %, without a special function, which is enough for a result of e4m3: the mean of two functions that are straight between
// powers of two, one of which has its corners half an octave off. y is x + kExp2Zero, whose bits then count 2^-14. `bits` has one of
// kExp2Beyond where x is 129 or more, or NaN; of NaN 2^x is NaN, too.
constexpr float kExp2Zero = 512.f + 127.f - 0x1.0ebap+0f;
constexpr uint32_t kExp2Beyond = 0xbbc00000u;
FA_DEVICE float exp2_by_fma(float y, uint32_t& bits) {
    float clamped;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(clamped) : "f"(y), "f"(512.f + 127.f - 40.f));
    bits = __float_as_uint(clamped);
    return fmaf(__uint_as_float((bits << 9) + (1 << 22)), 0x1.6a09e6p-1f, __uint_as_float(bits << 9));
}
// Four e4m3, the first lowest; beyond 448: 448.
FA_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
    uint32_t word;
    asm("{\n.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f32 x, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 y, %4, %3;\nmov.b32 %0, {x, y};\n}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return word;
}
// The lowest n bits set; none where n < 0, all where n > 31.
FA_DEVICE uint32_t low_bit_mask(int n) {
    uint32_t above;
    asm("shl.b32 %0, -1, %1;" : "=r"(above) : "r"(max(n, 0)));
    return ~above;
}

// ---- registers and wgmma

template <int registers>
FA_DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
FA_DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
FA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n>
FA_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// wgmma reads and writes registers asynchronously, which the compiler does not see: it must not move these values past this place.
template <int n>
FA_DEVICE void keep_in_registers(float (&r)[n]) {
    FA_UNROLL_FOR (int i = 0; i < n; i++) asm volatile("" : "+f"(r[i]));
}
template <int n>
FA_DEVICE void keep_in_registers(uint32_t (&r)[n]) {
    FA_UNROLL_FOR (int i = 0; i < n; i++) asm volatile("" : "+r"(r[i]));
}

// Says that r holds nothing of use: wgmma is about to overwrite it, and no value need be kept in it until then.
template <int n>
FA_DEVICE void mark_undefined(float (&r)[n]) {
    FA_UNROLL_FOR (int i = 0; i < n; i++) asm volatile("" : "=f"(r[i]));
}

// Hides where x comes from, so that what is derived from it is computed again at each use: the descriptors of tiles at fixed
// addresses would otherwise all be kept in uniform registers, and leave none to others.
FA_DEVICE uint32_t rematerialize(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

// The shared-memory descriptor of a matrix: panels of 64 columns, their rows of 128 bytes swizzled in groups of eight (1024 bytes).
// `leading_bytes`: between panels, used where the columns are m or n of the product (MN-major) rather than k. Adding 1 moves it by
// 16 bytes.
FA_DEVICE uint64_t smem_desc(uint32_t address, uint32_t leading_bytes) {
    return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(leading_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

// The same of one panel of rows of 32 bytes, in groups of eight (256 bytes).
FA_DEVICE uint64_t smem_desc_32_bytes(uint32_t address) {
    return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(1) << 16 | uint64_t(256 >> 4) << 32 | 3ull << 62;
}

// wgmma.mma_async.m64nNk16 with f32 accumulators d, one overload for each N. x and y are descriptors: mma is d = x · yᵀ, or d +=
// where scale_d, both K-major; mma_a_mn_major and mma_ab_mn_major read x, or both, MN-major; mma_negated is d -= x · yᵀ. With x in
// registers mma is d += x · y, y MN-major.
#define FA_N0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FA_N8 FA_N0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FA_N16 FA_N8 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FA_N24 FA_N16 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define FA_N32 FA_N24 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define FA_N40 FA_N32 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FA_N48 FA_N40 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define FA_N56 FA_N48 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FA_N64 FA_N56 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FA_N72 FA_N64 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define FA_N80 FA_N72 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FA_N88 FA_N80 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define FA_N96 FA_N88 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define FA_N104 FA_N96 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define FA_N112 FA_N104 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define FA_N120 FA_N112 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define FA_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FA_D32 FA_D8(0), FA_D8(8), FA_D8(16), FA_D8(24)
#define FA_D64 FA_D32, FA_D8(32), FA_D8(40), FA_D8(48), FA_D8(56)
#define FA_D96 FA_D64, FA_D8(64), FA_D8(72), FA_D8(80), FA_D8(88)
#define FA_D128 FA_D96, FA_D8(96), FA_D8(104), FA_D8(112), FA_D8(120)

template <bool f16>
struct Wgmma;
#define FA_WGMMA_SS(name, major, type, n, regs, acc, a, b, add)                                                                    \
    FA_MEMBER static void name(float (&d)[n / 2], uint64_t x, uint64_t y, int scale_d) {                                           \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                     " {" regs "}, " a ", " b ", p, 1, 1, " major ";\n}"                                                           \
                     : acc                                                                                                         \
                     : "l"(x), "l"(y), "r"(scale_d));                                                                              \
    }
#define FA_WGMMA_SS_NEGATED(type, n, regs, acc, a, b)                                                                             \
    FA_MEMBER static void mma_negated(float (&d)[n / 2], uint64_t x, uint64_t y) {                                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" regs "}, " a ", " b ", 1, -1, 1, 0, 0;" \
                     : acc                                                                                                        \
                     : "l"(x), "l"(y));                                                                                           \
    }
#define FA_WGMMA_RS(type, n, regs, acc, a0, a1, a2, a3, b, add)                                                                    \
    FA_MEMBER static void mma(float (&d)[n / 2], const uint32_t* x, uint64_t y, int scale_d = 1) {                                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                     " {" regs "}, {" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1, 1;\n}"                                           \
                     : acc                                                                                                         \
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(scale_d));                                          \
    }
#define FA_WGMMA(type)                                                                                                  \
    FA_WGMMA_SS(mma, "0, 0", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                                   \
    FA_WGMMA_SS(mma, "0, 0", type, 96, FA_N40, FA_COMMA(FA_D32, FA_D8(32), FA_D8(40)), "%48", "%49", "%50")             \
    FA_WGMMA_SS(mma, "0, 0", type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66")                                  \
    FA_WGMMA_SS(mma, "0, 0", type, 176, FA_N80, FA_COMMA(FA_D64, FA_D8(64), FA_D8(72), FA_D8(80)), "%88", "%89", "%90") \
    FA_WGMMA_SS_NEGATED(type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33")                                               \
    FA_WGMMA_SS_NEGATED(type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65")                                              \
    FA_WGMMA_SS(mma_a_mn_major, "1, 0", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                        \
    FA_WGMMA_SS(mma_a_mn_major, "1, 0", type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66")                       \
    FA_WGMMA_SS(mma_ab_mn_major, "1, 1", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                       \
    FA_WGMMA_RS(type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34", "%35", "%36", "%37")                           \
    FA_WGMMA_RS(type, 96, FA_N40, FA_COMMA(FA_D32, FA_D8(32), FA_D8(40)), "%48", "%49", "%50", "%51", "%52", "%53")     \
    FA_WGMMA_RS(type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66", "%67", "%68", "%69")                          \
    FA_WGMMA_RS(type, 192, FA_N88, FA_COMMA(FA_D96), "%96", "%97", "%98", "%99", "%100", "%101")                        \
    FA_WGMMA_RS(type, 256, FA_N120, FA_COMMA(FA_D128), "%128", "%129", "%130", "%131", "%132", "%133")
#define FA_COMMA(...) __VA_ARGS__
// The same of 8-bit operands, m64nNk32, all K-major. The accumulators keep about 14 bits of the largest term.
#define FA_WGMMA_8BIT(n, regs, acc, a, b, add)                                                                                       \
    FA_MEMBER static void mma(float (&d)[n / 2], uint64_t x, uint64_t y, int scale_d) {                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" regs \
                     "}, " a ", " b ", p, 1, 1;\n}"                                                                                  \
                     : acc                                                                                                           \
                     : "l"(x), "l"(y), "r"(scale_d));                                                                                \
    }
#define FA_WGMMA_8BIT_RS(n, regs, acc, a0, a1, a2, a3, b, add)                                                                       \
    FA_MEMBER static void mma(float (&d)[n / 2], const uint32_t* x, uint64_t y, int scale_d) {                                       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" regs \
                     "}, {" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1;\n}"                                                          \
                     : acc                                                                                                           \
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(scale_d));                                            \
    }
#define FA_N32_36 FA_N24 ",%32,%33,%34,%35"
#define FA_N64_68 FA_N56 ",%64,%65,%66,%67"
#define FA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
struct WgmmaE4m3 {
    FA_WGMMA_8BIT_RS(72, FA_N32_36, FA_COMMA(FA_D32, FA_D4(32)), "%36", "%37", "%38", "%39", "%40", "%41")
    FA_WGMMA_8BIT_RS(136, FA_N64_68, FA_COMMA(FA_D64, FA_D4(64)), "%68", "%69", "%70", "%71", "%72", "%73")
    FA_WGMMA_8BIT_RS(256, FA_N120, FA_COMMA(FA_D128), "%128", "%129", "%130", "%131", "%132", "%133")
    FA_WGMMA_8BIT(64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")
    FA_WGMMA_8BIT(96, FA_N40, FA_COMMA(FA_D32, FA_D8(32), FA_D8(40)), "%48", "%49", "%50")
    FA_WGMMA_8BIT(128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66")
};
template <>
struct Wgmma<true> {
    FA_WGMMA("f16")
};
template <>
struct Wgmma<false> {
    FA_WGMMA("bf16")
};

}  // namespace rt
}  // namespace fa
