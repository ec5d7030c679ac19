// fa_convert and fa_copy_async: each field of a conversion, and what else a call is given.
#include <functional>
#include "rules.h"

namespace {

struct Conversion {
    float x[64] = {}, out[64];
    fa_conversion_t list[2];
    int64_t count = 2;
    uint32_t flags = 0;
    void* stream = nullptr;

    Conversion() {
        for (float& value : out) value = 7.f;
        for (int i = 0; i < 2; i++) list[i] = {x + 32 * i, out + 32 * i, {1, 2, 4, 4}, {0, 16, 4, 1}, {0, 16, 4, 1}, FA_F32, FA_F32, 0};
    }
};

struct Row {
    fa_status_t status;
    const char* says;
    std::function<void(Conversion&)> spoil;
};

TEST(Convert, NamesTheFieldItsValueAndWhatWasExpected) {
    constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;
    const Row rows[] = {
        {F, "flags is 0x2:", [](Conversion& conversion) { conversion.flags = 2; }},
        {I, "stream is 0x10: expected NULL without FA_ARGS_STREAM",
         [](Conversion& conversion) { conversion.stream = reinterpret_cast<void*>(16); }},
        {I, "count is -1:", [](Conversion& conversion) { conversion.count = -1; }},
        {F, "list[1].flags is 0x2:", [](Conversion& conversion) { conversion.list[1].flags = 2; }},
        {F, "list[1].x_dtype is 9:", [](Conversion& conversion) { conversion.list[1].x_dtype = 9; }},
        {F, "list[0].out_dtype is 0:", [](Conversion& conversion) { conversion.list[0].out_dtype = 0; }},
        {I, "list[1].out_dtype is bit:", [](Conversion& conversion) { conversion.list[1].out_dtype = FA_BIT; }},
        {U, "list[1].x_dtype is f32 and out_dtype is e4m3:", [](Conversion& conversion) { conversion.list[1].out_dtype = FA_E4M3; }},
        {I, "list[1].out_dtype is f16: expected FA_F32 with",
         [](Conversion& conversion) { conversion.list[1].out_dtype = FA_F16, conversion.list[1].flags = FA_CONVERT_ACCUMULATE; }},
        {U, "list[1].x_dtype is i8: expected f32, f16 or bf16 with",
         [](Conversion& conversion) { conversion.list[1].x_dtype = FA_I8, conversion.list[1].flags = FA_CONVERT_ACCUMULATE; }},
        {I, "list[1].size[0] is -1:", [](Conversion& conversion) { conversion.list[1].size[0] = -1; }},
        {I, "list[1].size[3] is 2147483648:", [](Conversion& conversion) { conversion.list[1].size[3] = int64_t(1) << 31; }},
        {I, "list[1].size[3] is 4: expected a multiple of 32 for q8_0",
         [](Conversion& conversion) { conversion.list[1].x_dtype = conversion.list[1].out_dtype = FA_Q8_0; }},
        {I, "list[1].x_stride[1] is -1:", [](Conversion& conversion) { conversion.list[1].x_stride[1] = -1; }},
        {U, "list[1].out_stride[3] is 2:", [](Conversion& conversion) { conversion.list[1].out_stride[3] = 2; }},
        {I, "list[1].out_stride is {0, 16, 2, 1}:", [](Conversion& conversion) { conversion.list[1].out_stride[2] = 2; }},
        {I, "list[1].out is 1048576 x 1048576 x 1048576 x 4 elements with out_stride:",
         [](Conversion& conversion) {
             for (int i = 0; i < 3; i++) conversion.list[1].size[i] = 1 << 20, conversion.list[1].out_stride[i] = INT64_MAX / 4;
         }},
        {I, "list[1].out is NULL: expected a pointer", [](Conversion& conversion) { conversion.list[1].out = nullptr; }},
        {I, "list[1].x is 0x3: expected an address that is a multiple of its alignment, 4",
         [](Conversion& conversion) { conversion.list[1].x = reinterpret_cast<void*>(3); }},
        {I, "list[1].out is 0xfffffffffffffff0 and reaches over",
         [](Conversion& conversion) { conversion.list[1].out = reinterpret_cast<void*>(~uintptr_t(15)); }},
        {I, "list[1].out is ", [](Conversion& conversion) { conversion.list[1].x = conversion.out + 60; }},
    };
    const Handle handle;
    for (const Row& row : rows) {
        SCOPED_TRACE(row.says);
        Conversion c;
        row.spoil(c);
        EXPECT_EQ(row.status, fa_convert(handle, c.list, c.count, c.flags, c.stream));
        EXPECT_EQ(0u, std::string(fa_last_error(handle)).find(row.says)) << fa_last_error(handle);
        for (const float value : c.out) EXPECT_EQ(7.f, value);
    }
    Conversion good;
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_convert(handle, nullptr, 1, 0, nullptr));
    EXPECT_STREQ("list is NULL: expected 1 conversions", fa_last_error(handle));
    EXPECT_EQ(FA_OK, fa_convert(handle, nullptr, 0, 0, nullptr));
    EXPECT_EQ(FA_OK, fa_convert(handle, good.list, 2, 0, nullptr)) << fa_last_error(handle);
    for (const float value : good.out) EXPECT_EQ(0.f, value);
}

TEST(Convert, CopiesAsFaCopyDoes) {
    const Handle handle;
    float x = 3.f, out = 0.f;
    EXPECT_EQ(FA_UNSUPPORTED_FIELD, fa_copy_async(handle, &out, &x, 4, 2, nullptr));
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_copy_async(handle, &out, &x, 4, 0, &x));
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_copy_async(handle, nullptr, &x, 4, 0, nullptr));
    EXPECT_STREQ("to is NULL: expected 4 bytes", fa_last_error(handle));
    EXPECT_EQ(0.f, out);
    EXPECT_EQ(FA_OK, fa_copy_async(handle, nullptr, nullptr, 0, 0, nullptr));
    EXPECT_EQ(FA_OK, fa_copy_async(handle, &out, &x, 4, FA_ARGS_STREAM, nullptr)) << fa_last_error(handle);
    EXPECT_EQ(3.f, out);
    int64_t stream = -1;
    EXPECT_EQ(FA_OK, fa_param_get(handle, FA_INFO_STREAM, &stream));
    EXPECT_EQ(0, stream);
}

}  // namespace
