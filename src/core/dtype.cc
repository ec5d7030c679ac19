#include "core/dtype.h"
#include <string.h>
#include "core/handle.h"

namespace fa {
namespace {

constexpr uint32_t kFloat = kQuery | kKeys | kOutput | kTail | kFactor | kBias, kSmallFloat = kQuery | kKeys | kOutput;

constexpr Dtype kDtypes[] = {
#define FA_DTYPE(value, name, elements, bytes, holds) {value, name, elements, bytes, holds},
#include "backend/dtypes.def"
};

// "f32, f16, bf16": the types that hold this.
void list_types(Holds holds, char* text, size_t n) {
    text[0] = 0;
    for (const Dtype& t : kDtypes) {
        if (!(t.holds & holds)) continue;
        const size_t used = strlen(text);
        snprintf(text + used, n - used, "%s%s", used ? ", " : "", t.name);
    }
}

}  // namespace

const Dtype* find_dtype(int32_t value) {
    for (const Dtype& t : kDtypes)
        if (t.value == value) return &t;
    return nullptr;
}

int32_t element_size(int32_t dtype) {
    const Dtype* t = find_dtype(dtype);
    return t ? t->bytes : 1;
}

int32_t unit_elements(int32_t dtype) {
    const Dtype* t = find_dtype(dtype);
    return t ? t->elements : 1;
}

fa_status_t check_dtype(const char* field, int32_t value, Holds holds, Message* message) {
    const Dtype* t = find_dtype(value);
    if (value == 0 || (t && t->holds & holds)) return FA_OK;
    if (!t) return fail(message, FA_UNSUPPORTED_FIELD, "%s is %d: unknown, expected a type that fa_dtype_name knows", field, value);
    char types[160];
    list_types(holds, types, sizeof types);
    return fail(message, FA_INVALID_ARGUMENT, "%s is %s: expected one of %s", field, t->name, types);
}

}  // namespace fa

const char* fa_dtype_name(int32_t dtype) {
    const fa::Dtype* t = fa::find_dtype(dtype);
    return t ? t->name : nullptr;
}

fa_status_t fa_dtype_unit(int32_t dtype, int64_t* elements, int64_t* bytes) {
    const fa::Dtype* t = fa::find_dtype(dtype);
    if (!t)
        return fail(fa::thread_message(), FA_UNSUPPORTED_FIELD, "dtype is %d: unknown, expected a type that fa_dtype_name knows", dtype);
    if (elements) *elements = t->elements;
    if (bytes) *bytes = t->bytes;
    return FA_OK;
}
