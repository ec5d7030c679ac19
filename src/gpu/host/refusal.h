// Why a kernel family does not take a call: a clause that names a field of the descriptor, its value, and what was expected or that the
// family does not implement it. fa_explain prints the clauses; a plan asks for none and passes NULL, so that it writes no text.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "backend/problem.h"

namespace fa {
namespace gpu {

struct Refusal {
    char text[224];
    bool final;  // would every other family say the same?
};

// False, so that a condition reads `return refuse(refusal, …)`.
__attribute__((format(printf, 2, 3))) static inline bool refuse(Refusal* refusal, const char* format, ...) {
    if (!refusal) return false;
    va_list list;
    va_start(list, format);
    vsnprintf(refusal->text, sizeof refusal->text, format, list);
    va_end(list);
    return false;
}

static inline const char* dtype_name(int32_t dtype) {
    switch (dtype) {
#define FA_DTYPE(value, name, elements, bytes, holds) \
    case value: return name;
#include "backend/dtypes.def"
        default: return "unset";
    }
}

// What `format` prints of a field, by its type.
namespace refusal {
static inline bool unlisted(Refusal* refusal, const char* field, int32_t value) {
    const size_t length = strlen(field);
    if (length > 6 && strcmp(field + length - 6, "_dtype") == 0)
        return refuse(refusal, "%s is %s, which it does not implement here", field, dtype_name(value));
    return refuse(refusal, "%s is %d, which it does not implement", field, value);
}
static inline bool unlisted(Refusal* refusal, const char* field, int64_t value) {
    return refuse(refusal, "%s is %lld, which it does not implement", field, (long long)value);
}
static inline bool unlisted(Refusal* refusal, const char* field, float value) {
    return refuse(refusal, "%s is %g, which it does not implement", field, double(value));
}
static inline bool unlisted(Refusal* refusal, const char* field, const int64_t (&value)[2]) {
    return refuse(refusal, "%s is %lld x %lld, which it does not implement", field, (long long)value[0], (long long)value[1]);
}
static inline bool unlisted(Refusal* refusal, const char* field, const int64_t (&value)[4]) {
    return refuse(refusal, "%s is (%lld, %lld, %lld, %lld), which it does not implement", field, (long long)value[0], (long long)value[1],
                  (long long)value[2], (long long)value[3]);
}
}  // namespace refusal

// Is all that the call has on the family's list? If not, the first that is missing there: an operand, a flag, or a field with its value.
static inline bool implements(const Problem& problem, const Implements& list, Refusal* refusal) {
    if (problem.within(list)) return true;
    if (!refusal) return false;
    const fa_attention_desc_t& d = problem.d;
    const uint64_t operands = d.operands & ~(list.operands | FA_OPERAND_DEVICE_STATUS), options = problem.options & ~list.options;
#define FA_OPERAND(name, field) \
    if (operands & FA_OPERAND_##name) return refuse(refusal, "operands has FA_OPERAND_" #name ", which it does not implement");
#include "backend/operands.def"
#define FA_FLAG(name) \
    if (options & FA_##name) return refuse(refusal, "flags has FA_" #name ", which it does not implement");
#include "backend/flags.def"
#define FA_FIELD(field)
#define FA_OPTION(field, used) \
    if (options & option::field) return refusal::unlisted(refusal, #field, d.field);
#include "backend/options.def"
    return refuse(refusal, "flags is %#x, of which it does not implement all", unsigned(d.flags));
}

}  // namespace gpu
}  // namespace fa
