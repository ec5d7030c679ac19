// The object behind fa_cp_t, and what all of its files use.
#pragma once
#include <flashattn_cp.h>
#include <atomic>
#include "core/check.h"
#include "core/rules.h"
#include "cp/cost.h"

namespace fa {
namespace cp {

// Buffers that an object keeps between calls, by what is in them.
enum Slot {
    // In host memory.
    kHello,     // what ranks say of themselves, at the beginning and at the end of a call
    kMessages,  // of the group that is being put together
    kArrays,    // int32 arrays of a call that lie in device memory
    kOffsets,   // causal offsets of a piece
    kCounts,    // keys of each sequence, here and on all ranks
    kBegun,     // which rows of the ring have a partial result
    // Where tensors are.
    kDeviceOffsets,  // kOffsets, where that is elsewhere
    kSend,
    kReceive,
    kKeys,     // keys and values of several ranks, in order
    kLocal,    // f32 o and LSE of this rank's rows; of a backward dq, and sums of this rank's dk and dv
    kPartial,  // the same of one piece; of a backward dk and dv of other ranks' keys
    kGradientSend,
    kGradientReceive,
    kSinks,  // dsinks: this rank's share, and all ranks'
    kSlots,
    kFirstOfTensors = kDeviceOffsets
};

struct Slab {
    char* data;
    uint64_t bytes;
};

}  // namespace cp

template <>
struct Sized<fa_cp_transport_t> {
    static constexpr char kName[] = "fa_cp_transport_t";
    static constexpr uint32_t kFirst = 56;
};
template <>
struct Sized<fa_cp_create_info_t> {
    static constexpr char kName[] = "fa_cp_create_info_t";
    static constexpr uint32_t kFirst = 24;
};
template <>
struct Sized<fa_cp_desc_t> {
    static constexpr char kName[] = "fa_cp_desc_t";
    static constexpr uint32_t kFirst = 32;
};
static_assert(sizeof(fa_cp_transport_t) == 88 && sizeof(fa_cp_create_info_t) == 48 && sizeof(fa_cp_desc_t) == 32,
              "they grow at their ends");
static_assert(sizeof(fa_cp_message_t) == 32 && sizeof(fa_cp_range_t) == 32, "elements of arrays never change");

}  // namespace fa

struct fa_cp_s {
    fa_handle_t handle;
    fa_cp_transport_t transport;
    int64_t timeout_ms;
    fa::cp::Machine machine;
    std::atomic<int> busy;  // a call is inside
    bool failed;            // the transport has: nobody knows any more which message comes next
    bool device;            // FA_CP_DEVICE_MEMORY
    bool entered;           // the transport has a call's stream
    uint64_t groups;        // started so far: the same number on every rank, hence their messages' tags
    uint64_t bytes_sent, messages_sent;
    fa::cp::Slab slab[fa::cp::kSlots];
    fa::Message message;
};

namespace fa {
namespace cp {

// At least so many bytes, aligned to 64, whose contents are lost when it grows.
fa_status_t grow(fa_cp_s* cp, Slot slot, uint64_t bytes);

// Waits for what calls have ordered on the device. A failure is the transport's, and final.
fa_status_t synchronize(fa_cp_s* cp);

// The calling thread's message, for functions without an object.
Message* thread_message();

}  // namespace cp
}  // namespace fa
