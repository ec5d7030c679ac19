// The plans that a handle keeps, and the one place where a descriptor is compared with those that were planned.
//
// Calls come in series with one descriptor, or alternate between two, as layers with a window and without do: the last two of each
// operation are kept. A question (fa_supports, fa_explain, fa_workspace_size) finds them as well, and what it has planned serves
// the call that follows; but only the older of the two gives way to it, never the plan of the calls that are being made.
#pragma once
#include "core/check.h"

struct fa_handle_s;

namespace fa {

struct Planned {
    fa_attention_desc_t desc;  // as the caller wrote it; struct_size 0: none
    Plan* plan;
    bool prepared;  // the backend has loaded what the call launches
};

struct Plans {
    static constexpr int kOperations = FA_OP_BACKWARD - FA_OP_FORWARD + 1;
    struct {
        Planned one[2];
        int latest;  // that a call took
    } of[kOperations];
    void* memory;
};

// Room for the plans of the handle's backend.
fa_status_t make_plans(fa_handle_s& handle, Message* message);
void release_plans(fa_handle_s& handle);
// What the backend would plan has changed.
void forget_plans(fa_handle_s& handle);

enum class Asker { call, question, workspace };
// The plan of an operation with a descriptor, good until the next of this operation. For who asks about its workspace, and so is about to
// call, it is prepared as well. A refusal leaves its sentence in the handle's message.
fa_status_t plan_of(fa_handle_s& handle, const fa_attention_desc_t* desc, int32_t op, Asker asker, const Plan** plan);

}  // namespace fa
