// The study baselines' kernels as the host launches them: study.h has the kernels, in a unit of their own.
#pragma once
#include "gpu/common/simt_params.h"

namespace fa {
namespace gpu {

constexpr int kStudyRows = 64;  // of a row tile

// Heads are sequences' k and v heads here, with all query rows that share them: [batch][kv_heads].
struct StudyParams {
    SimtForwardParams x;
    RowState* states;    // [value_parts][heads · rows], in the units of kHeadroomUnit; standard has one part
    float* s_matrix;     // standard: [heads at once][rows][pitch]
    int64_t pitch;       // floats of a row: whole tiles of keys
    int64_t first_head;  // whose scores the matrix begins with
};

// The kernels whose blocks have so many columns of v.
struct StudyInstance {
    int columns;
    void (*scores)(StudyParams);  // these three: standard
    void (*softmax)(StudyParams);
    void (*values)(StudyParams);
    void (*flash1)(StudyParams);
    int64_t (*shared_bytes)(int64_t q_dims);  // of all but softmax
};
const StudyInstance& study_instance(int64_t dim_v);

}  // namespace gpu
}  // namespace fa
