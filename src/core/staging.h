// Host memory on a GPU handle: every region that a call touches is copied to the device, the call runs there, and what it may have
// written comes back.
#pragma once
#include "core/check.h"
#include "core/handle.h"

namespace fa {

// Byte offsets of the first and the last of neighbouring pointers in an args struct; {0, 0}: none.
struct PointerRange {
    uint64_t first, last;
};

struct Staging {
    fa_handle_s& handle;
    Regions regions;  // merged: no two share a byte

    Staging(fa_handle_s& h, const Regions& given);
    fa_status_t copy_in();
    // Turns the pointers of an args struct into the copies' addresses, NULL for a tensor without elements.
    void redirect(void* args, const PointerRange& range) const;
    // Brings back the regions that hold outputs.
    fa_status_t copy_out();
};

void release_staging(fa_handle_s& handle);

}  // namespace fa
