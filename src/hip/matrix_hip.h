// What the mma kernels need of AMD's GPUs, named after their instructions: MFMA of CDNA 2 to 4, WMMA of RDNA 3 and 4, exchanges
// of lanes. For other targets kernels that use them are compiled empty, and the host never chooses them there.
#pragma once
#include "hip/rt_hip.h"

namespace fa {
namespace rt {

#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define FA_HAS_MFMA
constexpr bool kHasMfma = true;
#else
constexpr bool kHasMfma = false;
#endif
// What CDNA 4 has besides: 32×32 products twice as deep, in the time of the others; an instruction that rounds two floats to bf16; loads of
// shared memory that transpose; loads to shared memory, of 16 bytes a lane; exchanges between halves of a wave. Code for a target has its
// generation's alone, whichever is named. That of CDNA 2, which takes subnormal numbers for 0, has no products of f16.
struct TargetCdna {
#ifdef __gfx90a__
    static constexpr bool kMultipliesF16 = false;
#else
    static constexpr bool kMultipliesF16 = true;
#endif
#ifdef __gfx950__
    static constexpr bool kDeepProducts = true, kPacksBf16 = true, kTransposedLoads = true;
#else
    static constexpr bool kDeepProducts = false, kPacksBf16 = false, kTransposedLoads = false;
#endif
};
template <int>
using Cdna = TargetCdna;
#ifdef __GFX11__
constexpr bool kHasWmmaGfx11 = true;
#else
constexpr bool kHasWmmaGfx11 = false;
#endif
#ifdef __GFX12__
constexpr bool kHasWmmaGfx12 = true;
#else
constexpr bool kHasWmmaGfx12 = false;
#endif

template <int n>
using AccVec = float __attribute__((ext_vector_type(n)));

namespace detail {
template <class T, int n>
using Vec = T __attribute__((ext_vector_type(n)));
template <class To, int words>
FA_DEVICE To operand(const uint32_t* r) {
    Vec<uint32_t, words> x;
    FA_UNROLL_FOR (int i = 0; i < words; i++) x[i] = r[i];
    return __builtin_bit_cast(To, x);
}
using Half4 = Vec<_Float16, 4>;
using Half8 = Vec<_Float16, 8>;
using Half16 = Vec<_Float16, 16>;
using Short4 = Vec<short, 4>;
using Short8 = Vec<short, 8>;
using Short16 = Vec<short, 16>;
}  // namespace detail

#ifdef FA_HAS_MFMA
template <bool f16>
FA_DEVICE void mfma_f32_32x32x8(AccVec<16>& d, const uint32_t a[2], const uint32_t b[2]) {
    using namespace detail;
    if constexpr (f16) d = __builtin_amdgcn_mfma_f32_32x32x8f16(operand<Half4, 2>(a), operand<Half4, 2>(b), d, 0, 0, 0);
    else d = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(operand<Short4, 2>(a), operand<Short4, 2>(b), d, 0, 0, 0);
}
template <bool f16>
FA_DEVICE void mfma_f32_16x16x16(AccVec<4>& d, const uint32_t a[2], const uint32_t b[2]) {
    using namespace detail;
    if constexpr (f16) d = __builtin_amdgcn_mfma_f32_16x16x16f16(operand<Half4, 2>(a), operand<Half4, 2>(b), d, 0, 0, 0);
    else d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(operand<Short4, 2>(a), operand<Short4, 2>(b), d, 0, 0, 0);
}
#else
template <bool f16>
FA_DEVICE void mfma_f32_32x32x8(AccVec<16>&, const uint32_t*, const uint32_t*) {}
template <bool f16>
FA_DEVICE void mfma_f32_16x16x16(AccVec<4>&, const uint32_t*, const uint32_t*) {}
#endif

FA_DEVICE void mfma_f32_32x32x2(AccVec<16>& d, uint32_t a, uint32_t b) {
#ifdef FA_HAS_MFMA
    d = __builtin_amdgcn_mfma_f32_32x32x2f32(__builtin_bit_cast(float, a), __builtin_bit_cast(float, b), d, 0, 0, 0);
#else
    (void)d, (void)a, (void)b;
#endif
}
FA_DEVICE void mfma_f32_16x16x4(AccVec<4>& d, uint32_t a, uint32_t b) {
#ifdef FA_HAS_MFMA
    d = __builtin_amdgcn_mfma_f32_16x16x4f32(__builtin_bit_cast(float, a), __builtin_bit_cast(float, b), d, 0, 0, 0);
#else
    (void)d, (void)a, (void)b;
#endif
}

template <bool f16>
FA_DEVICE void mfma_f32_32x32x16(AccVec<16>& d, const uint32_t* a, const uint32_t* b) {
#ifdef __gfx950__
    using namespace detail;
    if constexpr (f16) d = __builtin_amdgcn_mfma_f32_32x32x16_f16(operand<Half8, 4>(a), operand<Half8, 4>(b), d, 0, 0, 0);
    else d = __builtin_amdgcn_mfma_f32_32x32x16_bf16(operand<Vec<__bf16, 8>, 4>(a), operand<Vec<__bf16, 8>, 4>(b), d, 0, 0, 0);
#else
    (void)d, (void)a, (void)b;
#endif
}

template <bool f16>
FA_DEVICE void wmma_f32_16x16x16_gfx11(AccVec<8>& d, const uint32_t* a, const uint32_t* b) {
#ifdef __GFX11__
    using namespace detail;
    if constexpr (f16) d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(operand<Half16, 8>(a), operand<Half16, 8>(b), d);
    else d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(operand<Short16, 8>(a), operand<Short16, 8>(b), d);
#else
    (void)d, (void)a, (void)b;
#endif
}
template <bool f16>
FA_DEVICE void wmma_f32_16x16x16_gfx12(AccVec<8>& d, const uint32_t* a, const uint32_t* b) {
#ifdef __GFX12__
    using namespace detail;
    if constexpr (f16) d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(operand<Half8, 4>(a), operand<Half8, 4>(b), d);
    else d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(operand<Short8, 4>(a), operand<Short8, 4>(b), d);
#else
    (void)d, (void)a, (void)b;
#endif
}

template <int n>
FA_DEVICE void multiply_add(AccVec<n>& x, float a, float b) {
    x = __builtin_elementwise_fma(x, AccVec<n>(a), AccVec<n>(b));
}
template <int n>
FA_DEVICE void multiply(AccVec<n>& x, float factor) {
    x *= factor;
}
// The sums of even and of odd elements, by halves: vectors, of which some GPUs add two elements at a time.
FA_DEVICE AccVec<2> pair_sum(const AccVec<4>& x) { return x.lo + x.hi; }
FA_DEVICE AccVec<2> pair_sum(const AccVec<8>& x) { return pair_sum(x.lo + x.hi); }
FA_DEVICE AccVec<2> pair_sum(const AccVec<16>& x) { return pair_sum(x.lo + x.hi); }
template <int n>
FA_DEVICE void add_pairs(AccVec<2>& sum, const AccVec<n>& x, bool first) {
    const AccVec<2> own = pair_sum(x);
    sum = first ? own : sum + own;
}
// What lane ^ mask has, in waves of `lanes`.
template <int lanes>
FA_DEVICE float exchange(float x, int mask) {
#if defined(__GFX11__) || defined(__GFX12__)
    if (lanes == 32 && mask == 16) {  // within the vector unit; others go by way of the LDS unit
        const uint32_t r = __builtin_bit_cast(uint32_t, x);
        return __builtin_bit_cast(float, __builtin_amdgcn_permlanex16(r, r, 0x76543210, 0xfedcba98, false, false));
    }
#endif
    return device::shuffle_xor(x, mask);
}

// The sum, or the maximum, of x and what lane ^ mask has.
#ifdef __gfx950__
// Lower rows come to one register, and upper ones to the other. Of its builtin's two results clang 22 takes the first for both; and of
// those of a text it would make the maximum's operands canonical first. The instruction wants two others between it and what its operands
// come from.
#define FA_SWAP(rows, then) asm("s_nop 1\n\tv_permlane" rows "_swap_b32 %0, %1" then : "+v"(x), "+v"(y))
template <int lanes>
FA_DEVICE float sum_across(float x, int mask) {
    float y = x;
    if (mask == 32) FA_SWAP("32", "");
    else FA_SWAP("16", "");
    return x + y;
}
template <int lanes>
FA_DEVICE float max_across(float x, int mask) {
    float y = x;
    if (mask == 32) FA_SWAP("32", "\n\tv_max_f32 %0, %0, %1");
    else FA_SWAP("16", "\n\tv_max_f32 %0, %0, %1");
    return x;
}
#undef FA_SWAP
#else
template <int lanes>
FA_DEVICE float sum_across(float x, int mask) {
    return x + exchange<lanes>(x, mask);
}
template <int lanes>
FA_DEVICE float max_across(float x, int mask) {
    return fmaxf(x, exchange<lanes>(x, mask));
}
#endif

FA_DEVICE uint32_t cvt_pk_f16(float low, float high) {
    return __builtin_bit_cast(uint32_t, detail::Vec<_Float16, 2>{_Float16(low), _Float16(high)});
}
FA_DEVICE uint32_t cvt_pk_bf16(float low, float high) {
    return __builtin_bit_cast(uint32_t, __builtin_convertvector((detail::Vec<float, 2>{low, high}), detail::Vec<__bf16, 2>));
}
FA_DEVICE float cvt_f32_f16(uint16_t bits) { return float(__builtin_bit_cast(_Float16, bits)); }
// Four of the eight bytes of (b, a), as the digits of `selector` say, the lowest first.
FA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint32_t wide = (selector & 0xf) | (selector & 0xf0) << 4 | (selector & 0xf00) << 8 | (selector & 0xf000) << 12;
    return __builtin_amdgcn_perm(b, a, wide);
}

// Addresses in shared memory, as its instructions have them.
using SharedBytes = __attribute__((address_space(3))) char*;
FA_DEVICE uint32_t smem_addr(const void* p) { return uint32_t(reinterpret_cast<uintptr_t>((SharedBytes)p)); }
// n words at an address that is a multiple of their size.
template <int n>
FA_DEVICE void load_words(const uint8_t* p, uint32_t to[n]) {
    const detail::Vec<uint32_t, n> x = *reinterpret_cast<const detail::Vec<uint32_t, n>*>(p);
    FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = x[i];
}
template <int n>
FA_DEVICE void load_shared(uint32_t address, uint32_t to[n]) {
    using Words = detail::Vec<uint32_t, n>;
    const Words x = *reinterpret_cast<const __attribute__((address_space(3))) Words*>(uintptr_t(address));
    FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = x[i];
}
// The same from global memory, which the compiler does not know of an address that shared memory had. Otherwise it would take an
// instruction for any memory, for which whoever waits for shared memory waits, too.
template <int n>
FA_DEVICE void load_global(const char* p, uint32_t to[n]) {
    using Words = detail::Vec<uint32_t, n>;
    const Words x = *reinterpret_cast<const __attribute__((address_space(1))) Words*>(reinterpret_cast<uintptr_t>(p));
    FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = x[i];
}
// 16 bytes of each lane from global memory to shared memory, where a wave's lie one behind the other from `to` on. `to` and `base` are the
// same for all lanes. They are there when finish_loads_to_shared() returns. As text, for whatever reads shared memory after the builtin
// waits for it; no other instruction counts on m0.
FA_DEVICE void load_to_shared(uint32_t to, const char* base, uint32_t offset) {
#ifdef __gfx950__
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tglobal_load_lds_dwordx4 %1, %2" : : "s"(to), "v"(offset), "s"(base) : "memory");
#else
    (void)to, (void)base, (void)offset;
#endif
}
FA_DEVICE void finish_loads_to_shared() {
#ifdef __gfx950__
    asm volatile("s_waitcnt vmcnt(0)" : : : "memory");
#endif
}
// Of 16 lanes together, each of which gives the address of four 16-bit elements in shared memory: the i-th gets the (i % 4)-th of lanes
// i / 4, 4 + i / 4, 8 + i / 4 and 12 + i / 4.
FA_DEVICE void load_transposed(uint32_t address, uint32_t to[2]) {
#ifdef __gfx950__
    using Halves = __attribute__((address_space(3))) detail::Short4;
    const auto x = __builtin_bit_cast(detail::Vec<uint32_t, 2>, __builtin_amdgcn_ds_read_tr16_b64_v4i16((Halves*)(uintptr_t(address))));
    to[0] = x[0], to[1] = x[1];
#else
    (void)address, (void)to;
#endif
}
template <int n>
FA_DEVICE void store_words(char* to, const uint32_t from[n]) {
    detail::Vec<uint32_t, n> x;
    FA_UNROLL_FOR (int i = 0; i < n; i++) x[i] = from[i];
    *reinterpret_cast<detail::Vec<uint32_t, n>*>(to) = x;
}
template <int n>
FA_DEVICE void store_shared(char* to, const uint32_t from[n]) {
    store_words<n>(to, from);
}
// Copies to shared memory, which are not asynchronous here; what is not copied becomes 0.
template <int words>
FA_DEVICE void copy_to_shared(uint32_t to, const char* from, bool copied) {
    uint32_t x[words] = {};
    if (copied) load_words<words>(reinterpret_cast<const uint8_t*>(from), x);
    store_words<words>((char*)(SharedBytes)(uintptr_t(to)), x);
}
FA_DEVICE void cp_async16(uint32_t to, const char* from, bool copied) { copy_to_shared<4>(to, from, copied); }
FA_DEVICE void cp_async4(uint32_t to, const char* from, bool copied) { copy_to_shared<1>(to, from, copied); }
FA_DEVICE void cp_async_commit() {}
template <int n>
FA_DEVICE void cp_async_wait() {}
constexpr bool kIndexesParams = false;  // by lanes, for which the compiler would copy all parameters to scratch memory
// Text that names these is compiled for other GPUs alone.
constexpr bool kHasMma = false;
__device__ void red_add4(float* to, float x, float y, float z, float w);
__device__ void named_barrier(int number, int count);
// Here a barrier counts waves, wherever in the text they are.
FA_DEVICE void barrier_of_roles(int) { barrier(); }

// 2^x and 1/x within 1 ulp, subnormal results as 0 or not.
FA_DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
FA_DEVICE float reciprocal_fast(float x) { return __builtin_amdgcn_rcpf(x); }
FA_DEVICE int warp_uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
FA_DEVICE int64_t warp_uniform64(int64_t x) {
    return int64_t(uint64_t(uint32_t(warp_uniform(int(x)))) | uint64_t(uint32_t(warp_uniform(int(x >> 32)))) << 32);
}
FA_DEVICE bool warp_any(bool x) { return device::any(x); }
// Products and loads of shared memory stay on their side of this; vector instructions may cross it. Left alone the compiler loads all
// of a tile's fragments first, and spills.
FA_DEVICE void order_products() { __builtin_amdgcn_sched_barrier(0x406); }
// Products are finished here. The compiler would move them to where their sums are used, behind a branch, while the fragments that they
// take, loaded before it, fill all registers.
template <int n>
FA_DEVICE void finish_products(AccVec<n>& acc) {
    asm volatile("" : "+v"(acc));
}
// A value of which the compiler knows nothing: what depends on it is computed where it is used, and takes no register meanwhile.
FA_DEVICE int opaque(int x) {
    asm volatile("" : "+v"(x));
    return x;
}
// The same of an address that all lanes share: what is added to it is an instruction's offset, and no vector instruction adds it.
FA_DEVICE const char* uniform_pointer(const char* p) {
    asm("" : "+s"(p));
    return p;
}
// The same of a number that all lanes share: a condition on it that was met before is computed anew, by scalar instructions, and not kept
// as a mask.
FA_DEVICE int opaque_uniform(int x) {
    asm volatile("" : "+s"(x));
    return x;
}
constexpr bool kScarceRegisters = false;  // a condition is computed anew
// No load moves over this: fewer are in flight at once, and fewer registers hold their results.
FA_DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

}  // namespace rt
}  // namespace fa
