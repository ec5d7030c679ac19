// The methods. Of each: what it cannot do, its buffers, which are allocated before ranks agree to begin, and the bytes that it
// sends; then the work, in which a status other than FA_OK means that the transport failed. What the core refuses is in
// job->computed, while the exchange goes on, so that no peer waits in vain.
#pragma once
#include "cp/job.h"

namespace fa {
namespace cp {

struct Work {
    fa_status_t (*prepare)(Job*);
    fa_status_t (*run)(Job*);
    int64_t (*bytes)(const Job&);    // that this rank sends
    int64_t (*minimum)(const Job&);  // that it would have to if each receiver got each byte that it needs once, and from its owner
};
extern const Work kUlyssesBackward, kAllGatherBackward, kRingBackward;

struct Method {
    int32_t id;  // FA_CP_METHOD_…
    const char* name;
    fa_status_t (*check)(const Job&, Message*);
    Work forward;
    const Work* backward;  // NULL: none
    const Work& of(int32_t op) const { return op == FA_OP_BACKWARD ? *backward : forward; }
};

extern const Method kUlysses, kAllGather, kRingAttention, kMergeMethod;

// By spread.method, or for FA_CP_METHOD_AUTO the one that is predicted to be done first; NULL with a status and sentence where none can.
const Method* find_method(const Job& job, Message* message, fa_status_t* status);
double predicted_seconds(const Job& job, const Method& method);  // of the call; 0: it has no prediction

// A share of a buffer, aligned for any tensor.
class Shares {
  public:
    explicit Shares(void* base) : base_(static_cast<char*>(base)) {}
    char* take(int64_t bytes) {
        char* at = base_ ? base_ + used_ : nullptr;
        used_ += (bytes + 63) / 64 * 64;
        return at;
    }
    int64_t used() const { return used_; }

  private:
    char* base_;
    int64_t used_ = 0;
};

}  // namespace cp
}  // namespace fa
