// The launches of fa_append_kv, fa_rotary, fa_merge and fa_convert. append.h and convert.h have the kernels, in units of their own: without
// machine code a call compiles the units that it needs, and these are half of what a backend has beside its tiles' kernels.
#pragma once
#include "backend/move.h"
#include "backend/problem.h"
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

constexpr int kRowThreads = 128;  // of merge_rows, whose blocks have a row each
// Of append_rows and rotate_rows: lanes to a row, and of such teams a block.
constexpr int kTeam = 16, kMoveThreads = 128, kTeams = kMoveThreads / kTeam;

// Rows with heads; those of append_kv are k's, and as many of v.
rt::Status launch_append(const Problem&, const fa_append_kv_args_t&, int64_t rows, rt::Stream);
rt::Status launch_rotary(const Problem&, const fa_rotary_args_t&, int64_t rows, rt::Stream);
rt::Status launch_partial_merge(const Problem&, const fa_merge_args_t&, int64_t rows, rt::Stream);

constexpr int kConvertThreads = 256, kConvertWords = 4;  // of a thread: as many reads are under way at once
constexpr int64_t kConvertBlock = int64_t(kConvertThreads) * kConvertWords;
constexpr int kConvertMoves = 24;  // of one launch, whose parameters have 4,096 bytes

struct ConvertParams {
    Move move[kConvertMoves];
    int64_t end[kConvertMoves];  // the first block that is not the move's
    int64_t count;
};
static_assert(sizeof(ConvertParams) <= 4096, "what a launch takes");
rt::Status launch_convert(const ConvertParams&, rt::Stream);

}  // namespace gpu
}  // namespace fa
