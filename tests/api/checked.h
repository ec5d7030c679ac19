// The args of a good call, as what has imported them hands them to the checks.
#pragma once
#include "calls.h"
#include "core/check.h"

template <class Call>
auto args_of(const Call& call) {
    return call.a;
}
inline fa::CheckedBackward args_of(const Backward& call) { return {call.args(), {}}; }
