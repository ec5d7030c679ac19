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
void convert_line(const Move& move, const char* from, char* to) {
    using X = typename From::Stored;
    using Out = typename To::Stored;
    const int64_t from_step = move.from_stride[0] / move.elements / int64_t(sizeof(X)),
                  to_step = move.to_stride[0] / move.elements / int64_t(sizeof(Out));
    const auto line = move.accumulate ? convert_line<From, To, true> : convert_line<From, To, false>;
    line(reinterpret_cast<const X*>(from), from_step, reinterpret_cast<Out*>(to), to_step, move.size[0] * move.elements);
}
template <class From>
void convert_line(const Move& move, const char* from, char* to) {
    if (move.to_dtype == FA_F32) convert_line<From, F32>(move, from, to);
    else if (move.to_dtype == FA_F16) convert_line<From, F16>(move, from, to);
    else convert_line<From, Bf16>(move, from, to);
}

// The innermost loop.
void move_line(const Move& move, const char* from, char* to) {
    if (move.copy_bytes > 0) {
        const size_t bytes = size_t(move.size[0] * move.copy_bytes);
        if (from) memcpy(to, from, bytes);
        else memset(to, 0, bytes);
        return;
    }
    if (move.from_dtype == FA_F32) convert_line<F32>(move, from, to);
    else if (move.from_dtype == FA_F16) convert_line<F16>(move, from, to);
    else convert_line<Bf16>(move, from, to);
}

}  // namespace

void move_in_host(const Move& move) {
    if (move.words == 0) return;
    for (int64_t c = 0; c < move.size[3]; c++)
        for (int64_t b = 0; b < move.size[2]; b++)
            for (int64_t a = 0; a < move.size[1]; a++)
                move_line(move,
                          move.from ? move.from + a * move.from_stride[1] + b * move.from_stride[2] + c * move.from_stride[3] : nullptr,
                          move.to + a * move.to_stride[1] + b * move.to_stride[2] + c * move.to_stride[3]);
}

}  // namespace fa
