// What fa_rotary and fa_append_kv have in common: the tables of angles.
#pragma once
#include "core/rules.h"
#include "core/tensor.h"

namespace fa {

static inline fa_status_t check_rotation_sizes(const Problem& problem, int64_t max_position, int64_t rotary_begin, int64_t rotary_dim,
                                               Message* message) {
    FA_TRY(in_range(message, "max_position", max_position, 0, kMaxSize));
    if (problem.d.dim_qk == 1)
        return fail(message, FA_INVALID_ARGUMENT, "dim_qk is 1: expected 2 or more, since rotation needs pairs of dims");
    FA_TRY(in_range(message, "rotary_dim", rotary_dim, 2, problem.d.dim_qk));
    if (rotary_dim % 2 != 0) return fail(message, FA_INVALID_ARGUMENT, "rotary_dim is %lld: expected an even number", ll(rotary_dim));
    return in_range(message, "rotary_begin", rotary_begin, 0, problem.d.dim_qk - rotary_dim);
}

static inline Tensor angle_tensor(const char* name, const float* base, int64_t max_position, int64_t rotary_dim) {
    return table_of(name, base, 4, max_position, rotary_dim / 2, rotary_dim / 2);
}

}  // namespace fa
