// struct_size of every struct that a caller fills: too small, that of the first version, too large, a tail that is zero or not, and NULL in
// its place; and that nothing of a struct is read but what its size says is there.
#include "../support/at_the_end.h"
#include "core/check.h"
#include "rules.h"

namespace {

template <class T>
struct Longer {
    T known;
    unsigned char tail[24];
};

constexpr uint32_t kLargest = 4096;  // a larger size is taken for one that was never set

// An entry point looks at struct_size first, and at no byte behind it: to read one ends this process.
template <class T, class Run>
void check_reads_no_further(fa_handle_t h, const T& good, const char* name, const Run& run) {
    SCOPED_TRACE(name);
    constexpr uint32_t first = fa::Sized<T>::kFirst;
    for (const uint32_t size : {4u, 8u, 12u, first - 4}) {
        const AtTheEnd small(&good, size);
        EXPECT_EQ(run(reinterpret_cast<T*>(small.get(size))), FA_INVALID_ARGUMENT);
        EXPECT_NE(std::string(fa_last_error(h)).find("struct_size of " + std::string(name)), std::string::npos) << fa_last_error(h);
    }
    const AtTheEnd whole(&good, first);
    EXPECT_EQ(run(reinterpret_cast<T*>(whole.get(first))), FA_OK) << fa_last_error(h);
}

// `call` runs an operation with the struct at the given address, which is good but for its size and tail.
template <class T, class Run>
void check_sized(fa_handle_t h, const T& good, const char* name, const Run& run) {
    SCOPED_TRACE(name);
    check_reads_no_further(h, good, name, run);
    const auto refused = [&](const T* s, fa_status_t status, const std::string& says) {
        EXPECT_EQ(run(s), status);
        EXPECT_NE(std::string(fa_last_error(h)).find(says), std::string::npos) << fa_last_error(h);
        EXPECT_NE(std::string(fa_last_error(h)).find(name), std::string::npos) << fa_last_error(h);
    };
    refused(nullptr, FA_INVALID_ARGUMENT, "is NULL");

    constexpr uint32_t first = fa::Sized<T>::kFirst;
    T sized = good;
    for (const uint32_t size : {0u, 4u, first - 1, kLargest + 1, 0xffffffffu}) {
        sized.struct_size = size;
        refused(&sized, FA_INVALID_ARGUMENT, "is " + std::to_string(size) + ":");
    }
    sized.struct_size = first;
    EXPECT_EQ(run(&sized), FA_OK) << fa_last_error(h);

    Longer<T> longer{good, {}};
    longer.known.struct_size = sizeof longer;
    EXPECT_EQ(run(&longer.known), FA_OK) << fa_last_error(h);
    longer.tail[17] = 3;
    refused(&longer.known, FA_UNSUPPORTED_FIELD, "byte " + std::to_string(sizeof(T) + 17) + " is 3");
    std::vector<unsigned char> largest(kLargest);
    memcpy(largest.data(), &good, sizeof good);
    memcpy(largest.data(), &kLargest, sizeof kLargest);
    EXPECT_EQ(run(reinterpret_cast<T*>(largest.data())), FA_OK) << fa_last_error(h);
    longer.known.struct_size = sizeof(T);  // bytes beyond the size are not ours to read
    EXPECT_EQ(run(&longer.known), FA_OK) << fa_last_error(h);
}

}  // namespace

TEST(Sized, Descriptor) {
    Handle h;
    Forward f;
    plain(&f);
    check_sized(h, f.d, "fa_attention_desc_t", [&](const fa_attention_desc_t* desc) { return fa_forward_ex(h, desc, &f.a); });
    check_sized(h, f.d, "fa_attention_desc_t", [&](const fa_attention_desc_t* desc) { return fa_supports(h, desc, FA_OP_FORWARD); });
}

TEST(Sized, ForwardArgs) {
    Handle h;
    Forward f;
    padded(&f);
    check_sized(h, f.a, "fa_forward_args_t", [&](const fa_forward_args_t* args) { return fa_forward_ex(h, &f.d, args); });
}

TEST(Sized, BackwardArgs) {
    Handle h;
    Backward c;
    backward_padded(&c);
    const fa_backward_args_t full = c.args();
    check_sized(h, full, "fa_backward_args_t", [&](const fa_backward_args_t* args) { return fa_backward(h, &c.d, args); });
    check_sized(h, c.a.f, "fa_forward_args_t", [&](const fa_forward_args_t* f) {
        fa_backward_args_t a = full;
        a.forward = f;
        return fa_backward(h, &c.d, &a);
    });
}

TEST(Sized, MergeArgs) {
    Handle h;
    Merge c;
    merge_padded(&c);
    check_sized(h, c.a, "fa_merge_args_t", [&](const fa_merge_args_t* args) { return fa_merge(h, &c.d, args); });
}

TEST(Sized, AppendArgs) {
    Handle h;
    Append c;
    append_paged(&c);
    check_sized(h, c.a, "fa_append_kv_args_t", [&](const fa_append_kv_args_t* args) { return fa_append_kv(h, &c.d, args); });
}

TEST(Sized, RotaryArgs) {
    Handle h;
    for (const auto good : {rotary_padded, rotary_of_k}) {
        Rotary c;
        good(&c);
        check_sized(h, c.a, "fa_rotary_args_t", [&](const fa_rotary_args_t* args) { return fa_rotary(h, &c.d, args); });
    }
}

