// The kernel tables of AMX: products of tiles of bf16 (Sapphire Rapids and later) and of f16 (Granite Rapids), beside AVX-512 with
// its bf16 conversions. The forward's mainloops are in forward.h and forward_d64.h, decoding and the backward in files of their
// names.
#define FA_ISA_VECTORS "cpu/isa/avx512/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/avx512/formats.h"
#include "cpu/isa/amx/backward.h"
#include "cpu/isa/amx/decode_one_row.h"
#include "cpu/isa/amx/decode_spread.h"
#include "cpu/isa/amx/forward_d64.h"
#include "cpu/kernels/matrix_kernels.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_amx, kKernels_amx_fp16;

namespace {

template <int32_t T, Exp2Accuracy E>
void mainloop_rows(const MatrixTask& task, const MainloopStep* steps, int64_t count) {
    if (is_head_dim_64(task.shape)) return mainloop_resident<T, E>(task, steps, count);
    const int groups =
        task.shape.depth * 2 > task.shape.columns ? task.shape.columns : task.shape.depth * 2;  // of four products, at least, in a phase
    if (groups <= 2) mainloop_steps<T, E, 8>(task, steps, count);
    else if (groups <= 4) mainloop_steps<T, E, 4>(task, steps, count);
    else if (groups <= 8) mainloop_steps<T, E, 2>(task, steps, count);
    else mainloop_steps<T, E, 1>(task, steps, count);
}

void mainloop(const MatrixTask& task, const MainloopStep* steps, int64_t count) {
    if (count == 0) return;
    const bool fp16 = task.shape.type == FA_F16;
    if (task.lse && fp16) mainloop_rows<FA_F16, Exp2Accuracy::high>(task, steps, count);
    else if (task.lse) mainloop_rows<FA_BF16, Exp2Accuracy::high>(task, steps, count);
    else if (fp16) mainloop_rows<FA_F16, Exp2Accuracy::medium>(task, steps, count);
    else mainloop_rows<FA_BF16, Exp2Accuracy::low>(task, steps, count);
}

template <int32_t T>
void init_refs_step(const MatrixTask& task, const MainloopStep& step) {
    ScoreStage stage{reinterpret_cast<float*>(task.stages), false};
    NoInterleave none;
    const Tiles registers;
    qk_gemm<T, 0>(task.shape, step, stage, none, AccTiles{});
    update_refs_at_diagonal(task, step, stage.s);
}

void init_refs_at_diagonal(const MatrixTask& task, const MainloopStep& step) {
    if (task.shape.type == FA_F16) init_refs_step<FA_F16>(task, step);
    else init_refs_step<FA_BF16>(task, step);
}

constexpr MatrixKernels matrix_kernels(bool fp16) {
    MatrixKernels k = common_matrix_kernels();
    k.has_fp16 = fp16;
    k.speed = 8;  // about 1 TFLOP/s a core
    k.backward_speed = 4;
    k.init_refs_at_diagonal = init_refs_at_diagonal;
    k.mainloop = mainloop;
    k.decode[0] = &kDecodeIntegers;
    k.decode[1] = &kDecodeDotsOfBytes;
    k.decode[2] = &kDecodeOneRow;
    k.decode[3] = &kDecodeSpread;
    k.decode[4] = &kDecodeMatrix;
    k.gemm = gemm;
    k.softmax_backward_tiles = softmax_backward_tiles;
    return k;
}
constexpr MatrixKernels kMatrix = matrix_kernels(false), kMatrixFp16 = matrix_kernels(true);

}  // namespace

constexpr Kernels kKernels_amx = tile_kernels("amx", FA_ISA_AMX, &kMatrix);
constexpr Kernels kKernels_amx_fp16 = tile_kernels("amx_fp16", FA_ISA_AMX_FP16, &kMatrixFp16);

}  // namespace cpu
}  // namespace fa
