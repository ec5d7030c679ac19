// Small calls of every kind on fixed data, and the bytes that they give.
#pragma once
#include <flashattn.h>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <vector>

namespace hardening {

enum class Op { forward, split_forward, standard, merge, append_kv, rotary };
constexpr Op kEveryOp[] = {Op::forward, Op::split_forward, Op::standard, Op::merge, Op::append_kv, Op::rotary};
const char* name_of(Op op);
inline void PrintTo(Op op, std::ostream* out) { *out << name_of(op); }

// Buffers, descriptor and args of one call, ready to run as often as wanted.
class Workload {
  public:
    // rows: of the forward; from a few hundred on it is worth a team of threads.
    explicit Workload(Op op, int64_t rows = 5);
    Workload(const Workload&) = delete;

    fa_status_t run(fa_handle_t handle);     // outputs start from the same bytes each time
    void use_workspace(fa_handle_t handle);  // of fa_workspace_size bytes, from here on
    int32_t op() const;                      // FA_OP_…
    const std::vector<float>& result() const { return out_; }
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;

  private:
    Op kind_;
    std::vector<float> q_, k_, v_, out_, start_, lse_;
    std::vector<char> workspace_;
    void* aligned_ = nullptr;
    uint64_t bytes_ = 0;
};

// A CPU handle; info's other fields may be set by `change`.
template <class Change>
fa_handle_t make_handle(const Change& change) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    change(info);
    fa_handle_t handle;
    EXPECT_EQ(fa_create(&handle, &info), FA_OK) << fa_last_error(nullptr);
    return handle;
}
inline fa_handle_t make_handle() {
    return make_handle([](fa_create_info_t&) {});
}

// Result of the call on a fresh handle with one thread.
std::vector<float> reference(Op op, int64_t rows = 5);

inline ::testing::AssertionResult holds(const std::string& text, const std::string& part) {
    if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

}  // namespace hardening
