// Tests that run once for each instruction set.
#pragma once
#include <gtest/gtest.h>
#include "support/handle.h"

// Goes on with the instruction set, or skips the test and says why. To be used in the body of a test.
#define FA_USE_ISA(handle, isa)                                                                          \
    do {                                                                                                 \
        const fa_status_t isa_status = (isa) == 0 ? FA_OK : fa_param_set(handle, FA_PARAM_MAX_ISA, isa); \
        if (isa_status == FA_UNSUPPORTED) GTEST_SKIP() << (handle).error();                              \
        ASSERT_EQ(isa_status, FA_OK) << (handle).error();                                                \
    } while (0)
