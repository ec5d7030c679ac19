// struct_size of every struct that a caller fills: too small, that of the first version, too large, a tail that is zero or not, and NULL in
// its place.
#include "core/check.h"
#include "rules.h"

namespace {

template <class T>
struct Longer {
    T known;
    unsigned char tail[24];
};

constexpr uint32_t kLargest = 4096;  // a larger size is taken for one that was never set

// `call` runs an operation with the struct at the given address, which is good but for its size and tail.
template <class T, class Run>
void check_sized(fa_handle_t h, const T& good, const char* name, const Run& run) {
    SCOPED_TRACE(name);
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
    check_sized(h, f.d, "fa_attention_desc_t", [&](const fa_attention_desc_t* d) { return fa_forward_ex(h, d, &f.a); });
    check_sized(h, f.d, "fa_attention_desc_t", [&](const fa_attention_desc_t* d) { return fa_supports(h, d, FA_OP_FORWARD); });
}

TEST(Sized, ForwardArgs) {
    Handle h;
    Forward f;
    padded(&f);
    check_sized(h, f.a, "fa_forward_args_t", [&](const fa_forward_args_t* a) { return fa_forward_ex(h, &f.d, a); });
}

TEST(Sized, BackwardArgs) {
    Handle h;
    Backward c;
    backward_padded(&c);
    const fa_backward_args_t full = c.args();
    check_sized(h, full, "fa_backward_args_t", [&](const fa_backward_args_t* a) { return fa_backward(h, &c.d, a); });
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
    check_sized(h, c.a, "fa_merge_args_t", [&](const fa_merge_args_t* a) { return fa_merge(h, &c.d, a); });
}

TEST(Sized, AppendArgs) {
    Handle h;
    Append c;
    append_paged(&c);
    check_sized(h, c.a, "fa_append_kv_args_t", [&](const fa_append_kv_args_t* a) { return fa_append_kv(h, &c.d, a); });
}

TEST(Sized, RotaryArgs) {
    Handle h;
    Rotary c;
    rotary_padded(&c);
    check_sized(h, c.a, "fa_rotary_args_t", [&](const fa_rotary_args_t* a) { return fa_rotary(h, &c.d, a); });
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
