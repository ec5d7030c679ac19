// AMX's tile instructions, the accumulators in tile registers, and the 2 × 2 register block that all larger products are made of.
#pragma once
#include "cpu/kernels/matrix_softmax.h"

namespace fa {
namespace cpu {
namespace {

// gcc 12's intrinsics for these have no memory clobber, and its ldtilecfg reads 8 of the 64 bytes. Products need none: what is
// volatile keeps its order.
#define FA_TILE_LOAD(t, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(stride)) : "memory")
// Non-temporal, for what is read once a step: it then leaves room in the first-level cache for S, P and accumulators, whose way
// back to the second level would take longer than the products.
#define FA_TILE_STREAM(t, p) __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(64)) : "memory")
#define FA_TILE_STORE(t, p, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(int64_t(stride)) : "memory")
#define FA_TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
// Assemblers of today do not know tdpfp16ps.
#define FA_TILE_DOT(c, a, b)                                                         \
    if (T == FA_BF16) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c); \
    else __asm__ volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~(b) & 15) << 3 | 3), "i"(0xc0 | (c) << 3 | (a)))

// What ldtilecfg reads: rows, and bytes of a row, of each tile register.
struct alignas(64) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    inline __attribute__((always_inline)) void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
};

// Keeps the configuration that the caller has loaded, and gives it back. Programs load theirs once a thread, though the ABI preserves
// neither it nor the registers' contents across calls: these come back as zeros. Where none was loaded, the registers are released,
// or every switch of context carries 8 KB of tiles.
void acquire_tiles(CallersTiles* callers) { __asm__ volatile("sttilecfg %0" : "=m"(*callers)::"memory"); }
void release_tiles(const CallersTiles& callers) {
    if (callers.config[0] == 0) __asm__ volatile("tilerelease");
    else __asm__ volatile("ldtilecfg %0" ::"m"(callers) : "memory");
}

// A kernel's tile registers, all of 16 rows of 64 bytes.
class Tiles {
    CallersTiles callers;

  public:
    Tiles() {
        acquire_tiles(&callers);
        TileConfig c = {};
        c.palette = 1;
        for (int i = 0; i < 8; i++) {
            c.row_bytes[i] = 64;
            c.rows[i] = 16;
        }
        c.load();
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { release_tiles(callers); }
};

struct NoInterleave {
    template <int, int>
    void interleave() {}
};

// Accumulators are in tiles 0 … 3: upper rows left and right, lower rows left and right. One is stored only when its tile is needed
// for the next one, four products after its own last: a store that waits for its product would fill the scheduler.
struct AccTiles {
    float *upper, *lower;   // NULL: none to store
    int64_t right, stride;  // floats to the right tile; bytes between rows
    inline __attribute__((always_inline)) void store(int n) const {
        if (n == 0) FA_TILE_STORE(0, upper, stride);
        else if (n == 1) FA_TILE_STORE(1, upper + right, stride);
        else if (n == 2) FA_TILE_STORE(2, lower, stride);
        else FA_TILE_STORE(3, lower + right, stride);
    }
    inline __attribute__((always_inline)) void store() const {
        for (int n = 0; n < 4; n++) store(n);
    }
};

// The 2 × 2 register block: four accumulators += two left tiles times two right ones that follow each other. begin(n) comes before
// the product of accumulator n. Tile loads and stores are many micro-operations each, and are spread: with all four loads in a row
// before the products, a step of 64 dims took a tenth longer.
template <int32_t T, int Rows, class Interleaved, class Begin>
inline __attribute__((always_inline)) void gemm_2x2(const uint16_t* a0, const uint16_t* a1, int64_t a_stride, const uint16_t* b,
                                                    Interleaved& interleaved, const Begin& begin) {
    FA_TILE_LOAD(4, a0, a_stride);
    interleaved.template interleave<Rows, 0>();
    FA_TILE_STREAM(6, b);
    begin(0);
    FA_TILE_DOT(0, 4, 6);
    interleaved.template interleave<Rows, 1>();
    FA_TILE_STREAM(7, b + kTileValues);
    begin(1);
    FA_TILE_DOT(1, 4, 7);
    interleaved.template interleave<Rows, 2>();
    FA_TILE_LOAD(5, a1, a_stride);
    begin(2);
    FA_TILE_DOT(2, 5, 6);
    interleaved.template interleave<Rows, 3>();
    begin(3);
    FA_TILE_DOT(3, 5, 7);
}

inline __attribute__((always_inline)) void zero_acc(int n) {
    if (n == 0) FA_TILE_ZERO(0);
    else if (n == 1) FA_TILE_ZERO(1);
    else if (n == 2) FA_TILE_ZERO(2);
    else FA_TILE_ZERO(3);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
