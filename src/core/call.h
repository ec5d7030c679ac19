// The tensors of one call: each pointer given when it must be and aligned, each tensor within the address space, and every output
// apart from all else.
#pragma once
#include "core/check.h"
#include "core/overlap.h"
#include "core/rules.h"

namespace fa {

enum class Role { input, output };

struct Call {
    static constexpr int kMaxTensors = Regions::kMax;

    const Problem& problem;
    Regions* regions;  // gets every tensor of the call but the workspace; or asks for the extent of one
    Message* message;
    int count = 0;
    Tensor tensor[kMaxTensors];  // `count` of them
    Role role[kMaxTensors];

    Call(const Problem& p, Regions* r, Message* m) : problem(p), regions(r), message(m) { regions->count = 0; }

    // A tensor that every call has; NULL only when it has no elements.
    fa_status_t always(Role, const Tensor&);
    // A tensor that is given exactly when its operand bit is set.
    fa_status_t with(uint64_t operand, Role r, const Tensor& tensor) {
        return !tensor.base && !problem.has(operand) ? FA_OK : given(operand, r, tensor);
    }
    // A tensor whose pointer alone decides.
    fa_status_t perhaps(Role, const Tensor&);

    // A pointer that a flag of the descriptor has no use for.
    fa_status_t without(const char* name, const void* pointer, const char* flag) {
        if (regions->asked || !pointer) return FA_OK;
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p: expected NULL with %s", name, pointer, flag);
    }

    // What the tail of every args struct holds; the workspace is an output, too.
    fa_status_t common(uint32_t flags, uint32_t known_flags, const void* stream, const void* workspace, uint64_t workspace_size);

    fa_status_t outputs_apart();

  private:
    fa_status_t given(uint64_t operand, Role, const Tensor&);
    fa_status_t add(Role, const Tensor&);
};

}  // namespace fa
