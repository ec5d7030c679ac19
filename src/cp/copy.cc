#include "cp/copy.h"

namespace fa {
namespace cp {

constexpr int64_t kFloat = sizeof(float);
constexpr int32_t kByte = FA_I8;  // what is copied has any type

static int64_t unit_of(int32_t dtype) {
    int64_t bytes;
    return fa_dtype_unit(dtype, nullptr, &bytes) == FA_OK ? bytes : 1;
}

View wide(const View& like, void* data, int64_t rows) {
    View v = like;
    v.head_bytes = like.head_bytes / like.unit * kFloat;
    v.unit = kFloat;
    return dense(v, data, rows);
}

void Moves::flush() {
    if (count_ > 0 && job_->computed == FA_OK)
        checked(job_, fa_convert(job_->cp->handle, list_, count_, job_->a.flags & FA_ARGS_STREAM, job_->a.stream));
    count_ = 0;
}

void Moves::move(const View& from, int32_t from_dtype, const View& to, int32_t to_dtype, int64_t sequences, int64_t rows, int64_t elements,
                 bool adds) {
    if (sequences == 0 || rows == 0 || to.heads == 0 || elements == 0) return;
    if (count_ == kMost) flush();
    const int64_t unit = unit_of(from_dtype), to_unit = unit_of(to_dtype);
    list_[count_++] = {from.data,
                       to.data,
                       {sequences, rows, to.heads, elements},
                       {from.batch / unit, from.row / unit, from.head / unit, 1},
                       {to.batch / to_unit, to.row / to_unit, to.head / to_unit, 1},
                       from_dtype,
                       to_dtype,
                       adds ? uint64_t(FA_CONVERT_ACCUMULATE) : 0};
}

// Rows as a message has them.
static View message_of(const View& view, char* data, int64_t rows) { return dense(view, data, rows); }

char* Moves::pack(const View& from, int64_t sequences, int64_t row, int64_t rows, char* dense) {
    move(from.at(0, row, 0), kByte, message_of(from, dense, rows), kByte, sequences, rows, from.head_bytes, false);
    return dense + bytes_of(from, sequences, rows);
}

char* Moves::unpack(const View& to, int64_t sequences, int64_t row, int64_t rows, char* dense) {
    move(message_of(to, dense, rows), kByte, to.at(0, row, 0), kByte, sequences, rows, to.head_bytes, false);
    return dense + bytes_of(to, sequences, rows);
}

char* Moves::add(const View& to, int64_t sequences, int64_t row, int64_t rows, char* dense) {
    move(message_of(to, dense, rows), FA_F32, to.at(0, row, 0), FA_F32, sequences, rows, to.head_bytes / kFloat, true);
    return dense + bytes_of(to, sequences, rows);
}

void Moves::copy(const View& from, int64_t from_row, const View& to, int64_t to_row, int64_t sequences, int64_t rows, bool adds) {
    const View x = from.at(0, from_row, 0), out = to.at(0, to_row, 0);
    if (adds) move(x, FA_F32, out, FA_F32, sequences, rows, to.head_bytes / kFloat, true);
    else move(x, kByte, out, kByte, sequences, rows, to.head_bytes, false);
}

// A tensor of bytes, in rows that a size of the core can count.
static View line_of(const void* data, int64_t row_bytes) {
    return {static_cast<char*>(const_cast<void*>(data)), 1, 0, row_bytes, 0, 1, row_bytes};
}

void Moves::copy_bytes(const void* from, void* to, int64_t bytes) {
    constexpr int64_t kLine = int64_t(1) << 20;
    const int64_t lines = bytes / kLine, rest = bytes % kLine;
    copy(line_of(from, kLine), 0, line_of(to, kLine), 0, 1, lines, false);
    const char* const from_rest = from ? static_cast<const char*>(from) + lines * kLine : nullptr;
    copy(line_of(from_rest, rest), 0, line_of(static_cast<char*>(to) + lines * kLine, rest), 0, 1, 1, false);
}

void Moves::clear(const View& dense, int64_t sequences, int64_t rows) {
    View nothing = dense;
    nothing.data = nullptr;
    if (dense.data) move(nothing, kByte, dense, kByte, sequences, rows, dense.head_bytes, false);
}

void Moves::put(const View& from, const View& to, int32_t dtype, bool accumulate, int64_t sequences, int64_t rows) {
    if (from.data) move(from, FA_F32, to, accumulate ? int32_t(FA_F32) : dtype, sequences, rows, from.head_bytes / kFloat, accumulate);
}

fa_status_t all_gather(Job* job, const void* from, void* to, int64_t bytes, const char* what) {
    Group group(job->cp);
    bool copied = false;
    FA_TRY(start_all_gather(job->cp, from, to, uint64_t(bytes), &copied, &group));
    if (!copied) {
        Moves moves(job);
        moves.copy_bytes(from, static_cast<char*>(to) + job->rank * bytes, bytes);
        moves.flush();
    }
    return group.wait(what);
}

}  // namespace cp
}  // namespace fa
