#include "core/staging.h"

namespace fa {
namespace {

constexpr uint64_t kAlignment = 256;

uint64_t place_after(uint64_t offset, uint64_t bytes) { return offset + (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Regions that overlap or touch become one: two outputs may be slices of one tensor, and each must come back once.
void merge_regions(Regions* regions) {
    for (int i = 1; i < regions->count; i++) {
        const Region moved = regions->region[i];
        int j = i;
        for (; j > 0 && regions->region[j - 1].begin > moved.begin; j--) regions->region[j] = regions->region[j - 1];
        regions->region[j] = moved;
    }
    int last = -1;
    for (int i = 0; i < regions->count; i++) {
        const Region& next = regions->region[i];
        if (last >= 0 && next.begin <= regions->region[last].end) {
            Region& grown = regions->region[last];
            if (next.end > grown.end) grown.end = next.end;
            grown.output |= next.output;
        } else {
            regions->region[++last] = next;
        }
    }
    regions->count = last + 1;
}

}  // namespace

Staging::Staging(fa_handle_s& h, const Regions& given) : handle(h), regions(given) { merge_regions(&regions); }

fa_status_t Staging::copy_in() {
    uint64_t bytes = 0;
    for (int i = 0; i < regions.count; i++) bytes = place_after(bytes, regions.region[i].end - regions.region[i].begin);
    if (bytes > handle.staging_bytes) {
        release_staging(handle);
        const fa_status_t status = handle.backend->allocate(handle.context, bytes, &handle.staging, &handle.message);
        if (status != FA_OK) return status;
        handle.staging_bytes = bytes;
    }
    uint64_t offset = 0;
    for (int i = 0; i < regions.count; i++) {
        Region& r = regions.region[i];
        r.device = static_cast<char*>(handle.staging) + offset;
        offset = place_after(offset, r.end - r.begin);
        const fa_status_t status =
            handle.backend->copy(handle.context, r.device, reinterpret_cast<void*>(r.begin), r.end - r.begin, &handle.message);
        if (status != FA_OK) return status;
    }
    return FA_OK;
}

void Staging::redirect(void* args, const Pointers& pointers) const {
    for (const Pointer& pointer : pointers) {
        void** const field = reinterpret_cast<void**>(static_cast<char*>(args) + pointer.offset);
        const uintptr_t at = reinterpret_cast<uintptr_t>(*field);
        *field = nullptr;  // what lies in no region has no elements
        for (int i = 0; at != 0 && i < regions.count; i++) {
            const Region& r = regions.region[i];
            if (at >= r.begin && at < r.end) *field = r.device + (at - r.begin);
        }
    }
}

fa_status_t Staging::copy_out() {
    for (int i = 0; i < regions.count; i++) {
        const Region& r = regions.region[i];
        if (!r.output) continue;
        const fa_status_t status =
            handle.backend->copy(handle.context, reinterpret_cast<void*>(r.begin), r.device, r.end - r.begin, &handle.message);
        if (status != FA_OK) return status;
    }
    return FA_OK;
}

void release_staging(fa_handle_s& handle) {
    Message ignored;
    if (handle.staging) handle.backend->release(handle.context, handle.staging, &ignored);
    handle.staging = nullptr;
    handle.staging_bytes = 0;
}

}  // namespace fa
