// What Hopper (sm_90a) has beside matrix_cuda.h, as PTX: barriers in shared memory, the bulk tensor copy, clusters, and products of a
// whole warpgroup (wgmma).
#pragma once
#include <cuda.h>
#include "cuda/matrix_cuda.h"

namespace fa {
namespace rt {

// ---- barriers in shared memory, of one phase after the other: a wait names the phase by its parity

FA_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
FA_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FA_DEVICE void barrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives, and lets the phase wait for that many bytes of copies.
FA_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FA_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
        "r"(parity) : "memory");
}
// Among `threads` threads of a block; those that only arrive do not wait.
FA_DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
FA_DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- clusters

FA_DEVICE int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Without .release, which would cost a fence: what it announces are reads that have ended.
FA_DEVICE void barrier_arrive_there(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory"); }
FA_DEVICE void barrier_arrive_at(uint32_t barrier, int rank) { barrier_arrive_there(address_at(barrier, rank)); }
FA_DEVICE void send(uint32_t to, uint32_t barrier, int rank, int word) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address_at(to, rank)), "r"(word),
                 "r"(address_at(barrier, rank)) : "memory");
}

// ---- the bulk tensor copy: a box of 64 columns, from (column, row, head, sequence) on, in rows of 128 bytes whose pieces are swizzled

