// The handle under bad input: every field of the create info, every null pointer, what a message says and how long it lives.
#include <string.h>
#include "workload.h"

namespace hardening {
namespace {

fa_status_t create_with(void (*change)(fa_create_info_t&)) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    change(info);
    fa_handle_t handle = reinterpret_cast<fa_handle_t>(&info);
    const fa_status_t status = fa_create(&handle, &info);
    EXPECT_EQ(handle, nullptr) << fa_last_error(nullptr);
    return status;
}

TEST(Create, RefusesBadFields) {
    const struct {
        void (*change)(fa_create_info_t&);
        fa_status_t status;
        const char* sentence;
    } rows[] = {
        {[](fa_create_info_t& info) { info.struct_size = 0; }, FA_INVALID_ARGUMENT, "struct_size of fa_create_info_t is 0"},
        {[](fa_create_info_t& info) { info.struct_size -= 1; }, FA_INVALID_ARGUMENT, "struct_size of fa_create_info_t is 71"},
        {[](fa_create_info_t& info) { info.flags = 4; }, FA_UNSUPPORTED_FIELD, "info.flags is 0x4: expected 0"},
        {[](fa_create_info_t& info) { info.backend = 4; }, FA_UNSUPPORTED_FIELD, "info.backend is 4: expected an FA_BACKEND_ value"},
        {[](fa_create_info_t& info) { info.backend = -1; }, FA_UNSUPPORTED_FIELD, "info.backend is -1"},
        {[](fa_create_info_t& info) { info.memory = 3; }, FA_UNSUPPORTED_FIELD, "info.memory is 3: expected an FA_MEMORY_ value"},
        {[](fa_create_info_t& info) { info.memory = -1; }, FA_UNSUPPORTED_FIELD, "info.memory is -1"},
        {[](fa_create_info_t& info) { info.log_level = 4; }, FA_UNSUPPORTED_FIELD, "info.log_level is 4: expected an FA_LOG_ value"},
        {[](fa_create_info_t& info) { info.log_level = -1; }, FA_UNSUPPORTED_FIELD, "info.log_level is -1"},
        {[](fa_create_info_t& info) { info.device = -1; }, FA_INVALID_ARGUMENT, "info.device is -1: expected 0 or more"},
        {[](fa_create_info_t& info) { info.device = 1, info.backend = FA_BACKEND_CPU; }, FA_NO_DEVICE, "device is 1"},
        {[](fa_create_info_t& info) { info.stream = &info; }, FA_INVALID_ARGUMENT, "expected NULL with FA_BACKEND_AUTO"},
        {[](fa_create_info_t& info) { info.stream = &info, info.backend = FA_BACKEND_CPU; }, FA_INVALID_ARGUMENT, "stream is 0x"},
        {[](fa_create_info_t& info) { info.backend_dir = "here"; }, FA_INVALID_ARGUMENT,
         "info.backend_dir is \"here\": expected an absolute"},
    };
    for (const auto& row : rows) {
        EXPECT_EQ(create_with(row.change), row.status) << row.sentence;
        EXPECT_TRUE(holds(fa_last_error(nullptr), row.sentence));
    }
    EXPECT_EQ(fa_create(nullptr, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(nullptr), "handle is NULL"));
}

TEST(Create, SuccessEmptiesTheThreadsMessage) {
    EXPECT_EQ(fa_create(nullptr, nullptr), FA_INVALID_ARGUMENT);
    const fa_handle_t handle = make_handle();
    EXPECT_STREQ(fa_last_error(nullptr), "");
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    EXPECT_EQ(fa_destroy(nullptr), FA_OK);
}

TEST(Handle, NullIsInvalidEverywhere) {
    Workload w(Op::forward);
    int64_t value;
    uint64_t bytes;
    void* memory;
    const float x[1] = {0};
    float o[1];
    const fa_status_t statuses[] = {fa_param_get(nullptr, FA_INFO_BACKEND, &value),
                                    fa_param_set(nullptr, FA_PARAM_THREADS, 1),
                                    fa_param_get(nullptr, FA_PARAM_THREADS, &value),
                                    fa_malloc(nullptr, 1, &memory),
                                    fa_free(nullptr, nullptr),
                                    fa_copy(nullptr, o, x, 4),
                                    fa_synchronize(nullptr),
                                    fa_supports(nullptr, &w.desc, FA_OP_FORWARD),
                                    fa_explain(nullptr, &w.desc, FA_OP_FORWARD, nullptr, 0),
                                    fa_workspace_size(nullptr, &w.desc, FA_OP_FORWARD, &bytes),
                                    fa_forward(nullptr, &w.desc, x, x, x, o),
                                    w.run(nullptr),
                                    Workload(Op::merge).run(nullptr),
                                    Workload(Op::rotary).run(nullptr),
                                    Workload(Op::append_kv).run(nullptr)};
    for (const fa_status_t status : statuses) EXPECT_EQ(status, FA_INVALID_ARGUMENT);
    EXPECT_STREQ(fa_last_error(nullptr), "handle is NULL: expected one from fa_create");
}

class OnHandle : public ::testing::Test {
  protected:
    ~OnHandle() override { EXPECT_EQ(fa_destroy(handle), FA_OK); }
    const fa_handle_t handle = make_handle();
};

TEST_F(OnHandle, NullResultsAreInvalid) {
    const Workload w(Op::forward);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(handle), "value is NULL: expected where to write backend"));
    EXPECT_EQ(fa_param_get(handle, FA_PARAM_THREADS, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(handle), "value is NULL: expected where to write threads"));
    EXPECT_EQ(fa_workspace_size(handle, &w.desc, FA_OP_FORWARD, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(handle), "bytes is NULL"));
    EXPECT_EQ(fa_malloc(handle, 1, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(handle), "pointer is NULL"));
    EXPECT_EQ(fa_supports(handle, nullptr, FA_OP_FORWARD), FA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa_last_error(handle)), "");
    EXPECT_EQ(fa_forward_ex(handle, &w.desc, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa_last_error(handle)), "");
}

