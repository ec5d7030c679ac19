#include "cp/copy.h"
#include <string.h>

namespace fa {
namespace cp {

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

// Messages follow each other without gaps, so that these floats may lie anywhere.
char* pack(const LseView& from, int64_t sequences, int64_t heads, int64_t row, int64_t rows, char* dense) {
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++, dense += sizeof(float)) memcpy(dense, from.at(b, h, row + i).data, sizeof(float));
    return dense;
}

const char* unpack(const LseView& to, int64_t sequences, int64_t heads, int64_t row, int64_t rows, const char* dense) {
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++, dense += sizeof(float)) memcpy(to.at(b, h, row + i).data, dense, sizeof(float));
    return dense;
}

}  // namespace cp
}  // namespace fa
