// fa_convert: one kernel that moves the words of many conversions, a word for each thread at a time. A block belongs to one of them.
#pragma once
#include "backend/move.h"
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

constexpr int kConvertThreads = 256, kConvertWords = 4;  // of a thread: as many reads are under way at once
constexpr int64_t kConvertBlock = int64_t(kConvertThreads) * kConvertWords;
constexpr int kConvertMoves = 24;  // of one launch, whose parameters have 4,096 bytes

struct ConvertParams {
    Move move[kConvertMoves];
    int64_t end[kConvertMoves];  // the first block that is not the move's
    int64_t count;
};
static_assert(sizeof(ConvertParams) <= 4096, "what a launch takes");

// Where a word lies on either side. Index: 32 bits where they count all words, for a division of 64 takes ten times as long.
template <class Index>
FA_DEVICE void locate_word(const Move& move, int64_t word, int64_t* from, int64_t* to) {
    Index rest = Index(word);
    *from = *to = 0;
    FA_UNROLL_FOR (int i = 0; i < 4; i++) {
        const Index n = Index(move.size[i]), whole = i < 3 ? rest / n : 0, at = rest - whole * n;
        *from += int64_t(at) * move.from_stride[i];
        *to += int64_t(at) * move.to_stride[i];
        rest = whole;
    }
}
FA_DEVICE void locate_word(const Move& move, int64_t word, int64_t* from, int64_t* to) {
    if (move.words <= int64_t(0xffffffff)) locate_word<uint32_t>(move, word, from, to);
    else locate_word<uint64_t>(move, word, from, to);
}

// The longest word, as four values whose bits are never computed with: as an array that is assigned whole it would lie in scratch memory on
// AMD's GPUs.
struct Word16 {
    float x[4];
};
FA_DEVICE void load_word(const char* at, Word16* word) { rt::load4(reinterpret_cast<const float*>(at), word->x); }
FA_DEVICE void store_word(char* at, const Word16& word) { rt::store4(reinterpret_cast<float*>(at), word.x); }
template <class Word>
FA_DEVICE void load_word(const char* at, Word* word) {
    *word = *reinterpret_cast<const Word*>(at);
}
template <class Word>
FA_DEVICE void store_word(char* at, const Word& word) {
    *reinterpret_cast<Word*>(at) = word;
}

template <class Word>
FA_DEVICE void copy_words(const Move& move, int64_t first) {
    Word word[kConvertWords] = {};
    int64_t to[kConvertWords] = {};
    FA_UNROLL_FOR (int i = 0; i < kConvertWords; i++) {
        int64_t from;
        if (first + i * kConvertThreads >= move.words) continue;
        locate_word(move, first + i * kConvertThreads, &from, &to[i]);
        if (move.from) load_word(move.from + from, &word[i]);
    }
    FA_UNROLL_FOR (int i = 0; i < kConvertWords; i++)
        if (first + i * kConvertThreads < move.words) store_word(move.to + to[i], word[i]);
}

template <int n>
FA_DEVICE void load_elements(const void* at, int32_t dtype, float* x) {
    if (n == 1) {
        x[0] = load_element(at, 0, dtype);
    } else if (dtype == FA_F32) {
        rt::load4(static_cast<const float*>(at), x);
    } else {
        const Vec4<F16> halves = *static_cast<const Vec4<F16>*>(at);
        FA_UNROLL_FOR (int e = 0; e < n; e++) x[e] = dtype == FA_F16 ? f16_to_f32(halves.element[e].x) : bf16_to_f32(halves.element[e].x);
    }
}

template <int n>
FA_DEVICE void store_elements(void* at, int32_t dtype, const float* x) {
    if (n == 1) {
        store_element(at, 0, dtype, x[0]);
    } else if (dtype == FA_F32) {
        rt::store4(static_cast<float*>(at), x);
    } else {
        Vec4<F16> halves;
        FA_UNROLL_FOR (int e = 0; e < n; e++) halves.element[e].x = dtype == FA_F16 ? f32_to_f16(x[e]) : f32_to_bf16(x[e]);
        *static_cast<Vec4<F16>*>(at) = halves;
    }
}

template <int n>
FA_DEVICE void convert_words(const Move& move, int64_t first) {
    float x[kConvertWords][n] = {};
    int64_t to[kConvertWords] = {};
    FA_UNROLL_FOR (int i = 0; i < kConvertWords; i++) {
        int64_t from;
        if (first + i * kConvertThreads >= move.words) continue;
        locate_word(move, first + i * kConvertThreads, &from, &to[i]);
        load_elements<n>(move.from + from, move.from_dtype, x[i]);
    }
    FA_UNROLL_FOR (int i = 0; i < kConvertWords; i++) {
        if (first + i * kConvertThreads >= move.words) continue;
        if (move.accumulate) {
            float sum[n];
            load_elements<n>(move.to + to[i], FA_F32, sum);
            FA_UNROLL_FOR (int e = 0; e < n; e++) x[i][e] = sum[e] + x[i][e];
        }
        store_elements<n>(move.to + to[i], move.to_dtype, x[i]);
    }
}

FA_KERNEL void FA_BOUNDS(kConvertThreads, 1) convert_tensors(FA_PARAM ConvertParams params) {
    const int64_t block = rt::block();
    int i = 0;
    while (i + 1 < params.count && block >= params.end[i]) i++;
    const Move& move = params.move[i];
    const int64_t first = (block - (i > 0 ? params.end[i - 1] : 0)) * kConvertBlock + rt::thread();
    if (move.copy_bytes == 16) copy_words<Word16>(move, first);
    else if (move.copy_bytes == 8) copy_words<uint64_t>(move, first);
    else if (move.copy_bytes == 4) copy_words<uint32_t>(move, first);
    else if (move.copy_bytes == 2) copy_words<uint16_t>(move, first);
    else if (move.copy_bytes == 1) copy_words<uint8_t>(move, first);
    else if (move.elements == 4) convert_words<4>(move, first);
    else convert_words<1>(move, first);
}

}  // namespace gpu
}  // namespace fa