TEST_F(OnHandle, MessageLivesUntilTheNextCall) {
    Workload w(Op::forward);
    w.desc.dim_qk = -3;
    EXPECT_EQ(w.run(handle), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(handle), "dim_qk is -3"));
    EXPECT_TRUE(holds(fa_last_error(handle), "dim_qk is -3")) << "asking does not clear it";
    w.desc.dim_qk = 16;
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_STREQ(fa_last_error(handle), "");
    EXPECT_EQ(w.result(), reference(Op::forward));
}

TEST_F(OnHandle, PlainForwardTakesNoOperands) {
    Workload w(Op::forward);
    std::vector<float> x(8 * 2 * 16, 1.f), o(5 * 2 * 16, -1.f);
    w.desc.operands = FA_OPERAND_LSE;
    EXPECT_EQ(fa_forward(handle, &w.desc, x.data(), x.data(), x.data(), o.data()), FA_INVALID_ARGUMENT);
    EXPECT_STREQ(fa_last_error(handle), "desc.operands is 0x1: expected 0, since fa_forward takes only q, k, v and o; use fa_forward_ex");
    EXPECT_EQ(o, std::vector<float>(o.size(), -1.f));
    w.desc.operands = 0;
    EXPECT_EQ(fa_forward(handle, &w.desc, x.data(), x.data(), x.data(), o.data()), FA_OK) << fa_last_error(handle);
    for (const float value : o) EXPECT_NEAR(value, 1.f, 1e-6f);
}

TEST_F(OnHandle, ExplainWritesTheReasonAlsoWhereItIsNotEntered) {
    char text[256];
    memset(text, 'x', sizeof text);
    EXPECT_EQ(fa_explain(nullptr, nullptr, FA_OP_FORWARD, text, sizeof text), FA_INVALID_ARGUMENT);
    EXPECT_STREQ(text, "handle is NULL: expected one from fa_create");
    EXPECT_EQ(fa_explain(nullptr, nullptr, FA_OP_FORWARD, text, 7), FA_INVALID_ARGUMENT);
    EXPECT_STREQ(text, "handle");
    EXPECT_EQ(fa_explain(nullptr, nullptr, FA_OP_FORWARD, nullptr, 7), FA_INVALID_ARGUMENT);
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    memset(text, 'x', sizeof text);
    EXPECT_EQ(fa_backend_supports(99, 0, &d, FA_OP_FORWARD, text, sizeof text), FA_UNSUPPORTED_FIELD);
    EXPECT_NE(std::string(text).find("backend is 99"), std::string::npos) << text;
    for (const int32_t op : {0, 99}) {
        memset(text, 'x', sizeof text);
        EXPECT_EQ(fa_explain(handle, &d, op, text, sizeof text), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(text).find("op is "), 0u) << text;
    }
}

