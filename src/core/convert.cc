// fa_convert in host memory.
#include "core/convert.h"
#include <string.h>

namespace fa {
namespace {

struct F32 {
    using Stored = float;
    static float load(float x) { return x; }
    static float store(float x) { return x; }
};
struct F16 {
    using Stored = uint16_t;
    static float load(uint16_t x) { return f16_to_f32(x); }
    static uint16_t store(float x) { return f32_to_f16(x); }
};
struct Bf16 {
    using Stored = uint16_t;
    static float load(uint16_t x) { return bf16_to_f32(x); }
    static uint16_t store(float x) { return f32_to_bf16(x); }
};

// `n` elements, steps in elements. Compilers vectorise the loop without steps.
template <class From, class To, bool accumulate>
void convert_line(const typename From::Stored* from, int64_t from_step, typename To::Stored* to, int64_t to_step, int64_t n) {
    const auto convert = [](typename From::Stored x, typename To::Stored sum) {
        return To::store(accumulate ? To::load(sum) + From::load(x) : From::load(x));
    };
    if (from_step == 1 && to_step == 1)
        for (int64_t i = 0; i < n; i++) to[i] = convert(from[i], to[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i * to_step] = convert(from[i * from_step], to[i * to_step]);
}

template <class From, class To>
void convert_line(const Move& m, const char* from, char* to) {
    using X = typename From::Stored;
    using Out = typename To::Stored;
    const int64_t from_step = m.from_stride[0] / m.elements / int64_t(sizeof(X)),
                  to_step = m.to_stride[0] / m.elements / int64_t(sizeof(Out));
    const auto line = m.accumulate ? convert_line<From, To, true> : convert_line<From, To, false>;
    line(reinterpret_cast<const X*>(from), from_step, reinterpret_cast<Out*>(to), to_step, m.size[0] * m.elements);
}
template <class From>
void convert_line(const Move& m, const char* from, char* to) {
    if (m.to_dtype == FA_F32) convert_line<From, F32>(m, from, to);
    else if (m.to_dtype == FA_F16) convert_line<From, F16>(m, from, to);
    else convert_line<From, Bf16>(m, from, to);
}

// The innermost loop.
void move_line(const Move& m, const char* from, char* to) {
    if (m.copy_bytes > 0) {
        const size_t bytes = size_t(m.size[0] * m.copy_bytes);
        if (from) memcpy(to, from, bytes);
        else memset(to, 0, bytes);
        return;
    }
    if (m.from_dtype == FA_F32) convert_line<F32>(m, from, to);
    else if (m.from_dtype == FA_F16) convert_line<F16>(m, from, to);
    else convert_line<Bf16>(m, from, to);
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
