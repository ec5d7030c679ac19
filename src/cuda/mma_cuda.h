// What mma_sync.h needs of a GPU, as PTX and named after its instructions: ldmatrix, mma.sync, cp.async, conversions, cluster
// loads. From sm_80 on; for older devices kernels that use it are compiled empty (kHasMma), and the host never chooses them there.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace rt {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kHasMma = false;
#else
constexpr bool kHasMma = true;
#endif

FA_DEVICE uint32_t smem_addr(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
FA_DEVICE float ld_shared(uint32_t address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}

// Blocks of a cluster, on Hopper: all wait for all, with what they have written to shared memory; and what lies where p does, in
// another's.
FA_DEVICE void cluster_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
#endif
}
FA_DEVICE uint32_t mapa(uint32_t address, int rank) {
    uint32_t there = address;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
    return there;
}
FA_DEVICE void ld_cluster4(const float* p, int rank, float to[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(mapa(smem_addr(p), rank))
                 : "memory");
#endif
}
FA_DEVICE void ld_cluster2(const float* p, int rank, float* first, float* second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(*first), "=f"(*second) : "r"(mapa(smem_addr(p), rank)) : "memory");
#endif
}

FA_DEVICE void st_shared(uint32_t address, uint32_t word) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory"); }

// n words of global memory at an address that is a multiple of their size.
template <int n>
FA_DEVICE void load_words(const uint8_t* p, uint32_t to[n]) {
    struct alignas(4 * n) Words {
        uint32_t word[n];
    } const v = *reinterpret_cast<const Words*>(p);
    FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = v.word[i];
}
// Among groups of 4 lanes.
FA_DEVICE uint32_t shuffle_xor4(uint32_t x, int mask) { return __shfl_xor_sync(~0u, x, mask, 4); }
// No load moves over this: fewer are in flight at once, and fewer registers hold their results.
FA_DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

// Four 8 × 8 matrices of 2-byte elements; lane i gives the address of row i % 8 of matrix i / 8 and gets elements 2 · (i % 4) and
// 2 · (i % 4) + 1 of row i / 4 of each. Transposed: of column i / 4.
FA_DEVICE void ldmatrix_x4(uint32_t row, uint32_t r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
FA_DEVICE void ldmatrix_x4_trans(uint32_t row, uint32_t r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// d += a · b: 16 × 8 × 16, for tf32 16 × 8 × 8.
FA_DEVICE void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FA_DEVICE void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FA_DEVICE void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An 8 × 8 matrix of 2-byte elements, of which lane i has 2 · (i % 4) and 2 · (i % 4) + 1 of row i / 4, transposed.
FA_DEVICE uint32_t transpose_8x8(uint32_t pair) {
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

// A pair of bf16 times 2^-24, subnormals included.
FA_DEVICE uint32_t scale_down_bf16(uint32_t pair) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(0x33803380u), "r"(0x80008000u));
    return r;
}

// Four of the eight bytes of (b, a), as the digits of `selector` say, the lowest first.
FA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
// Of one word; what a selector has 8 added to becomes the byte's sign, eight times.
FA_DEVICE uint32_t prmt_signed(uint32_t a, uint32_t selector) {
    uint32_t r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(a), "r"(selector));
    return r;
}
// Four bytes, e4m3, as two pairs of f16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
FA_DEVICE void e4m3_to_f16(uint32_t bytes, uint32_t& low, uint32_t& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
}
#else
FA_DEVICE uint32_t upper_e4m3_to_f16(uint32_t pair) {      // from the upper byte of each half
    const uint32_t magnitude = (pair & 0x7f007f00u) >> 1;  // 2^8 too small
    uint32_t r;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(magnitude | (pair & 0x80008000u)), "r"(0x5c005c00u));
    return r | ((magnitude + 0x00800080u) & 0x40004000u) >> 1;  // all ones: NaN
}
FA_DEVICE void e4m3_to_f16(uint32_t bytes, uint32_t& low, uint32_t& high) {
    low = upper_e4m3_to_f16(prmt(bytes, 0, 0x1404));
    high = upper_e4m3_to_f16(prmt(bytes, 0, 0x3424));
}
#endif
FA_DEVICE uint32_t add_f16(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
FA_DEVICE uint32_t subtract_bf16(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return r;
}
FA_DEVICE uint32_t multiply_f16(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
FA_DEVICE uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}
// (a & mask) ^ rest, and (a & mask) | rest, which the compiler would make two instructions of, for its two constants.
FA_DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t rest) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(rest));
    return r;
}
FA_DEVICE uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t rest) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(mask), "r"(rest));
    return r;
}
// An f16 at an even address.
FA_DEVICE float load_f16(const char* p) { return widen_f16(*reinterpret_cast<const uint16_t*>(p)); }
FA_DEVICE void f16x2_to_f32(uint32_t pair, float& low, float& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(low), "=f"(high) : "r"(pair));
}
FA_DEVICE uint32_t f16_to_bf16(uint32_t pair) {
    float low, high;
    f16x2_to_f32(pair, low, high);
    return pack_bf16(low, high);
}

