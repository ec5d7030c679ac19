#include "core/call.h"
#include <string.h>

namespace fa {

constexpr int64_t kWorkspaceAlignment = 256;

fa_status_t Call::add(Role r, const Tensor& t) {
    FA_TRY(check_fits(t, message));
    if (regions->asked) {
        if (strcmp(t.name, regions->asked) == 0) regions->extent = span(t);
        return FA_OK;
    }
    if (!t.base) return FA_OK;
    const uint64_t address = reinterpret_cast<uintptr_t>(t.base), bytes = span(t);
    if (address % uint64_t(t.alignment()) != 0) {
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p: expected an address that is a multiple of its alignment, %d", t.name, t.base,
                    t.alignment());
    }
    if (address + bytes < address) {
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p and reaches over %llu bytes: expected an end within the address space", t.name,
                    t.base, static_cast<unsigned long long>(bytes));
    }
    tensor[count] = t;
    role[count++] = r;
    return FA_OK;
}

fa_status_t Call::perhaps(Role r, const Tensor& tensor) {
    FA_TRY(add(r, tensor));
    if (regions->asked) return FA_OK;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.base);
    const uint64_t bytes = begin ? span(tensor) : 0;
    if (bytes > 0) regions->region[regions->count++] = {begin, begin + bytes, r == Role::output, nullptr};
    return FA_OK;
}

fa_status_t Call::always(Role r, const Tensor& tensor) {
    if (!regions->asked && !tensor.base && !tensor.empty())
        return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer", tensor.name);
    return perhaps(r, tensor);
}

fa_status_t Call::given(uint64_t operand, Role r, const Tensor& tensor) {
    const bool set = problem.has(operand);
    if (regions->asked) return set ? add(r, tensor) : FA_OK;
    if (!set && tensor.base) {
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p: expected NULL without %s", tensor.name, tensor.base, operand_name(operand));
    }
    if (set && !tensor.base && !tensor.empty()) {
        return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer with %s", tensor.name, operand_name(operand));
    }
    return perhaps(r, tensor);
}

fa_status_t Call::common(uint32_t flags, uint32_t known_flags, const void* stream, const void* workspace, uint64_t workspace_size) {
    if (regions->asked) return FA_OK;
    FA_TRY(known_bits(message, "flags", flags, known_flags));
    if (stream && !(flags & FA_ARGS_STREAM)) {
        return fail(message, FA_INVALID_ARGUMENT, "stream is %p: expected NULL without FA_ARGS_STREAM", stream);
    }
    if ((workspace != nullptr) != (workspace_size != 0)) {
        return fail(message, FA_INVALID_ARGUMENT, "workspace is %p and workspace_size is %llu: expected both or neither", workspace,
                    static_cast<unsigned long long>(workspace_size));
    }
    if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
        return fail(message, FA_INVALID_ARGUMENT, "workspace is %p: expected a multiple of %lld", workspace, ll(kWorkspaceAlignment));
    }
    if (workspace_size > INT64_MAX) {
        return fail(message, FA_INVALID_ARGUMENT, "workspace_size is %llu: expected %lld or less",
                    static_cast<unsigned long long>(workspace_size), ll(INT64_MAX));
    }
    return add(Role::output, array_of("workspace", workspace, 1, int64_t(workspace_size)));
}

fa_status_t Call::outputs_apart() {
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            if (role[i] == Role::input && role[j] == Role::input) continue;
            if (!overlap(tensor[i], tensor[j])) continue;
            const int out = role[j] == Role::output ? j : i, other = out == j ? i : j;
            return fail(message, FA_INVALID_ARGUMENT, "%s is %p and shares elements with %s at %p: expected an output with separate memory",
                        tensor[out].name, tensor[out].base, tensor[other].name, tensor[other].base);
        }
    }
    return FA_OK;
}

}  // namespace fa
