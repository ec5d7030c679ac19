// mma_cuda.h's names on the emulator, for waves of 32: what mma_sync.h needs of a GPU. Fragments are gathered and scattered by the
// lane maps that NVIDIA's PTX manual gives for ldmatrix and mma; asynchronous copies arrive only when they are waited for.
#pragma once
#include "emu/rt_emu.h"
#include "spec/numerics.h"

namespace fa {
namespace rt {

constexpr bool kHasMma = true, kIndexesParams = true;

// One wave's rendezvous: every lane arrives with its Args, the last one performs `action` for all.
template <class Args>
static inline void meet_wave(Args& args, void (*action)(void**, int)) {
    lockstep::Block& b = lockstep::block();
    lockstep::meet(b.waves[size_t(b.now / lockstep::wave())], b.now % lockstep::wave(), &args, action);
}

FA_DEVICE uint32_t smem_addr(const void* p) { return uint32_t(static_cast<const char*>(p) - shared_memory()); }
FA_DEVICE float ld_shared(uint32_t address) {
    float x;
    memcpy(&x, shared_memory() + address, 4);
    return x;
}

// A cluster has one block.
FA_DEVICE void cluster_sync() { barrier(); }
FA_DEVICE void ld_cluster4(const float* p, int, float to[4]) { memcpy(to, p, 16); }
FA_DEVICE void ld_cluster2(const float* p, int, float* first, float* second) { *first = p[0], *second = p[1]; }

FA_DEVICE void st_shared(uint32_t address, uint32_t word) { memcpy(shared_memory() + address, &word, 4); }

struct LdmatrixArgs {
    const char* row;
    uint32_t* r;
};

static inline uint16_t element_of(const char* row, int i) {
    uint16_t x;
    memcpy(&x, row + 2 * i, 2);
    return x;
}

FA_DEVICE void ldmatrix_x4(uint32_t row, uint32_t r[4]) {
    LdmatrixArgs args{shared_memory() + row, r};
    lockstep::check_aligned(args.row, 16);
    meet_wave(args, [](void** lanes, int n) {
        for (int i = 0; i < n; i++)
            for (int m = 0; m < 4; m++) {
                const char* from = static_cast<LdmatrixArgs*>(lanes[8 * m + i / 4])->row;
                static_cast<LdmatrixArgs*>(lanes[i])->r[m] = element_of(from, 2 * (i % 4)) | uint32_t(element_of(from, 2 * (i % 4) + 1))
                                                                                                 << 16;
            }
    });
}
FA_DEVICE void ldmatrix_x4_trans(uint32_t row, uint32_t r[4]) {
    LdmatrixArgs args{shared_memory() + row, r};
    lockstep::check_aligned(args.row, 16);
    meet_wave(args, [](void** lanes, int n) {
        for (int i = 0; i < n; i++)
            for (int m = 0; m < 4; m++) {
                const char* low = static_cast<LdmatrixArgs*>(lanes[8 * m + 2 * (i % 4)])->row;
                const char* high = static_cast<LdmatrixArgs*>(lanes[8 * m + 2 * (i % 4) + 1])->row;
                static_cast<LdmatrixArgs*>(lanes[i])->r[m] = element_of(low, i / 4) | uint32_t(element_of(high, i / 4)) << 16;
            }
    });
}

struct TransposeArgs {
    uint32_t from, to;
};
FA_DEVICE uint32_t transpose_8x8(uint32_t pair) {
    TransposeArgs args{pair, 0};
    meet_wave(args, [](void** lanes, int n) {
        const auto element = [&](int row, int column) {
            return static_cast<const TransposeArgs*>(lanes[4 * row + column / 2])->from >> 16 * (column % 2) & 0xffffu;
        };
        for (int i = 0; i < n; i++)
            static_cast<TransposeArgs*>(lanes[i])->to = element(2 * (i % 4), i / 4) | element(2 * (i % 4) + 1, i / 4) << 16;
    });
    return args.to;
}

struct MmaArgs {
    float* d;
    const uint32_t *a, *b;
};

// 16 × 8 × depth: A's and B's element at (row, k) and (k, column) lie in lane 4 · row + (k % half) / per, …
template <int depth, class Widen>
static inline void mma_wave(void** lanes, Widen widen) {
    float a[16][depth], b[depth][8];
    for (int lane = 0; lane < 32; lane++) {
        const MmaArgs& x = *static_cast<const MmaArgs*>(lanes[lane]);
        const int per = depth / 8, g = lane / 4, t = lane % 4;  // elements of a register
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < per; e++) a[g + 8 * (i % 2)][depth / 2 * (i / 2) + per * t + e] = widen(x.a[i], e);
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < per; e++) b[depth / 2 * i + per * t + e][g] = widen(x.b[i], e);
    }
    for (int lane = 0; lane < 32; lane++) {
        const MmaArgs& x = *static_cast<const MmaArgs*>(lanes[lane]);
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            float sum = x.d[i];
            for (int k = 0; k < depth; k++) sum += a[row][k] * b[k][column];
            x.d[i] = sum;
        }
    }
}

