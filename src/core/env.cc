#include "core/env.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "backend/isa.h"
#include "core/log.h"
#include "os/environment.h"
#include "os/path.h"

namespace fa {
namespace {

// Copies, because the program may change its environment while another thread reads it.
struct Variables {
    char backend_dir[os::kMaxPath];
    char log[16];
    char log_file[os::kMaxPath];
    char max_isa[16];
    char max_shared[16];
    bool forces_ptx;
    uint64_t openmp_stack_bytes;
} variables;

void copy(char* to, size_t size, const char* name) {
    const char* value = os::variable(name);
    snprintf(to, size, "%s", value == nullptr ? "" : value);  // no valid path or word is cut by this
}

// OpenMP runtimes end the process where they are refused a thread: to try beforehand, one must know how large a stack each is to have.
constexpr struct {
    const char* name;
    int unit;  // of a bare number: place in "BKMG"
} kStackVariables[] = {{"OMP_STACKSIZE", 1}, {"GOMP_STACKSIZE", 1}, {"KMP_STACKSIZE", 0}};

uint64_t openmp_stack_bytes() {
    uint64_t most = 0;
    for (const auto& variable : kStackVariables) {
        const char* value = os::variable(variable.name);
        if (value == nullptr) continue;
        char* end;
        const uint64_t number = strtoull(value, &end, 10);
        end += strspn(end, " ");
        constexpr char kUnits[] = "BKMG";
        const char* unit = *end == 0 ? &kUnits[variable.unit] : strchr(kUnits, toupper(static_cast<unsigned char>(*end)));
        if (unit == nullptr) continue;
        const int shift = 10 * int(unit - kUnits);
        const uint64_t bytes = number << shift;
        if (bytes >> shift == number && bytes > most) most = bytes;
    }
    return most;
}

void read_all() {
    copy(variables.backend_dir, sizeof variables.backend_dir, "FLASHATTN_BACKEND_DIR");
    copy(variables.log, sizeof variables.log, "FLASHATTN_LOG");
    copy(variables.log_file, sizeof variables.log_file, "FLASHATTN_LOG_FILE");
    copy(variables.max_isa, sizeof variables.max_isa, "FLASHATTN_MAX_ISA");
    copy(variables.max_shared, sizeof variables.max_shared, "FLASHATTN_MAX_SHARED");
    const char* const forces_ptx = os::variable("CUDA_FORCE_PTX_JIT");
    variables.forces_ptx = forces_ptx != nullptr && atoi(forces_ptx) != 0;
    variables.openmp_stack_bytes = openmp_stack_bytes();
}

template <size_t N>
bool look_up(const Word (&words)[N], const char* text, int32_t* value) {
    if (text[0] == 0) return true;
    for (const Word& w : words)
        if (strcmp(w.text, text) == 0) {
            *value = w.value;
            return true;
        }
    return false;
}

fa_status_t no_such_isa(Message* message) {
    char expected[128] = "";
    for (const Word& w : kIsaWords) {
        const size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s%s", used ? ", " : "", w.text);
    }
    return fail(message, FA_INVALID_ARGUMENT, "FLASHATTN_MAX_ISA is \"%s\": expected one of %s", variables.max_isa, expected);
}

fa_status_t read_max_shared(uint64_t* bytes, Message* message) {
    constexpr uint64_t kLeast = 64;  // KB, which every GPU has that there are kernels for
    const char* const text = variables.max_shared;
    if (text[0] == 0) return FA_OK;
    const size_t end = strspn(text, "0123456789");
    const uint64_t kb = strtoull(text, nullptr, 10);
    if (text[end] != 0 || kb < kLeast)
        return fail(message, FA_INVALID_ARGUMENT, "FLASHATTN_MAX_SHARED is \"%s\": expected a number of KB, %d or more", text, int(kLeast));
    return *bytes = kb << 10, FA_OK;
}

}  // namespace

fa_status_t environment(Environment* out, Message* message) {
    os::once(read_all);
    *out = {};
    if (variables.backend_dir[0] != 0) out->backend_dir = variables.backend_dir;
    if (variables.log_file[0] != 0) out->log_file = variables.log_file;
    if (!look_up(kLogWords, variables.log, &out->log_level)) out->wrong_log = variables.log;
    out->forces_ptx = variables.forces_ptx;
    out->openmp_stack_bytes = variables.openmp_stack_bytes;
    if (!look_up(kIsaWords, variables.max_isa, &out->max_isa)) return no_such_isa(message);
    return read_max_shared(&out->max_shared_bytes, message);
}

}  // namespace fa