TEST_F(OnHandle, ExplainCutsItsText) {
    const Workload w(Op::forward);
    char whole[512], part[512];
    ASSERT_EQ(fa_explain(handle, &w.desc, FA_OP_FORWARD, whole, sizeof whole), FA_OK);
    EXPECT_TRUE(holds(whole, "cpu, device 0: kernel cpu_"));
    for (size_t n = 0; n <= strlen(whole) + 1; n++) {
        memset(part, '#', sizeof part);
        ASSERT_EQ(fa_explain(handle, &w.desc, FA_OP_FORWARD, part, n), FA_OK);
        EXPECT_EQ(part[n], '#');
        EXPECT_EQ(std::string(part, n > 0 ? strlen(part) : 0), std::string(whole).substr(0, n > 0 ? n - 1 : 0));
    }
    ASSERT_EQ(fa_explain(handle, nullptr, 0, whole, sizeof whole), FA_OK);
    EXPECT_EQ(std::string(whole).find("backend cpu, device 0 "), 0u) << whole;
    for (size_t n = 1; n <= strlen(whole) + 1; n++) {
        memset(part, '#', sizeof part);
        ASSERT_EQ(fa_explain(handle, nullptr, 0, part, n), FA_OK);
        EXPECT_EQ(part[n], '#');
        EXPECT_EQ(std::string(part), std::string(whole).substr(0, n - 1));
    }
}

TEST_F(OnHandle, MemoryFunctions) {
    void* memory = &memory;
    EXPECT_EQ(fa_malloc(handle, 0, &memory), FA_OK);
    EXPECT_EQ(memory, nullptr);
    EXPECT_EQ(fa_free(handle, nullptr), FA_OK);
    for (const uint64_t bytes : {1, 255, 4096}) {
        ASSERT_EQ(fa_malloc(handle, bytes, &memory), FA_OK);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
        memset(memory, 1, bytes);
        EXPECT_EQ(fa_free(handle, memory), FA_OK);
    }
    const char from[3] = {1, 2, 3};
    char to[3] = {};
    EXPECT_EQ(fa_copy(handle, to, from, 3), FA_OK);
    EXPECT_EQ(to[2], 3);
    EXPECT_EQ(fa_copy(handle, nullptr, nullptr, 0), FA_OK);
    EXPECT_EQ(fa_copy(handle, nullptr, from, 3), FA_INVALID_ARGUMENT);
    EXPECT_STREQ(fa_last_error(handle), "to is NULL: expected 3 bytes");
    EXPECT_EQ(fa_copy(handle, to, nullptr, 3), FA_INVALID_ARGUMENT);
    EXPECT_STREQ(fa_last_error(handle), "from is NULL: expected 3 bytes");
    EXPECT_EQ(fa_synchronize(handle), FA_OK);
}

TEST(Device, CpuIsDescribed) {
    int32_t count = 0;
    EXPECT_EQ(fa_device_count(FA_BACKEND_CPU, &count), FA_OK);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(fa_device_count(FA_BACKEND_CPU, nullptr), FA_INVALID_ARGUMENT);
    fa_device_info_t info;
    memset(&info, 0xa5, sizeof info);
    info.struct_size = sizeof info;
    ASSERT_EQ(fa_device_info(FA_BACKEND_CPU, 0, &info), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(info.struct_size, sizeof info);
    EXPECT_EQ(info.backend, FA_BACKEND_CPU);
    EXPECT_EQ(info.device, 0);
    EXPECT_GE(info.compute_units, 1);
    EXPECT_GT(info.memory_bytes, 1u << 20);
    EXPECT_NE(strlen(info.name), 0u);
    EXPECT_NE(strlen(info.arch), 0u);
}

TEST(Device, BadQuestions) {
    int32_t count = 9;
    for (const int32_t backend : {0, -1, 4}) {
        EXPECT_EQ(fa_device_count(backend, &count), FA_INVALID_ARGUMENT);
        EXPECT_EQ(count, 0);
        EXPECT_TRUE(holds(fa_last_error(nullptr), "backend is " + std::to_string(backend)));
        char text[20];
        EXPECT_EQ(fa_backend_status(backend, text, sizeof text), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(text), std::string(fa_last_error(nullptr)).substr(0, 19));
    }
    fa_device_info_t info;
    info.struct_size = sizeof info;
    EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, 0, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, -1, &info), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, 1, &info), FA_NO_DEVICE);
    info.struct_size = sizeof info - 1;
    EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, 0, &info), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(nullptr), "struct_size of fa_device_info_t is 215: expected 216 to 4096"));
}

TEST(Status, NamesOfAllAndOfNone) {
    EXPECT_STREQ(fa_status_name(FA_OK), "FA_OK");
    EXPECT_STREQ(fa_status_name(FA_WORKSPACE_TOO_SMALL), "FA_WORKSPACE_TOO_SMALL");
    EXPECT_STREQ(fa_status_name(FA_INTERNAL), "FA_INTERNAL");
    int named = 0;
    for (int32_t status = -10; status < 1000; status++) named += std::string(fa_status_name(status)) != "unknown status";
    EXPECT_EQ(named, 15);
}

}  // namespace
}  // namespace hardening
