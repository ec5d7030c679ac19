// Who has which rows of a sequence.
#pragma once
#include <flashattn_cp.h>
#include "backend/backend.h"

namespace fa {
namespace cp {

struct Partition {
    int32_t layout;  // FA_CP_LAYOUT_…
    int32_t ranks;
    int64_t block;
};

struct Range {
    int64_t begin, rows;
};

// A rank's ranges of one sequence: ascending, apart, none of them empty.
struct Ranges {
    int32_t count;
    Range at[2];
    int64_t rows() const { return (count > 0 ? at[0].rows : 0) + (count > 1 ? at[1].rows : 0); }
};

Ranges ranges_of(const Partition& partition, int64_t length, int32_t rank);

// Checks what does not depend on a problem, and fills in defaults.
fa_status_t read_spread(const fa_cp_desc_t* user, fa_cp_desc_t* spread, Message*);

}  // namespace cp
}  // namespace fa
