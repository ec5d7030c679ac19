// Host memory on a GPU handle: every region that a call touches is copied to the device, the call runs there, and what it may have
// written comes back.
#pragma once
#include "core/check.h"
#include "core/handle.h"
#include "core/pointers.h"

namespace fa {

struct Staging {
    fa_handle_s& handle;
    Regions regions;  // merged: no two share a byte

    Staging(fa_handle_s& handle, const Regions& given);
    fa_status_t copy_in();
    // Turns the pointers of an args struct into the copies' addresses, NULL for a tensor without elements.
    template <class Args>
    void redirect(Args* args) const {
        redirect(args, pointers_of<Args>());
    }
    void redirect(CheckedBackward* args) const {
        redirect<fa_backward_args_t>(args);
        redirect(&args->inputs);
    }
    // Brings back the regions that hold outputs.
    fa_status_t copy_out();

  private:
    void redirect(void* args, const Pointers& pointers) const;
};

void release_staging(fa_handle_s& handle);

}  // namespace fa