// fa_extent of some pointer, with either struct at the end of memory.
template <class T, class Call>
void check_extent(const char* name, const Call& c, const T& args, uint32_t field, int32_t op) {
    uint64_t bytes = 0;
    check_sized(nullptr, args, name, [&](const T* a) { return fa_extent(&c.d, op, a, field, &bytes); });
    check_sized(nullptr, c.d, "fa_attention_desc_t",
                [&](const fa_attention_desc_t* desc) { return fa_extent(desc, op, &args, field, &bytes); });
}

TEST(Sized, Extent) {
    Forward f;
    Backward b;
    Merge m;
    Append p;
    Rotary r, k;
    padded(&f), backward_padded(&b), merge_padded(&m), append_paged(&p), rotary_padded(&r), rotary_of_k(&k);
    check_extent("fa_forward_args_t", f, f.a, offsetof(fa_forward_args_t, q), FA_OP_FORWARD);
    check_extent("fa_backward_args_t", b, b.args(), offsetof(fa_backward_args_t, dq), FA_OP_BACKWARD);
    check_extent("fa_merge_args_t", m, m.a, offsetof(fa_merge_args_t, o), FA_OP_MERGE);
    check_extent("fa_append_kv_args_t", p, p.a, offsetof(fa_append_kv_args_t, k), FA_OP_APPEND_KV);
    check_extent("fa_rotary_args_t", r, r.a, offsetof(fa_rotary_args_t, x), FA_OP_ROTARY);
    check_extent("fa_rotary_args_t", k, k.a, offsetof(fa_rotary_args_t, x), FA_OP_ROTARY);
}

// Every other entry point that takes a descriptor.
TEST(Sized, DescriptorOfEveryCall) {
    Handle h;
    Forward f, plain_f;
    Backward b;
    Merge m;
    Append p;
    Rotary r, k;
    padded(&f), plain(&plain_f), backward_padded(&b), merge_padded(&m), append_paged(&p), rotary_padded(&r), rotary_of_k(&k);
    const fa_backward_args_t full = b.args();
    const auto check = [&](const fa_attention_desc_t& good, const std::function<fa_status_t(const fa_attention_desc_t*)>& run) {
        check_reads_no_further(h, good, "fa_attention_desc_t", run);
    };
    check(plain_f.d,
          [&](const fa_attention_desc_t* desc) { return fa_forward(h, desc, plain_f.a.q, plain_f.a.k, plain_f.a.v, plain_f.a.o); });
    check(f.d, [&](const fa_attention_desc_t* desc) { return fa_forward_ex(h, desc, &f.a); });
    check(b.d, [&](const fa_attention_desc_t* desc) { return fa_backward(h, desc, &full); });
    check(m.d, [&](const fa_attention_desc_t* desc) { return fa_merge(h, desc, &m.a); });
    check(p.d, [&](const fa_attention_desc_t* desc) { return fa_append_kv(h, desc, &p.a); });
    check(r.d, [&](const fa_attention_desc_t* desc) { return fa_rotary(h, desc, &r.a); });
    check(k.d, [&](const fa_attention_desc_t* desc) { return fa_rotary(h, desc, &k.a); });
    check(f.d, [&](const fa_attention_desc_t* desc) { return fa_supports(h, desc, FA_OP_FORWARD); });
    check(f.d, [&](const fa_attention_desc_t* desc) { return fa_explain(h, desc, FA_OP_FORWARD, nullptr, 0); });
    uint64_t bytes = 0;
    check(f.d, [&](const fa_attention_desc_t* desc) { return fa_workspace_size(h, desc, FA_OP_FORWARD, &bytes); });
    check_reads_no_further(nullptr, f.d, "fa_attention_desc_t", [&](const fa_attention_desc_t* desc) {
        return fa_backend_supports(FA_BACKEND_CPU, 0, desc, FA_OP_FORWARD, nullptr, 0);
    });
}

TEST(Sized, CreateAndDeviceInfo) {
    const fa_create_info_t info = FA_CREATE_INFO_INIT;
    check_reads_no_further(nullptr, info, "fa_create_info_t", [](const fa_create_info_t* info) {
        fa_handle_t made = nullptr;
        const fa_status_t status = fa_create(&made, info);
        fa_destroy(made);
        return status;
    });
    const fa_device_info_t device = {};
    check_reads_no_further(nullptr, device, "fa_device_info_t",
                           [](fa_device_info_t* info) { return fa_device_info(FA_BACKEND_CPU, 0, info); });
    EXPECT_EQ(fa_device_info(FA_BACKEND_CPU, 0, nullptr), FA_INVALID_ARGUMENT);
}

// A struct may lie at any address: bindings pack them into byte buffers.
TEST(Sized, AnyAddressServes) {
    Handle h;
    Forward f;
    plain(&f);
    std::vector<char> bytes(sizeof f.d + sizeof f.a + 2);
    memcpy(bytes.data() + 1, &f.d, sizeof f.d);
    memcpy(bytes.data() + 1 + sizeof f.d, &f.a, sizeof f.a);
    const void* d = bytes.data() + 1;
    const void* a = bytes.data() + 1 + sizeof f.d;
    EXPECT_EQ(fa_forward_ex(h, static_cast<const fa_attention_desc_t*>(d), static_cast<const fa_forward_args_t*>(a)), FA_OK)
        << fa_last_error(h);
}
