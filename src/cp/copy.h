// Rows between tensors with strides and messages without.
#pragma once
#include "cp/job.h"

namespace fa {
namespace cp {

// Bytes of so many rows of all sequences and of the view's heads.
inline int64_t bytes_of(const View& view, int64_t sequences, int64_t rows) { return sequences * rows * view.row_bytes(); }

// Where keys of a segment lie in a buffer of [key][heads][dim]: from row `first` on, those of a sequence `stride` rows behind the last
// one's.
struct Place {
    int64_t first, stride;
    View in(const View& buffer) const {
        View v = buffer.at(0, first, 0);
        v.batch = stride * v.row;
        return v;
    }
};

// A gradient on the way, in f32: [sequences][rows][heads][dim] of `like`, whose elements have their own type. It is not wanted
// where data is NULL.
View wide(const View& like, void* data, int64_t rows);

// Moves are collected, and made by flush() at the latest: on a GPU together, so what one writes no other reads or writes. A failure of the
// core is the job's.
class Moves {
  public:
    explicit Moves(Job* job) : job_(job) {}
    Moves(const Moves&) = delete;
    Moves& operator=(const Moves&) = delete;
    void flush();

    // Rows [row, row + rows) of each sequence to or from [sequences][rows][heads][dim] at `dense`; returns where that ends.
    char* pack(const View& from, int64_t sequences, int64_t row, int64_t rows, char* dense);
    char* unpack(const View& to, int64_t sequences, int64_t row, int64_t rows, char* dense);
    // The same of sums in f32, which are added to what is there.
    char* add(const View& to, int64_t sequences, int64_t row, int64_t rows, char* dense);

    // Rows of each sequence from one tensor to the same of another, or f32 added to what is there.
    void copy(const View& from, int64_t from_row, const View& to, int64_t to_row, int64_t sequences, int64_t rows, bool adds);
    void copy_bytes(const void* from, void* to, int64_t bytes);
    void clear_bytes(void* to, int64_t bytes) { copy_bytes(nullptr, to, bytes); }

    // Zeros, unless data is NULL.
    void clear(const View& dense, int64_t sequences, int64_t rows);

    // Dense f32 into a tensor of `dtype`, rounded once; or, where the tensor accumulates, added to its f32. Nothing where data is NULL.
    void put(const View& from, const View& to, int32_t dtype, bool accumulate, int64_t sequences, int64_t rows);

  private:
    void move(const View& from, int32_t from_dtype, const View& to, int32_t to_dtype, int64_t sequences, int64_t rows, int64_t elements,
              bool adds);
    static constexpr int kMost = 48;
    Job* job_;
    int count_ = 0;
    fa_conversion_t list_[kMost];
};

// to[ranks][bytes]: what each rank has at `from`, where tensors are.
fa_status_t all_gather(Job* job, const void* from, void* to, int64_t bytes, const char* what);

}  // namespace cp
}  // namespace fa
