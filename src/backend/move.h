// A conversion of fa_convert as backends take it: nested loops over words, as few loops and as long words as strides and addresses allow.
#pragma once
#include "backend/storage_types.h"

namespace fa {

struct Move {
    const char* from;  // NULL: zeros
    char* to;
    int64_t size[4];                       // words; the innermost loop first
    int64_t from_stride[4], to_stride[4];  // bytes
    int64_t words;                         // of all loops
    int32_t copy_bytes;  // of a word that is copied, a power of two up to 16; 0: a word is `elements` that are converted or summed
    int32_t elements;    // 1, or 4 that lie aligned on both sides
    int32_t from_dtype, to_dtype;
    bool accumulate;
};

constexpr int64_t kLongestWord = 16;  // that a GPU's thread reads at once
constexpr int64_t kWordElements = 4;  // that it converts at once

struct MoveLoop {
    int64_t n, from, to;  // steps in bytes
};

// The outer dimensions by ascending step of `to`, those that go on where the ones within end taken together with them.
struct MoveLoops {
    MoveLoop loop[4];
    int count = 0;

    MoveLoops(const fa_conversion_t& conversion, const MoveLoop& inner, int64_t from_unit, int64_t to_unit) {
        loop[count++] = inner;
        for (int i = 0; i < 3; i++) {
            if (conversion.size[i] == 1) continue;
            const MoveLoop next{conversion.size[i], conversion.x ? conversion.x_stride[i] * from_unit : 0,
                                conversion.out_stride[i] * to_unit};
            int at = count++;
            for (; at > 1 && loop[at - 1].to > next.to; at--) loop[at] = loop[at - 1];
            loop[at] = next;
        }
        int last = 0;
        for (int i = 1; i < count; i++) {
            MoveLoop& within = loop[last];
            if (goes_on(loop[i].to, within.n, within.to) && (!conversion.x || goes_on(loop[i].from, within.n, within.from)))
                within.n *= loop[i].n;
            else loop[++last] = loop[i];
        }
        count = last + 1;
    }

    // Of n steps, all but the last lie within memory: n · step may reach beyond int64's end, not uint64's.
    static bool goes_on(int64_t next, int64_t n, int64_t step) { return uint64_t(next) == uint64_t(n) * uint64_t(step); }

    // The largest power of two that divides all addresses but the innermost loop's.
    int64_t alignment(const fa_conversion_t& conversion, bool of_to) const {
        int64_t bits = reinterpret_cast<intptr_t>(of_to ? conversion.out : conversion.x);
        for (int i = 1; i < count; i++) bits |= of_to ? loop[i].to : loop[i].from;
        return bits == 0 ? kLongestWord : bits & -bits;
    }
};

// Of a checked conversion. No words: there is nothing to do.
inline Move move_of(const fa_conversion_t& conversion) {
    Move move{};
    move.from = static_cast<const char*>(conversion.x);
    move.to = static_cast<char*>(conversion.out);
    move.from_dtype = conversion.x ? conversion.x_dtype : conversion.out_dtype;
    move.to_dtype = conversion.out_dtype;
    move.accumulate = (conversion.flags & FA_CONVERT_ACCUMULATE) != 0;
    const bool empty = conversion.size[0] == 0 || conversion.size[1] == 0 || conversion.size[2] == 0 || conversion.size[3] == 0;
    if (empty || (move.accumulate && !conversion.x)) return move;  // strides that nobody steps along may be anything
    const int64_t from_unit = type_bytes(move.from_dtype), to_unit = type_bytes(conversion.out_dtype),
                  units = conversion.size[3] / unit_dims(conversion.out_dtype);
    const bool copies = move.from_dtype == conversion.out_dtype && !move.accumulate;
    MoveLoops loops(conversion, copies ? MoveLoop{units * to_unit, 1, 1} : MoveLoop{units, from_unit, to_unit}, from_unit, to_unit);
    MoveLoop& inner = loops.loop[0];
    const auto smaller = [](int64_t a, int64_t b) { return a < b ? a : b; };
    const int64_t from_alignment = loops.alignment(conversion, false), to_alignment = loops.alignment(conversion, true);
    if (copies) {
        const int64_t bytes = smaller(smaller(conversion.x ? from_alignment : kLongestWord, to_alignment), kLongestWord);
        move.copy_bytes = int32_t(smaller(bytes, inner.n & -inner.n));
        move.elements = 1;
        inner = {inner.n / move.copy_bytes, move.copy_bytes, move.copy_bytes};
    } else {
        const bool together = inner.n % kWordElements == 0 && from_alignment % (kWordElements * from_unit) == 0 &&
                              to_alignment % (kWordElements * to_unit) == 0;
        move.elements = together ? int32_t(kWordElements) : 1;
        inner = {inner.n / move.elements, move.elements * from_unit, move.elements * to_unit};
    }
    move.words = 1;
    for (int i = 0; i < 4; i++) {
        const MoveLoop loop = i < loops.count ? loops.loop[i] : MoveLoop{1, 0, 0};
        move.size[i] = loop.n;
        move.from_stride[i] = loop.from;
        move.to_stride[i] = loop.to;
        move.words *= loop.n;
    }
    return move;
}

}  // namespace fa
