// The interface of a family of gradients' kernels, as family.h has that of forwards.
#pragma once
#include "gpu/common/backward_params.h"
#include "gpu/host/family.h"

namespace fa {
namespace gpu {

// What is known of a call's tensors: that those which are read consist of aligned 16-byte vectors; and that TMA reads all of them.
enum Tensors { kAnyTensors, kVec16Tensors, kTmaTensors };

struct BackwardCall;
struct BackwardFamily;
struct BackwardInstance;

// What a family makes of gradients, from device and descriptor alone, for tensors of which so much is known. A launch takes it as it is.
// Which of dq, dk and dv are wanted, and where they lie, is known only when the call is made.
struct BackwardLaunch {
    const BackwardFamily* family;
    const char* kernel;                // its name, which goes on with _COLUMNS where columns are given
    int rows, keys, columns;           // of a tile
    int64_t blocks;                    // of the launch, which fa_explain names; 0: it does not
    int64_t dq_acc_columns;            // 0: there is no dq_acc
    uint64_t dq_acc_bytes, workspace;  // of dq_acc, and of what else the family keeps, which may hold anything
    bool own_lse;                      // it leaves an lse_log2 of its own units, which the sums of dbias and dsinks cannot read
    int64_t row_blocks;                // of backward_preprocess for rows; 0: the family prepares them itself
    // Of a portable family.
    const BackwardInstance* instance;
    int64_t by_keys_parts, by_rows_parts;
    int64_t by_keys_blocks, by_rows_blocks;
};

// Gradients that are being made, behind backward_preprocess.
struct BackwardWork {
    const Problem& problem;
    const fa_backward_args_t& args;
    const BackwardLaunch& launch;
    const FamilyParams& own;  // of a family of kTmaTensors
    const BackwardRowParams& rows;
    const BackwardCall& call;  // what portable families read
    void* memory;              // of launch.workspace bytes
    rt::Stream stream;
};

struct BackwardFamily {
    const char* name;
    Tensors least;  // that must be known of tensors; families of kTmaTensors alone have parameters of their own
    // False: the family does not take the call, and says why, if asked.
    bool (*plan)(const rt::Device&, const Problem&, Tensors, BackwardLaunch*, FamilyParams*, Refusal*);
    bool (*reads)(const Problem&, const fa_backward_args_t&);  // of kTmaTensors: does it take tensors that lie so?
    fa_status_t (*launch)(const BackwardWork&, Message*);
};

}  // namespace gpu
}  // namespace fa
