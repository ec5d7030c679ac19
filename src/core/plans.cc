#include "core/plans.h"
#include <string.h>
#include "core/handle.h"
#include "core/prepare.h"
#include "core/rules.h"
#include "os/memory.h"
#include "spec/shape.h"

namespace fa {
namespace {

// Was the plan made for this descriptor, at whatever address it lies?
bool is_planned(const Planned& one, const fa_attention_desc_t* desc) {
    constexpr size_t kSize = sizeof desc->struct_size;  // comes first, and tells how much may be read
    return one.desc.struct_size != 0 && memcmp(desc, &one.desc, kSize) == 0 && memcmp(desc, &one.desc, one.desc.struct_size) == 0;
}

fa_status_t make_plan(fa_handle_s& handle, const fa_attention_desc_t* desc, int32_t op, Planned* one) {
    one->desc.struct_size = 0;
    one->prepared = false;
    one->plan->op = op;
    FA_TRY(resolve(desc, op, &one->plan->problem, &handle.message));
    FA_TRY(handle.backend->plan(handle.context, one->plan, &handle.message));
    uint32_t size;
    memcpy(&size, desc, sizeof size);
    // A larger one, of a later version, is planned each time.
    if (size <= sizeof one->desc) memcpy(&one->desc, desc, size);
    return FA_OK;
}

}  // namespace

fa_status_t make_plans(fa_handle_s& handle, Message* message) {
    const uint64_t bytes = uint64_t(round_up(int64_t(handle.backend->plan_bytes), int64_t(kPlanAlignment)));
    char* memory = static_cast<char*>(os::allocate(2 * Plans::kOperations * bytes, kPlanAlignment));
    if (memory == nullptr)
        return fail(message, FA_OUT_OF_MEMORY, "no memory for a handle's plans of %llu bytes each", (unsigned long long)bytes);
    handle.plans.memory = memory;
    for (auto& operation : handle.plans.of)
        for (Planned& one : operation.one) {
            one.plan = reinterpret_cast<Plan*>(memory);
            memory += bytes;
        }
    return FA_OK;
}

void release_plans(fa_handle_s& handle) { os::release(handle.plans.memory); }

void forget_plans(fa_handle_s& handle) {
    for (auto& operation : handle.plans.of)
        for (Planned& one : operation.one) one.desc.struct_size = 0;
}

fa_status_t plan_of(fa_handle_s& handle, const fa_attention_desc_t* desc, int32_t op, Asker asker, const Plan** plan) {
    FA_TRY(in_range(&handle.message, "op", op, FA_OP_FORWARD, FA_OP_BACKWARD));
    auto& operation = handle.plans.of[op - FA_OP_FORWARD];
    int i = operation.latest;
    if (desc == nullptr || !is_planned(operation.one[i], desc)) {
        i = 1 - i;
        if (desc == nullptr || !is_planned(operation.one[i], desc)) FA_TRY(make_plan(handle, desc, op, &operation.one[i]));
    }
    if (asker == Asker::call) operation.latest = i;
    if (asker == Asker::workspace && !operation.one[i].prepared) {
        FA_TRY(prepare(handle, *operation.one[i].plan));
        operation.one[i].prepared = true;
    }
    *plan = operation.one[i].plan;
    return FA_OK;
}

}  // namespace fa
