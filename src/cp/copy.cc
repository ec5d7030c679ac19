#include "cp/copy.h"
#include <string.h>
#include "spec/numerics.h"

namespace fa {
namespace cp {

constexpr int64_t kFloat = sizeof(float);

// Calls move(bytes of the tensor, bytes of the message, length) for the longest pieces that are neighbours in both.
template <class Move>
static int64_t each_piece(const View& v, int64_t sequences, int64_t row, int64_t rows, const Move& move) {
    const bool dense_heads = v.heads <= 1 || v.head == v.head_bytes, dense_rows = dense_heads && v.row == v.row_bytes();
    const int64_t row_bytes = v.row_bytes();
    int64_t at = 0;
    for (int64_t b = 0; b < sequences; b++) {
        if (dense_rows) {
            move(b * v.batch + row * v.row, at, rows * row_bytes);
            at += rows * row_bytes;
            continue;
        }
        for (int64_t i = row; i < row + rows; i++) {
            const int64_t from = b * v.batch + i * v.row;
            if (dense_heads) {
                move(from, at, row_bytes);
                at += row_bytes;
                continue;
            }
            for (int64_t h = 0; h < v.heads; h++, at += v.head_bytes) move(from + h * v.head, at, v.head_bytes);
        }
    }
    return at;
}

char* pack(const View& from, int64_t sequences, int64_t row, int64_t rows, char* dense) {
    if (rows == 0 || sequences == 0) return dense;
    return dense + each_piece(from, sequences, row, rows, [&](int64_t tensor, int64_t message, int64_t bytes) {
               memcpy(dense + message, from.data + tensor, size_t(bytes));
           });
}

const char* unpack(const View& to, int64_t sequences, int64_t row, int64_t rows, const char* dense) {
    if (rows == 0 || sequences == 0) return dense;
    return dense + each_piece(to, sequences, row, rows, [&](int64_t tensor, int64_t message, int64_t bytes) {
               memcpy(to.data + tensor, dense + message, size_t(bytes));
           });
}

static void add_floats(const char* from, int64_t bytes, char* to) {
    float* const sum = reinterpret_cast<float*>(to);
    const float* const term = reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < bytes / kFloat; i++) sum[i] += term[i];
}

const char* add(const View& to, int64_t sequences, int64_t row, int64_t rows, const char* dense) {
    if (rows == 0 || sequences == 0) return dense;
    return dense + each_piece(to, sequences, row, rows, [&](int64_t tensor, int64_t message, int64_t bytes) {
               add_floats(dense + message, bytes, to.data + tensor);
           });
}

void copy(const View& from, int64_t from_row, const View& to, int64_t to_row, int64_t sequences, int64_t rows, bool adds) {
    const bool dense_heads = from.heads <= 1 || (from.head == from.head_bytes && to.head == to.head_bytes);
    const int64_t heads = dense_heads ? 1 : from.heads, bytes = dense_heads ? from.row_bytes() : from.head_bytes;
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t h = 0; h < heads; h++) {
                const char* const line = from.at(b, from_row + i, h).data;
                char* const place = to.at(b, to_row + i, h).data;
                if (adds) add_floats(line, bytes, place);
                else memcpy(place, line, size_t(bytes));
            }
}

View wide(const View& like, void* data, int64_t rows) {
    View v = like;
    v.head_bytes = like.head_bytes / like.unit * kFloat;
    v.unit = kFloat;
    return dense(v, data, rows);
}

void clear(const View& dense, int64_t sequences, int64_t rows) {
    if (dense.data && sequences > 0 && rows > 0) memset(dense.data, 0, size_t(bytes_of(dense, sequences, rows)));
}

static void round_to(int32_t dtype, const float* from, int64_t n, char* to) {
    uint16_t* const narrow = reinterpret_cast<uint16_t*>(to);
    if (dtype == FA_F32) memcpy(to, from, size_t(n * kFloat));
    else if (dtype == FA_BF16)
        for (int64_t i = 0; i < n; i++) narrow[i] = f32_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < n; i++) narrow[i] = f32_to_f16(from[i]);
}

void put(const View& from, const View& to, int32_t dtype, bool accumulate, int64_t sequences, int64_t rows) {
    const int64_t dim = from.head_bytes / kFloat;
    for (int64_t b = 0; from.data && b < sequences; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t h = 0; h < from.heads; h++) {
                const char* const line = from.at(b, i, h).data;
                char* const place = to.at(b, i, h).data;
                if (!accumulate) {
                    round_to(dtype, reinterpret_cast<const float*>(line), dim, place);
                    continue;
                }
                add_floats(line, dim * kFloat, place);
            }
}

}  // namespace cp
}  // namespace fa