FA_DEVICE void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    MmaArgs args{d, a, b};
    meet_wave(args, [](void** lanes, int) { mma_wave<16>(lanes, [](uint32_t r, int e) { return f16_to_f32(uint16_t(r >> 16 * e)); }); });
}
FA_DEVICE void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    MmaArgs args{d, a, b};
    meet_wave(args, [](void** lanes, int) { mma_wave<16>(lanes, [](uint32_t r, int e) { return bf16_to_f32(uint16_t(r >> 16 * e)); }); });
}
FA_DEVICE void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    MmaArgs args{d, a, b};
    meet_wave(args, [](void** lanes, int) {
        mma_wave<8>(lanes, [](uint32_t r, int) { return float_of(r & 0xffffe000u); });  // the unit ignores the low bits
    });
}

FA_DEVICE uint32_t scale_down_bf16(uint32_t pair) {
    return pack_bf16(bf16_to_f32(uint16_t(pair)) * 0x1p-24f, bf16_to_f32(uint16_t(pair >> 16)) * 0x1p-24f);
}

FA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
FA_DEVICE uint32_t prmt_signed(uint32_t a, uint32_t selector) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = a >> 8 * (selector >> 4 * i & 3) & 0xff;
        r |= (selector >> 4 * i & 8 ? byte >> 7 ? 0xffu : 0u : byte) << 8 * i;
    }
    return r;
}
FA_DEVICE void e4m3_to_f16(uint32_t bytes, uint32_t& low, uint32_t& high) {
    low = pack_f16(e4m3_to_f32(uint8_t(bytes)), e4m3_to_f32(uint8_t(bytes >> 8)));
    high = pack_f16(e4m3_to_f32(uint8_t(bytes >> 16)), e4m3_to_f32(uint8_t(bytes >> 24)));
}
FA_DEVICE uint32_t add_f16(uint32_t a, uint32_t b) {
    return pack_f16(f16_to_f32(uint16_t(a)) + f16_to_f32(uint16_t(b)), f16_to_f32(uint16_t(a >> 16)) + f16_to_f32(uint16_t(b >> 16)));
}
FA_DEVICE uint32_t subtract_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(bf16_to_f32(uint16_t(a)) - bf16_to_f32(uint16_t(b)), bf16_to_f32(uint16_t(a >> 16)) - bf16_to_f32(uint16_t(b >> 16)));
}
FA_DEVICE uint32_t multiply_f16(uint32_t a, uint32_t b) {
    return pack_f16(f16_to_f32(uint16_t(a)) * f16_to_f32(uint16_t(b)), f16_to_f32(uint16_t(a >> 16)) * f16_to_f32(uint16_t(b >> 16)));
}
FA_DEVICE uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(bf16_to_f32(uint16_t(a)) * bf16_to_f32(uint16_t(b)), bf16_to_f32(uint16_t(a >> 16)) * bf16_to_f32(uint16_t(b >> 16)));
}
FA_DEVICE uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t rest) { return (a & mask) ^ rest; }
FA_DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t rest) { return (a & mask) | rest; }
FA_DEVICE uint32_t f16_to_bf16(uint32_t pair) { return pack_bf16(f16_to_f32(uint16_t(pair)), f16_to_f32(uint16_t(pair >> 16))); }

