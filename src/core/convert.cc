// fa_convert in host memory.
#include "core/convert.h"
#include <string.h>

namespace fa {
namespace {

float load(const char* at, int32_t dtype) {
    uint16_t half;
    float whole;
    if (dtype == FA_F32) return memcpy(&whole, at, sizeof whole), whole;
    memcpy(&half, at, sizeof half);
    return dtype == FA_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void store(char* at, int32_t dtype, float x) {
    if (dtype == FA_F32) {
        memcpy(at, &x, sizeof x);
        return;
    }
    const uint16_t half = dtype == FA_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy(at, &half, sizeof half);
}

// The innermost loop.
void move_line(const Move& m, const char* from, char* to) {
    if (m.copy_bytes > 0) {
        const size_t bytes = size_t(m.size[0] * m.copy_bytes);
        if (from) memcpy(to, from, bytes);
        else memset(to, 0, bytes);
        return;
    }
    const int64_t n = m.size[0] * m.elements, from_unit = m.from_stride[0] / m.elements, to_unit = m.to_stride[0] / m.elements;
    if (m.accumulate && m.from_dtype == FA_F32) {
        float* const sum = reinterpret_cast<float*>(to);
        const float* const term = reinterpret_cast<const float*>(from);
        for (int64_t i = 0; i < n; i++) sum[i] += term[i];
        return;
    }
    for (int64_t i = 0; i < n; i++, from += from_unit, to += to_unit)
        store(to, m.to_dtype, m.accumulate ? load(to, m.to_dtype) + load(from, m.from_dtype) : load(from, m.from_dtype));
}

}  // namespace

void move_in_host(const Move& m) {
    if (m.words == 0) return;
    for (int64_t c = 0; c < m.size[3]; c++)
        for (int64_t b = 0; b < m.size[2]; b++)
            for (int64_t a = 0; a < m.size[1]; a++)
                move_line(m, m.from ? m.from + a * m.from_stride[1] + b * m.from_stride[2] + c * m.from_stride[3] : nullptr,
                          m.to + a * m.to_stride[1] + b * m.to_stride[2] + c * m.to_stride[3]);
}

}  // namespace fa
