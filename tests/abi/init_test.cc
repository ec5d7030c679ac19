// Sized structs: the macro and the function agree, and sizes of other versions are met.
#include "core/check.h"
#include <gtest/gtest.h>
#include <string.h>
#include <vector>

namespace {

template <class T>
struct Struct {
    const char* name;
    T macro;
    fa_status_t (*init)(T*, uint32_t);
};

template <class T>
void expect_same_bytes(const Struct<T>& s) {
    SCOPED_TRACE(s.name);
    T object;
    memset(&object, 0xa5, sizeof object);
    EXPECT_EQ(s.init(&object, sizeof object), FA_OK);
    EXPECT_EQ(memcmp(&object, &s.macro, sizeof object), 0);
    EXPECT_EQ(object.struct_size, sizeof object);
}

// The size is the caller's, whose struct may be longer or shorter than the library's.
template <class T>
void expect_callers_size(const Struct<T>& s) {
    SCOPED_TRACE(s.name);
    for (const uint32_t size : {fa::Sized<T>::kFirst + 0, uint32_t(sizeof(T)), uint32_t(sizeof(T) + 64), 4096u}) {
        std::vector<uint64_t> memory(size / 8 + 1, UINT64_MAX);
        EXPECT_EQ(s.init(reinterpret_cast<T*>(memory.data()), size), FA_OK);
        const uint32_t first[2] = {size, 0};
        EXPECT_EQ(memcmp(memory.data(), first, sizeof first), 0);
        for (uint32_t i = 1; i < size / 8; i++) EXPECT_EQ(memory[i], 0u);
        EXPECT_EQ(memory[size / 8], UINT64_MAX);
    }
}

template <class T>
void expect_refusals(const Struct<T>& s) {
    SCOPED_TRACE(s.name);
    T object;
    memset(&object, 0xa5, sizeof object);
    const T before = object;
    EXPECT_EQ(s.init(nullptr, sizeof object), FA_INVALID_ARGUMENT);
    EXPECT_NE(strstr(fa_last_error(nullptr), "is NULL"), nullptr);
    for (const uint32_t size : {0u, 1u, 8u, fa::Sized<T>::kFirst - 1, 4097u, 0x80000000u, 0xffffffffu}) {
        EXPECT_EQ(s.init(&object, size), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(fa_last_error(nullptr)).find("struct_size of " + std::string(s.name) + " is " + std::to_string(size)), 0u)
            << fa_last_error(nullptr);
    }
    EXPECT_EQ(memcmp(&object, &before, sizeof object), 0);
}

template <class Check>
void for_each_struct(const Check& check) {
    check(Struct<fa_create_info_t>{"fa_create_info_t", FA_CREATE_INFO_INIT, fa_create_info_init});
    check(Struct<fa_attention_desc_t>{"fa_attention_desc_t", FA_ATTENTION_DESC_INIT, fa_attention_desc_init});
    check(Struct<fa_forward_args_t>{"fa_forward_args_t", FA_FORWARD_ARGS_INIT, fa_forward_args_init});
    check(Struct<fa_backward_args_t>{"fa_backward_args_t", FA_BACKWARD_ARGS_INIT, fa_backward_args_init});
    check(Struct<fa_merge_args_t>{"fa_merge_args_t", FA_MERGE_ARGS_INIT, fa_merge_args_init});
    check(Struct<fa_rotary_args_t>{"fa_rotary_args_t", FA_ROTARY_ARGS_INIT, fa_rotary_args_init});
    check(Struct<fa_append_kv_args_t>{"fa_append_kv_args_t", FA_APPEND_KV_ARGS_INIT, fa_append_kv_args_init});
}

TEST(Init, FunctionEqualsMacro) {
    for_each_struct([](const auto& s) { expect_same_bytes(s); });
}
TEST(Init, ZeroesTheCallersSize) {
    for_each_struct([](const auto& s) { expect_callers_size(s); });
}
TEST(Init, RefusesNullAndOtherSizes) {
    for_each_struct([](const auto& s) { expect_refusals(s); });
}

// A struct of a program that is newer than the library.
struct NewerInfo {
    fa_create_info_t known;
    uint64_t later;
};

TEST(NewerCaller, ZeroTailIsAccepted) {
    NewerInfo info{FA_CREATE_INFO_INIT, 0};
    info.known.struct_size = sizeof info;
    info.known.backend = FA_BACKEND_CPU;
    fa_handle_t handle;
    ASSERT_EQ(fa_create(&handle, &info.known), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(NewerCaller, UnknownFieldInUseIsUnsupported) {
    NewerInfo info{FA_CREATE_INFO_INIT, 1};
    info.known.struct_size = sizeof info;
    fa_handle_t handle;
    EXPECT_EQ(fa_create(&handle, &info.known), FA_UNSUPPORTED_FIELD);
    EXPECT_EQ(handle, nullptr);
}

TEST(DeviceInfo, RefusesOtherSizes) {
    std::vector<unsigned char> memory(8192, 0xa5), before = memory;
    auto* const info = reinterpret_cast<fa_device_info_t*>(memory.data());
    for (const uint32_t size : {0u, 1u, 8u, uint32_t(sizeof *info) - 1, 4097u, 0x40000000u, 0xffffffffu}) {
        info->struct_size = size;
        memcpy(before.data(), &size, sizeof size);
        EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, 0, info), FA_INVALID_ARGUMENT);
        EXPECT_EQ(memory, before) << size;
    }
}

TEST(NewerCaller, DeviceInfoIsFilledToItsEnd) {
    struct {
        fa_device_info_t known;
        uint64_t later, beyond;
    } info;
    memset(&info, 0xa5, sizeof info);
    info.known.struct_size = sizeof info - 8;
    ASSERT_EQ(fa_device_info(FA_BACKEND_CPU, 0, &info.known), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(info.known.struct_size, sizeof info - 8);
    EXPECT_EQ(info.later, 0u);
    EXPECT_EQ(info.beyond, 0xa5a5a5a5a5a5a5a5u);
}

}  // namespace