FA_DEVICE float exp2_fast(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.f : y;
}
FA_DEVICE float reciprocal_fast(float x) { return 1.f / x; }

// Copies arrive when they are waited for and not before: until then their places hold not-a-numbers, so that reading too early
// shows, and so does copying over what others still read.
FA_DEVICE void copy_later(char* to, const char* from, int bytes, int size) {
    lockstep::check_aligned(to, size);
    lockstep::check_aligned(from, size);
    memset(to, 0xff, size_t(size));
    lockstep::copies().all.push_back({to, from, bytes, size});
}
template <int n>
FA_DEVICE void load_words(const uint8_t* p, uint32_t to[n]) {
    lockstep::check_aligned(p, 4 * n);
    memcpy(to, p, 4 * n);
}
FA_DEVICE uint32_t shuffle_xor4(uint32_t x, int mask) { return bits_of(lockstep::shuffle_xor(float_of(x), mask, 4)); }
FA_DEVICE void compiler_fence() {}
FA_DEVICE void cp_async16(uint32_t to, const char* from, bool copied) { copy_later(shared_memory() + to, from, copied ? 16 : 0, 16); }
template <int size>
FA_DEVICE void cp_async(uint32_t to, const char* from, bool copied) {
    copy_later(shared_memory() + to, from, copied ? size : 0, size);
}
FA_DEVICE void cp_async_part(uint32_t to, const char* from, int bytes) { copy_later(shared_memory() + to, from, bytes, 16); }
FA_DEVICE void cp_async4(uint32_t to, const char* from, bool copied) { cp_async<4>(to, from, copied); }
FA_DEVICE float load_f16(const char* p) {
    lockstep::check_aligned(p, 2);
    return f16_to_f32(*reinterpret_cast<const uint16_t*>(p));
}
FA_DEVICE void cp_async_commit() { lockstep::copies().groups.push_back(lockstep::copies().all.size()); }
template <int n>
FA_DEVICE void cp_async_wait() {
    lockstep::Copies& c = lockstep::copies();
    for (; c.arrived + size_t(n) < c.groups.size(); c.arrived++)
        for (size_t i = c.arrived ? c.groups[c.arrived - 1] : 0; i < c.groups[c.arrived]; i++) {
            memset(c.all[i].to, 0, size_t(c.all[i].size));
            if (c.all[i].bytes) memcpy(c.all[i].to, c.all[i].from, size_t(c.all[i].bytes));
        }
}

FA_DEVICE void red_add4(float* to, float x, float y, float z, float w) {
    lockstep::check_aligned(to, 16);
    to[0] += x;
    to[1] += y;
    to[2] += z;
    to[3] += w;
}

FA_DEVICE void f16x2_to_f32(uint32_t pair, float& low, float& high) {
    low = f16_to_f32(uint16_t(pair)), high = f16_to_f32(uint16_t(pair >> 16));
}
FA_DEVICE void warp_barrier() {
    uint32_t nothing = 0;
    meet_wave(nothing, [](void**, int) {});
}
FA_DEVICE int warp_uniform(int x) { return x; }
FA_DEVICE int opaque(int x) { return x; }
FA_DEVICE int opaque_uniform(int x) { return x; }
constexpr bool kScarceRegisters = false;
FA_DEVICE void named_barrier(int id, int count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (!lockstep::removed(file, line)) lockstep::meet_named(id, count);
}
FA_DEVICE void barrier_of_roles(int count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    named_barrier(1, count, file, line);
}
FA_DEVICE bool warp_any(bool x) {
    struct Args {
        bool in, out;
    } args{x, false};
    meet_wave(args, [](void** lanes, int n) {
        bool any = false;
        for (int i = 0; i < n; i++) any |= static_cast<Args*>(lanes[i])->in;
        for (int i = 0; i < n; i++) static_cast<Args*>(lanes[i])->out = any;
    });
    return args.out;
}

}  // namespace rt
}  // namespace fa
