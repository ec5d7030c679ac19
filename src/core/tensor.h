// Tensors as checks see them: where each lies, how far it reaches, and the shapes that a problem gives to its own.
#pragma once
#include "backend/backend.h"
#include "core/dtype.h"

namespace fa {

constexpr int kMaxRank = 5;
constexpr int kNoDim = -1;

struct Tensor {
    const char* name;
    const void* base;
    int32_t element;  // bytes of one, or of a block that is one to strides
    int32_t rank;
    int32_t absent;  // batch dimension that a packed layout lacks (its extent is 1 and its stride must be 0), or kNoDim
    bool bound;      // the true elements are an unknown part of these
    int64_t extent[kMaxRank];
    int64_t stride[kMaxRank];  // elements
    int32_t scalar = 0;        // bytes of the scalars that elements consist of; 0: each is one, or a block whose largest is an f16

    int32_t alignment() const { return scalar ? scalar : element <= 8 ? element : 2; }
    bool empty() const {
        for (int i = 0; i < rank; i++) {
            if (extent[i] == 0) return true;
        }
        return false;
    }
};

// Bytes from the first to the last element, both included; 0 when there is none. Only of a tensor that fits.
uint64_t span(const Tensor&);

// Fills in dense strides.
fa_status_t lay_dense(Tensor*, Message*);
// Literal strides. unit: the last one must be 1.
fa_status_t check_strides(const Tensor&, bool unit, Message*);
// What all strided tensors of the args do: all zero means dense.
fa_status_t lay_out(Tensor*, bool unit, Message*);
// Does every element have an offset and a size in bytes that int64 holds?
fa_status_t check_fits(const Tensor&, Message*);
// Its strides as backends get them. One that nobody steps along, for there is but one index or no element, may be anything, and would
// overflow where it is multiplied: it becomes 0, the last one 1.
void put_strides(const Tensor&, int64_t* to);

// [extent], dense.
inline Tensor array_of(const char* name, const void* base, int32_t element, int64_t extent) {
    return {name, base, element, 1, kNoDim, false, {extent}, {1}};
}
// [rows][columns], rows `stride` apart.
inline Tensor table_of(const char* name, const void* base, int32_t element, int64_t rows, int64_t columns, int64_t stride) {
    return {name, base, element, 2, kNoDim, false, {rows, columns}, {stride, 1}};
}

// (batch, row, head, element) with rows [batch][rows] or, packed, [total].
struct Rows {
    int64_t batch, rows, total;
    bool packed;
};
Rows query_rows(const Problem&);
Tensor tokens(const char* name, const void* base, int32_t dtype, const Rows&, int64_t heads, int64_t dim, const int64_t* stride);

// With the problem's strides.
Tensor q_tensor(const Problem&, const char* name, const void* base);
Tensor k_tensor(const Problem&, const void* base);
Tensor v_tensor(const Problem&, const void* base);
Tensor q_tail_tensor(const Problem&, const void* base);
Tensor k_tail_tensor(const Problem&, const void* base);
Tensor o_tensor(const Problem&, const void* base);
Tensor lse_tensor(const Problem&, const void* base);
Tensor score_tensor(const Problem&, const char* name, const void* base, int32_t element, const int64_t* stride);
// The same of sequences and heads that repeat.
Tensor pair_tensor(const Problem&, const char* name, const void* base, int32_t element, const int64_t* stride, const int64_t* period);
Tensor mask_tensor(const Problem&, const void* base);                         // in bytes, of eight keys each if they are bits
Tensor key_range_tensor(const Problem&, const char* name, const void* base);  // in pairs
// Lists of keys, of one list head each; and their lengths.
Tensor key_list_tensor(const Problem&, const char* name, const void* base);
Tensor key_list_count_tensor(const Problem&, const char* name, const void* base);
Tensor q_descale_tensor(const Problem&, const void* base);
Tensor k_descale_tensor(const Problem&, const void* base, const char* name = "k_descale");  // shifts have their shape
Tensor v_descale_tensor(const Problem&, const void* base, const char* name = "v_descale");
Tensor page_table_tensor(const Problem&, const void* base);

}  // namespace fa
