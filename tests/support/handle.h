// The one place where tests get a handle. FLASHATTN_TEST_BACKEND = cpu (default), cuda or hip chooses the backend; data is always
// in host memory, unless a test asks for a device handle.
#pragma once
#include <flashattn.h>
#include <string>
#include <utility>
#include <vector>

namespace test {

class Handle {
  public:
    explicit Handle(fa_handle_t handle) : handle_(handle) {}
    Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    ~Handle() { fa_destroy(handle_); }
    operator fa_handle_t() const { return handle_; }
    std::string error() const { return fa_last_error(handle_); }
    int64_t get(int32_t key) const;
    bool set(int32_t key, int64_t value) const { return fa_param_set(handle_, key, value) == FA_OK; }
    // So many threads, also of a machine with two CPUs: of the library's own pool no more would be at work than these.
    bool set_threads(int64_t n) const {
        return set(FA_PARAM_THREAD_POOL, n > 2 ? FA_POOL_OPENMP : FA_POOL_OWN) && set(FA_PARAM_THREADS, n);
    }

  private:
    fa_handle_t handle_;
};

int32_t backend_under_test();
inline bool testing_the_cpu() { return backend_under_test() == FA_BACKEND_CPU; }
Handle make_handle();
Handle make_handle(fa_create_info_t info);      // the backend and memory fields are filled in
Handle make_device_handle(int32_t device = 0);  // whose pointers are fa_malloc's, filled and read by fa_copy

// Instruction sets to test with: all that the backend knows, and those of them that this machine has. {0}: the backend's own choice.
std::vector<int32_t> isas_under_test();
const std::vector<int32_t>& usable_isas();
const char* isa_name(int32_t isa);

// The type that the backend rounds probabilities to before they meet v, which accuracy lines 1 and 2 depend on.
int32_t probability_dtype(fa_handle_t handle, const fa_attention_desc_t& desc);
// Does it sum 8-bit products in a matrix unit's short accumulator?
bool sums_short_products(fa_handle_t handle, const fa_attention_desc_t& desc);
// Does it then round P to 8 bits, too, and sum products over keys in that accumulator?
bool rounds_p_to_8_bits(fa_handle_t handle, const fa_attention_desc_t& desc);
// Does it round blocks of q and of P to 8 bits, as native precision permits?
bool rounds_to_bytes(fa_handle_t handle, const fa_attention_desc_t& desc);
// Does it round q, and values of block types, to bf16, as native precision permits? Where it rounds to 8 bits it may do so, too.
bool rounds_q_to_bf16(fa_handle_t handle, const fa_attention_desc_t& desc);

}  // namespace test
