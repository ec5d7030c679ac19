// The public header with C++ manners: a handle that frees itself, and a failed call that throws its sentence.
#pragma once
#include <flashattn.h>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tool {

// One sentence for the user. main prints it after "flashattn: " and exits with 1.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The command line itself is wrong: exit status 2.
struct UsageError : Error {
    using Error::Error;
};

template <class... Parts>
std::string text_of(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Error(text_of(parts...));
}
template <class... Parts>
[[noreturn]] void misuse(const Parts&... parts) {
    throw UsageError(text_of(parts...));
}

std::string version_text(int32_t version);  // as fa_version has it

// A word from a file, fit to be shown: quoted, short, and without bytes that a terminal would act on.
std::string shown(std::string word);

class Handle {
  public:
    explicit Handle(int32_t backend, int32_t memory = FA_MEMORY_HOST);
    ~Handle() { fa_destroy(handle_); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;

    operator fa_handle_t() const { return handle_; }
    void check(fa_status_t status) const;  // throws the handle's last error unless FA_OK
    void set(int32_t key, int64_t value) { check(fa_param_set(handle_, key, value)); }
    int64_t get(int32_t key) const;
    int32_t backend() const;
    std::string explain(const fa_attention_desc_t* desc, int32_t op = FA_OP_FORWARD) const;

  private:
    fa_handle_t handle_ = nullptr;
};

// Memory of a handle's device, of which a copy is kept on neither side.
class DeviceMemory {
  public:
    DeviceMemory(Handle& handle, uint64_t bytes) : handle_(handle) { handle.check(fa_malloc(handle, bytes, &pointer_)); }
    ~DeviceMemory() { fa_free(handle_, pointer_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    void* get() const { return pointer_; }

  private:
    Handle& handle_;
    void* pointer_ = nullptr;
};

struct Named {
    const char* name;
    int32_t value;
};
extern const std::vector<Named> kBackends, kDtypes, kBlockTypes, kAlgorithms, kPrecisions, kAlignments, kIsas;

std::vector<Named> cache_types();  // of k and v: kDtypes and kBlockTypes

// How a cache stores values: a type, and factors of their own for `dims` dims of a token and head (0: all of them), with shifts or without.
struct CacheScheme {
    const char* name;
    int32_t dtype, factor_dtype;  // 0: no factors but those that blocks have
    int64_t dims;
    bool shifted;
};
const CacheScheme& cache_scheme(const std::string& name);
std::vector<std::string> cache_scheme_names();

int32_t value_of(const std::vector<Named>& names, const std::string& name);
std::string name_of(const std::vector<Named>& names, int32_t value);
std::vector<std::string> names_of(const std::vector<Named>& names);

// The backends that work on this machine, CPU first.
std::vector<int32_t> usable_backends();

// The instruction sets that this CPU has, lowest first.
std::vector<int32_t> usable_isas();

}  // namespace tool
