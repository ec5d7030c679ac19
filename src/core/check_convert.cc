#include <string.h>
#include "core/check.h"
#include "core/dtype.h"
#include "core/overlap.h"
#include "core/rules.h"

namespace fa {
namespace {

bool converts(int32_t dtype) { return dtype == FA_F32 || dtype == FA_F16 || dtype == FA_BF16; }

fa_status_t check_types(const fa_conversion_t& conversion, Message* message) {
    const struct {
        const char* field;
        int32_t dtype;
        bool read;
    } types[] = {{"x_dtype", conversion.x_dtype, conversion.x != nullptr}, {"out_dtype", conversion.out_dtype, true}};
    for (const auto& t : types) {
        if (!t.read) continue;
        if (!find_dtype(t.dtype))
            return fail(message, FA_UNSUPPORTED_FIELD, "%s is %d: unknown, expected a type that fa_dtype_name knows", t.field, t.dtype);
        if (t.dtype == FA_BIT)
            return fail(message, FA_INVALID_ARGUMENT, "%s is bit: expected a type with whole bytes per element", t.field);
    }
    if (conversion.flags & FA_CONVERT_ACCUMULATE) {
        if (conversion.out_dtype != FA_F32)
            return fail(message, FA_INVALID_ARGUMENT, "out_dtype is %s: expected FA_F32 with FA_CONVERT_ACCUMULATE",
                        fa_dtype_name(conversion.out_dtype));
        if (conversion.x && !converts(conversion.x_dtype))
            return fail(message, FA_UNSUPPORTED, "x_dtype is %s: expected f32, f16 or bf16 with FA_CONVERT_ACCUMULATE",
                        fa_dtype_name(conversion.x_dtype));
    } else if (conversion.x && conversion.x_dtype != conversion.out_dtype &&
               !(converts(conversion.x_dtype) && converts(conversion.out_dtype))) {
        return fail(message, FA_UNSUPPORTED, "x_dtype is %s and out_dtype is %s: expected equal types, or two of f32, f16 and bf16",
                    fa_dtype_name(conversion.x_dtype), fa_dtype_name(conversion.out_dtype));
    }
    return FA_OK;
}

Tensor tensor_of(const char* name, const void* base, int32_t dtype, const fa_conversion_t& conversion, const int64_t* stride) {
    return {name,
            base,
            element_size(dtype),
            4,
            kNoDim,
            false,
            {conversion.size[0], conversion.size[1], conversion.size[2], conversion.size[3] / unit_elements(dtype)},
            {stride[0], stride[1], stride[2], stride[3]}};
}

fa_status_t check_tensor(const Tensor& tensor, Message* message) {
    FA_TRY(check_strides(tensor, true, message));
    if (tensor.empty()) return FA_OK;
    const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.base);
    if (!tensor.base) return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer", tensor.name);
    if (address % uint64_t(tensor.alignment()) != 0)
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p: expected an address that is a multiple of its alignment, %d", tensor.name,
                    tensor.base, tensor.alignment());
    if (address + span(tensor) < address)
        return fail(message, FA_INVALID_ARGUMENT, "%s is %p and reaches over %llu bytes: expected an end within the address space",
                    tensor.name, tensor.base, llu(span(tensor)));
    return FA_OK;
}

fa_status_t check_conversion(const fa_conversion_t& conversion, Message* message) {
    FA_TRY(known_bits(message, "flags", conversion.flags, FA_CONVERT_ACCUMULATE));
    FA_TRY(check_types(conversion, message));
    static constexpr const char* kSize[] = {"size[0]", "size[1]", "size[2]", "size[3]"};
    for (int i = 0; i < 4; i++) FA_TRY(in_range(message, kSize[i], conversion.size[i], 0, kMaxSize));
    const int64_t unit = unit_elements(conversion.out_dtype);
    if (conversion.size[3] % unit != 0)
        return fail(message, FA_INVALID_ARGUMENT, "size[3] is %lld: expected a multiple of %lld for %s", ll(conversion.size[3]), ll(unit),
                    fa_dtype_name(conversion.out_dtype));
    const Tensor out = tensor_of("out", conversion.out, conversion.out_dtype, conversion, conversion.out_stride);
    FA_TRY(check_tensor(out, message));
    FA_TRY(check_distinct(out, message));
    if (!conversion.x) return FA_OK;
    const Tensor x = tensor_of("x", conversion.x, conversion.x_dtype, conversion, conversion.x_stride);
    FA_TRY(check_tensor(x, message));
    if (!overlap(out, x)) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "out is %p and shares elements with x at %p: expected an output with separate memory",
                conversion.out, conversion.x);
}

}  // namespace

fa_status_t check_convert(const fa_conversion_t* list, int64_t count, Message* message) {
    FA_TRY(in_range(message, "count", count, 0, kMaxSize));
    if (!list && count > 0) return fail(message, FA_INVALID_ARGUMENT, "list is NULL: expected %lld conversions", ll(count));
    for (int64_t i = 0; i < count; i++) {
        Message which;
        const fa_status_t status = check_conversion(list[i], &which);
        if (status != FA_OK) return fail(message, status, "list[%lld].%.*s", ll(i), int(sizeof which.text - 32), which.text);
    }
    return FA_OK;
}

}  // namespace fa
