#include "trial.h"

namespace tool {

Outcome attempt(const Kernel& kernel, const fa_attention_desc_t& desc, int32_t op, const std::function<fa_status_t(fa_handle_t)>& call,
                const std::function<void(Outcome&)>& judge) {
    Outcome outcome;
    fa_status_t status = fa_supports(kernel.handle, &desc, op);
    outcome.supported = status != FA_UNSUPPORTED || kernel.cpu;
    if (status == FA_OK) status = call(kernel.handle);
    if (status == FA_OK) judge(outcome);
    else outcome.fault = fa_last_error(kernel.handle);
    return outcome;
}

}  // namespace tool
