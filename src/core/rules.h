// The small rules that checks are made of. Each names the field, its value and what was expected.
#pragma once
#include "backend/backend.h"

// Leaves the enclosing function with the status of a rule that was broken.
#define FA_TRY(call)                                            \
    do {                                                        \
        if (const fa_status_t status_ = (call)) return status_; \
    } while (0)

namespace fa {

constexpr int64_t kMaxSize = INT32_MAX;  // of any one dimension: row and key numbers also travel in int32 arrays

static inline long long ll(int64_t value) { return value; }  // for %lld: int64_t is long here and long long elsewhere

static inline fa_status_t in_range(Message* message, const char* field, int64_t value, int64_t min, int64_t max) {
    if (value < min) return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected %lld or more", field, ll(value), ll(min));
    if (value > max) return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected %lld or less", field, ll(value), ll(max));
    return FA_OK;
}

// What an entry of an array may be, and the field that sets `max`, with its value; NULL: the entry's own sequence does.
struct Bounds {
    int64_t min, max;
    const char* by;
    int64_t by_value;
};
// One entry of an int32 array. Where the bounds leave no choice they are no range to tell of: a field of 0 that leaves no room was most
// likely never set, and is what the sentence names.
static inline fa_status_t entry_in_range(Message* message, const char* field, int64_t index, int64_t value, const Bounds& bounds) {
    if (value >= bounds.min && value <= bounds.max) return FA_OK;
    if (bounds.by && bounds.by_value == 0 && (value > bounds.max || bounds.min > bounds.max))
        return fail(message, FA_INVALID_ARGUMENT, "%s is 0: expected 1 or more, since %s[%lld] is %lld", bounds.by, field, ll(index),
                    ll(value));
    if (bounds.min < bounds.max)
        return fail(message, FA_INVALID_ARGUMENT, "%s[%lld] is %lld: expected %lld to %lld", field, ll(index), ll(value), ll(bounds.min),
                    ll(bounds.max));
    if (!bounds.by)
        return fail(message, FA_INVALID_ARGUMENT, "%s[%lld] is %lld: expected %lld, all that its sequence has", field, ll(index), ll(value),
                    ll(bounds.max));
    return fail(message, FA_INVALID_ARGUMENT, "%s[%lld] is %lld: expected %lld, since %s is %lld", field, ll(index), ll(value),
                ll(bounds.max), bounds.by, ll(bounds.by_value));
}

static inline unsigned long long llu(uint64_t value) { return value; }  // for %llu and %llx

static inline fa_status_t known_bits(Message* message, const char* field, uint64_t bits, uint64_t known) {
    if ((bits & ~known) == 0) return FA_OK;
    return fail(message, FA_UNSUPPORTED_FIELD, "%s is 0x%llx: bits 0x%llx are unknown, expected a part of 0x%llx", field, llu(bits),
                llu(bits & ~known), llu(known));
}

static inline fa_status_t known_value(Message* message, const char* field, int32_t value, int32_t last) {
    if (value >= 0 && value <= last) return FA_OK;
    return fail(message, FA_UNSUPPORTED_FIELD, "%s is %d: unknown, expected 0 to %d", field, value, last);
}

// "FA_OPERAND_LSE" for its bit.
const char* operand_name(uint64_t operand);

}  // namespace fa