// 2^x, results below 2^-126 as 0.
FA_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FA_DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Copies 16, 8 or 4 bytes to shared memory while the thread goes on; what is not copied becomes 0, and is not read. cp_async_wait<n>
// waits until no more than the n latest groups of this thread's copies are under way.
FA_DEVICE void cp_async16(uint32_t to, const char* from, bool copied) {
    asm volatile("{ .reg .pred none; setp.eq.s32 none, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, none; }" ::"r"(to),
                 "l"(from), "r"(int(copied))
                 : "memory");
}
template <int size>
FA_DEVICE void cp_async(uint32_t to, const char* from, bool copied) {
    asm volatile("{ .reg .pred none; setp.eq.s32 none, %2, 0; cp.async.ca.shared.global [%0], [%1], %3, none; }" ::"r"(to), "l"(from),
                 "r"(int(copied)), "n"(size)
                 : "memory");
}
// 16 bytes, of which the first `bytes` are copied.
FA_DEVICE void cp_async_part(uint32_t to, const char* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
FA_DEVICE void cp_async4(uint32_t to, const char* from, bool copied) { cp_async<4>(to, from, copied); }
FA_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
FA_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

constexpr bool kIndexesParams = true;  // may lanes read different elements of an array among a kernel's parameters?

// Adds to four neighbouring floats at an address that is a multiple of 16 bytes, whatever others add meanwhile.
FA_DEVICE void red_add4(float* to, float x, float y, float z, float w) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
#else
    const float of[] = {x, y, z, w};
    FA_UNROLL_FOR (int i = 0; i < 4; i++) asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i), "f"(of[i]) : "memory");
#endif
}

// A barrier of `count` threads, those of whole warps, that have a number from 1 on in common.
FA_DEVICE void named_barrier(int number, int count) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory"); }
// One that all `threads` of a block meet at, each role at a place of its own in the text: __syncthreads() is for one place.
FA_DEVICE void barrier_of_roles(int threads) { named_barrier(1, threads); }

// A value that is the same in all lanes; with the shuffle the compiler knows, and may keep it in a uniform register.
FA_DEVICE int warp_uniform(int x) { return __shfl_sync(~0u, x, 0); }
// A value of which the compiler knows nothing: what depends on it is computed where it is used, and takes no register meanwhile.
FA_DEVICE int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
FA_DEVICE int opaque_uniform(int x) { return x; }  // conditions take no registers here
// Before Hopper ptxas leaves fewer registers to the same loops.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kScarceRegisters = true;
#else
constexpr bool kScarceRegisters = false;
#endif
FA_DEVICE void warp_barrier() { __syncwarp(); }
FA_DEVICE bool warp_any(bool x) { return __any_sync(~0u, x); }

}  // namespace rt
}  // namespace fa