FA_DEVICE void fetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull, kEvictLast = 0x14F0000000000000ull;  // how a copy's lines are kept in L2
FA_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int column, int row, int head, int sequence, uint64_t keep) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "l"(keep) : "memory");
}
// To the same place in both blocks of a pair; the barrier of each counts it.
FA_DEVICE void copy_box_to_pair(uint32_t to, const CUtensorMap* map, uint32_t barrier, int column, int row, int head, int sequence, uint64_t keep) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "h"(uint16_t(3)), "l"(keep) : "memory");
}
// 16 bytes and more as they lie in memory, and floats of shared memory added to global ones; `sums_left` waits until those that this thread
// has asked for have been read, or added.
FA_DEVICE void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// From here to another block of the cluster, whose barrier counts it.
FA_DEVICE void send_bytes(uint32_t to, uint32_t from, int bytes, uint32_t barrier, int rank) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address_at(to, rank)), "r"(from), "r"(bytes),
                 "r"(address_at(barrier, rank)) : "memory");
}
FA_DEVICE void add_floats(float* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
FA_DEVICE void sums_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FA_DEVICE void sums_added() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Words of global memory by which blocks order what they write there.
FA_DEVICE uint32_t acquire_load(const uint32_t* p) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
FA_DEVICE void release_add(uint32_t* p, uint32_t x) { asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
// What threads have written to, or learnt to be in, global memory may now be read, and added to, by bulk copies.
FA_DEVICE void fence_for_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
FA_DEVICE void fetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// The block's index, and the thread's within its warp, read where they are needed: they take no register before.
FA_DEVICE int block_anew() {
    int index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}
FA_DEVICE int lane_anew() {
    int index;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(index));
    return index;
}
// Word j of lane i of four neighbours becomes word i of lane j.
FA_DEVICE void transpose_words(uint32_t (&word)[4], int lane) {
    FA_UNROLL for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(~0u, lane & 1 ? word[i] : word[i + 1], 1);
        if (lane & 1) word[i] = other;
        else word[i + 1] = other;
    }
    FA_UNROLL for (int i = 0; i < 2; i++) {
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
// What threads have written to shared memory may now be read by products of a warpgroup.
FA_DEVICE void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FA_DEVICE void store16(uint32_t at, const float* from) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]) : "memory");
}
FA_DEVICE void load16(uint32_t at, float* to) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(at) : "memory");
}
FA_DEVICE float2 load8(uint32_t at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}
// The ways back from load_matrices and load_matrices_transposed.
FA_DEVICE void store_matrices(uint32_t row, const uint32_t r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
FA_DEVICE void store_matrices_transposed(uint32_t row, const uint32_t r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
FA_DEVICE void zero16(uint32_t at) { asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory"); }

// The lowest n bits set; none where n < 0, all where n > 31.
FA_DEVICE uint32_t low_bits(int n) {
    uint32_t above;
    asm("shl.b32 %0, -1, %1;" : "=r"(above) : "r"(max(n, 0)));
    return ~above;
}

// ---- products of a warpgroup

template <int registers>
FA_DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
FA_DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
FA_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FA_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n>
FA_DEVICE void products_left() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// Products write and read registers behind the compiler's back: it must not move values across where this stands.
template <int n>
FA_DEVICE void pin(float (&r)[n]) {
    FA_UNROLL for (int i = 0; i < n; i++) asm volatile("" : "+f"(r[i]));
}
template <int n>
FA_DEVICE void pin(uint32_t (&r)[n]) {
    FA_UNROLL for (int i = 0; i < n; i++) asm volatile("" : "+r"(r[i]));
}

// What a product is about to overwrite: whatever it held need not be kept until then.
template <int n>
FA_DEVICE void forget(float (&r)[n]) {
    FA_UNROLL for (int i = 0; i < n; i++) asm volatile("" : "=f"(r[i]));
}

// What is derived from it is computed where it is needed: the descriptors of tiles that never move, kept, would leave no uniform register to others.
FA_DEVICE uint32_t not_kept(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

// A matrix in shared memory: panels of 64 columns, their rows of 128 bytes swizzled in groups of eight. `lead`: bytes between panels, where
// the columns are the product's own and not what it sums over. 16 bytes further on is one more.
FA_DEVICE uint64_t matrix_at(uint32_t address, uint32_t lead) {
    return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(lead >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

// For each width: d = a · bᵀ, or d += where `more`, a and b in shared memory by rows, or a by columns (multiply_columns), or both (multiply_both_columns), or d -= (subtract); and d += a · b, a in
// registers and b by rows of what is summed over. 64 rows, 16 deep.
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
struct Products;
#define FA_PRODUCTS_OF_SHARED(name, columns, type, n, list, sums, a, b, add)                                                         \
    FA_MEMBER static void name(float (&d)[n / 2], uint64_t x, uint64_t y, int more) {                                                   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list \
                     "}, " a ", " b ", p, 1, 1, " columns ";\n}" : sums : "l"(x), "l"(y), "r"(more));                                  \
    }
#define FA_SUBTRACT_SHARED(type, n, list, sums, a, b)                                                                                  \
    FA_MEMBER static void subtract(float (&d)[n / 2], uint64_t x, uint64_t y) {                                                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, " a ", " b ", 1, -1, 1, 0, 0;" : sums : "l"(x), "l"(y)); \
    }
#define FA_PRODUCTS_OF_REGISTERS(type, n, list, sums, a0, a1, a2, a3, b, add)                                                         \
    FA_MEMBER static void multiply(float (&d)[n / 2], const uint32_t* x, uint64_t y, int more = 1) {                                     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list \
                     "}, {" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1, 1;\n}" : sums : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(more)); \
    }
#define FA_PRODUCTS(type)                                                                                                           \
    FA_PRODUCTS_OF_SHARED(multiply, "0, 0", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                                                       \
    FA_PRODUCTS_OF_SHARED(multiply, "0, 0", type, 96, FA_N40, FA_COMMA(FA_D32, FA_D8(32), FA_D8(40)), "%48", "%49", "%50")                                  \
    FA_PRODUCTS_OF_SHARED(multiply, "0, 0", type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66")                                                     \
    FA_PRODUCTS_OF_SHARED(multiply, "0, 0", type, 176, FA_N80, FA_COMMA(FA_D64, FA_D8(64), FA_D8(72), FA_D8(80)), "%88", "%89", "%90") \
    FA_SUBTRACT_SHARED(type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33")                                                                  \
    FA_SUBTRACT_SHARED(type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65")                                                                 \
    FA_PRODUCTS_OF_SHARED(multiply_columns, "1, 0", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                                \
    FA_PRODUCTS_OF_SHARED(multiply_columns, "1, 0", type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66")                              \
    FA_PRODUCTS_OF_SHARED(multiply_both_columns, "1, 1", type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34")                           \
    FA_PRODUCTS_OF_REGISTERS(type, 64, FA_N24, FA_COMMA(FA_D32), "%32", "%33", "%34", "%35", "%36", "%37")                                      \
    FA_PRODUCTS_OF_REGISTERS(type, 96, FA_N40, FA_COMMA(FA_D32, FA_D8(32), FA_D8(40)), "%48", "%49", "%50", "%51", "%52", "%53")                 \
    FA_PRODUCTS_OF_REGISTERS(type, 128, FA_N56, FA_COMMA(FA_D64), "%64", "%65", "%66", "%67", "%68", "%69")                                     \
    FA_PRODUCTS_OF_REGISTERS(type, 192, FA_N88, FA_COMMA(FA_D96), "%96", "%97", "%98", "%99", "%100", "%101")                                    \
    FA_PRODUCTS_OF_REGISTERS(type, 256, FA_N120, FA_COMMA(FA_D128), "%128", "%129", "%130", "%131", "%132", "%133")
#define FA_COMMA(...) __VA_ARGS__
template <>
struct Products<true> { FA_PRODUCTS("f16") };
template <>
struct Products<false> { FA_PRODUCTS("bf16") };

}  // namespace rt
}  // namespace fa
