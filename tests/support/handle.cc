#include "support/handle.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace test {
int64_t Handle::get(int32_t key) const {
    int64_t value = -1;
    return fa_param_get(handle_, key, &value) == FA_OK ? value : -1;
}

int32_t backend_under_test() {
    const char* name = getenv("FLASHATTN_TEST_BACKEND");
    if (!name || strcmp(name, "cpu") == 0) return FA_BACKEND_CPU;
    if (strcmp(name, "cuda") == 0) return FA_BACKEND_CUDA;
    if (strcmp(name, "hip") == 0) return FA_BACKEND_HIP;
    fprintf(stderr, "FLASHATTN_TEST_BACKEND is \"%s\", expected cpu, cuda or hip\n", name);
    exit(2);
}

Handle make_handle() { return make_handle(FA_CREATE_INFO_INIT); }

static Handle make(fa_create_info_t info, int32_t memory) {
    info.backend = backend_under_test();
    info.memory = memory;
    fa_handle_t handle;
    if (fa_create(&handle, &info) == FA_OK) return Handle(handle);
    fprintf(stderr, "no handle: %s\n", fa_last_error(nullptr));
    exit(2);
}

Handle make_handle(fa_create_info_t info) { return make(info, FA_MEMORY_HOST); }
Handle make_device_handle(int32_t device) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.device = device;
    return make(info, FA_MEMORY_DEVICE);
}

std::vector<int32_t> isas_under_test() {
    if (!testing_the_cpu()) return {0};
    std::vector<int32_t> all;
    for (int32_t isa = 0; isa < 256; isa++)
        if (fa_isa_name(isa)) all.push_back(isa);
    return all;
}

const std::vector<int32_t>& usable_isas() {
    static const std::vector<int32_t> usable = [] {
        std::vector<int32_t> found;
        const Handle handle = make_handle();
        for (const int32_t isa : isas_under_test())
            if (isa == 0 || handle.set(FA_PARAM_MAX_ISA, isa)) found.push_back(isa);
        return found;
    }();
    return usable;
}

const char* isa_name(int32_t isa) {
    const char* const name = fa_isa_name(isa);
    return name ? name : "default";
}

int32_t probability_dtype(fa_handle_t handle, const fa_attention_desc_t& desc) {
    if (rounds_q_to_bf16(handle, desc)) return FA_BF16;
    char text[256] = "";
    if (!testing_the_cpu()) {
        const bool f16 = fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK && strstr(text, "products of f16");
        return f16 || (sums_short_products(handle, desc) && !rounds_p_to_8_bits(handle, desc)) ? int32_t(FA_F16) : desc.q_dtype;
    }
    const bool known = fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK;
    return known && (strstr(text, "cpu_flash_matrix") || strstr(text, "decode_matrix")) ? desc.q_dtype : int32_t(FA_F32);
}

bool rounds_q_to_bf16(fa_handle_t handle, const fa_attention_desc_t& desc) {
    char text[256] = "";
    return desc.precision == FA_PRECISION_NATIVE && fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK &&
           (strstr(text, "products of bf16") || strstr(text, "products of 8 bits"));
}

bool rounds_to_bytes(fa_handle_t handle, const fa_attention_desc_t& desc) {
    char text[256] = "";
    return desc.precision == FA_PRECISION_NATIVE && fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK &&
           strstr(text, "products of 8 bits");
}

bool rounds_p_to_8_bits(fa_handle_t handle, const fa_attention_desc_t& desc) {
    char text[256] = "";
    return sums_short_products(handle, desc) && fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK && strstr(text, "_p8");
}

bool sums_short_products(fa_handle_t handle, const fa_attention_desc_t& desc) {
    char text[256] = "";
    return (desc.q_dtype == FA_E4M3 || desc.q_dtype == FA_E5M2) && fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) == FA_OK &&
           strstr(text, "fwd_sm90");
}

}  // namespace test
