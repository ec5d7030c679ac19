// The interface of a kernel family: one way to compute a forward, or gradients. What it takes, its plan, its launch and its kernels lie
// behind it; families.h has the one ordered list of each, which the calls ask.
#pragma once
#include <new>
#include "gpu/common/row_params.h"
#include "gpu/host/refusal.h"

namespace fa {
namespace gpu {

// A plan's memory for one family's own parameters, as far as they follow from device and descriptor. The plan names its family, whose
// functions alone look in here: so the family is the tag. The largest parameters decide the size.
class FamilyParams {
  public:
    template <class Params>
    Params& emplace() {
        static_assert(sizeof(Params) <= sizeof memory_ && alignof(Params) <= kPlanAlignment, "the family's parameters are the largest yet");
        static_assert(__is_trivially_copyable(Params), "plans are plain data");
        return *new (memory_) Params();
    }
    template <class Params>
    const Params& get() const {
        return *reinterpret_cast<const Params*>(memory_);
    }

  private:
    alignas(kPlanAlignment) unsigned char memory_[2688];
};

// A kernel as the host knows it, for tests and tables.
struct KernelEntry {
    const char* name;   // all of it, or its family's
    int rows, columns;  // of a tile; columns of v, 0: the name says them
    int keys, threads, resident;
    int64_t shared_bytes;
    const void* kernel;  // one of its functions
};
using KernelVisitor = void (*)(void* user, const KernelEntry&);

struct ForwardFamily;

// What a family makes of a forward, from device and descriptor alone. A launch takes it as it is, and adds pointers.
struct FamilyPlan {
    const ForwardFamily* family;  // NULL: none takes the call
    const char* kernel;           // its name, which goes on with _ROWSxCOLUMNS where columns are given
    int rows, keys, columns;      // of a tile
    int64_t blocks;               // of the launch, which fa_explain names; 0: it does not
    bool splits_keys;             // does it cut keys into splits where that pays?
    SplitParams split;            // without pointers
    const char* merge;            // of splits, where the launch brings it along; NULL: one of merge.h follows
    int32_t merge_columns;        // of o, for each block of merge.h's kernels; 0: rows are many
    bool merge_follows;           // does the caller of the launch merge the splits, by these?
    SplitMemory split_memory;
    uint64_t workspace;     // bytes, and of those, from the first on, that must be 0 and will be 0 again
    uint64_t zeroed;        // at most kZeroedBytes
    bool widens;            // are k and v of 8 bits copied to q's type first?
    int32_t product_dtype;  // of products, where it is not q's type; 0: q's
    double limit;           // µs: the family gives way to one for any address that takes less; 0: to none
    FamilyParams params;
};
constexpr uint64_t kZeroedBytes = 256;  // of the memory that a handle has for calls without a workspace

// A forward that is being made.
struct ForwardCall {
    const Problem& problem;  // what was planned
    const fa_forward_args_t& args;
    char* memory;  // of the planned size
    bool zeroed;   // does it hold zeros where it must?
    rt::Stream stream;
};

struct ForwardFamily {
    const char* name;
    bool any_address;  // does it take tensors that do not all begin at multiples of 16 bytes?
    bool matrix;       // does it compute on matrix units?
    // False: the family does not take the call, and says why, if asked.
    bool (*plan)(const rt::Device&, const Problem&, FamilyPlan*, Refusal*);
    // µs that a call should take, of a family for any address; 0: it does not take it.
    double (*time)(const rt::Device&, const Problem&);
    fa_status_t (*launch)(const FamilyPlan&, const ForwardCall&, Message*);
    void (*kernels)(KernelVisitor, void* user);  // each kernel once
};

static inline fa_status_t device_failed(Message* message, rt::Status s, const char* what) {
    rt::clear_error();
    return fail(message, rt::out_of_memory(s) ? FA_OUT_OF_MEMORY : FA_DEVICE_ERROR, "%s: %s", what, rt::text(s));
}
static inline fa_status_t launched(Message* message, rt::Status s, const char* kernel) {
    return s == rt::kSuccess ? FA_OK : device_failed(message, s, kernel);
}

}  // namespace gpu
}  // namespace fa
