// How tensors are described to Hopper's copy engine, and which it can walk through. A call that only loads its kernels has none.
#pragma once
#include <cudaTypedefs.h>
#include "cuda/driver.h"
#include "gpu/host/extents.h"
#include "spec/shape.h"

namespace fa {
namespace gpu {

constexpr int64_t kMaxExtent = int64_t(1) << 30;  // of rows, keys and tiles: device code counts them in 32 bits

// Can the copy engine walk through this tensor? A stride counts only where there is something to stride over.
static inline bool tma_compatible(const int64_t stride[4], int32_t dtype, int64_t rows, int64_t heads, int64_t sequences) {
    const int64_t unit = 16 / type_bytes(dtype), most = (int64_t(1) << 40) / type_bytes(dtype);
    const int64_t extent[] = {sequences, rows, heads};
    for (int i = 0; i < 3; i++)
        if (extent[i] > 1 && (stride[i] <= 0 || stride[i] % unit != 0 || stride[i] >= most)) return false;
    return true;
}
// Looked up once.
static inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    static PFN_cuTensorMapEncodeTiled_v12000 found = nullptr;
    if (!found) found = rt::driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled", 12000);
    return found;
}

// Of how many rows, and of each how many heads, a TMA load brings 128 bytes.
struct TensorBox {
    int rows, heads = 1;
};

// Boxes of a tensor (sequence, row, head, column); what lies outside comes as 0, or as NaN. Pairs of 8-bit elements go as one of 16
// bits: both bytes of its NaN are NaN in e4m3, and there is none of 8 bits.
static inline bool encode_tensor_map(CUtensorMap* map, const void* base, int32_t dtype, const int64_t stride[4], int64_t dim, int64_t rows,
                                     int64_t heads, int64_t sequences, TensorBox box,
                                     CUtensorMapFloatOOBfill outside = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                                     CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
    const int64_t size = type_bytes(dtype);
    const cuuint64_t extent[] = {cuuint64_t(dim * size / 2), cuuint64_t(rows), cuuint64_t(heads), cuuint64_t(sequences)};
    const auto bytes = [&](int64_t n, int64_t count) { return cuuint64_t(count > 1 ? n * size : round_up(dim * size, 16)); };
    const cuuint64_t strides[] = {bytes(stride[1], rows), bytes(stride[2], heads), bytes(stride[0], sequences)};
    const cuuint32_t boxes[] = {64, cuuint32_t(box.rows), cuuint32_t(box.heads), 1}, ones[] = {1, 1, 1, 1};
    const CUtensorMapDataType type = dtype == FA_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return rt::prepares() ||
           tensor_map_encoder()(map, type, 4, const_cast<void*>(base), extent, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                CU_TENSOR_MAP_SWIZZLE_128B, promotion, outside) == CUDA_SUCCESS;
}

// Boxes of 128 bytes of 64 rows of an f32 matrix, of which each eight lie as rows 0, 4, 1, 5, 2, 6, 3, 7; rows are a multiple of eight.
static inline bool encode_interleaved_map(CUtensorMap* map, const void* base, int64_t row_stride, int64_t matrix_stride, int64_t columns,
                                          int64_t rows, int64_t matrices) {
    const auto bytes = [](int64_t n) { return cuuint64_t(n * int64_t(sizeof(float))); };
    const cuuint64_t extent[] = {cuuint64_t(columns * 2), 2, 4, cuuint64_t(rows / 8), cuuint64_t(matrices)};
    const cuuint64_t strides[] = {bytes(4 * row_stride), bytes(row_stride), bytes(8 * row_stride),
                                  bytes(matrices > 1 ? matrix_stride : rows * row_stride)};
    const cuuint32_t boxes[] = {64, 2, 4, 8, 1}, ones[] = {1, 1, 1, 1, 1};
    return rt::prepares() || tensor_map_encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(base), extent, strides, boxes,
                                                  ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace gpu
}  // namespace fa
