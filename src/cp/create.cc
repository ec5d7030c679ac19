// The object's life, and the functions that need none.
#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <new>
#include "cp/exchange.h"

namespace fa {
namespace cp {

constexpr int64_t kDefaultTimeout = 60000;
constexpr uint64_t kAlignment = 64;  // a cache line, and any vector

thread_local Message own_message;

Message* thread_message() {
    own_message.text[0] = 0;
    return &own_message;
}

static void free_slab(fa_cp_s* cp, Slot slot) {
    Slab& slab = cp->slab[slot];
    if (cp->device && slot >= kFirstOfTensors) fa_free(cp->handle, slab.data);
    else free(slab.data);
    slab = {nullptr, 0};
}

fa_status_t grow(fa_cp_s* cp, Slot slot, uint64_t bytes) {
    Slab& slab = cp->slab[slot];
    if (slab.data && slab.bytes >= bytes) return FA_OK;
    const bool on_device = cp->device && slot >= kFirstOfTensors;
    // What is freed waits for the device, and may do so for ever: this does not.
    if (on_device && slab.data) FA_TRY(synchronize(cp));
    free_slab(cp, slot);
    const uint64_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;  // never of no bytes
    if (on_device) {
        void* data = nullptr;
        const fa_status_t status = fa_malloc(cp->handle, rounded, &data);
        if (status != FA_OK) return fail(&cp->message, status, "%s", fa_last_error(cp->handle));
        slab.data = static_cast<char*>(data);
    } else if (rounded > bytes) {
        slab.data = static_cast<char*>(aligned_alloc(kAlignment, rounded));
    }
    if (!slab.data) return fail(&cp->message, FA_OUT_OF_MEMORY, "a buffer of %llu bytes could not be allocated", llu(bytes));
    slab.bytes = rounded;
    return FA_OK;
}

static fa_status_t check_transport(const fa_cp_transport_t& transport, Message* message) {
    FA_TRY(known_bits(message, "transport.flags", transport.flags, FA_CP_DEVICE_MEMORY));
    FA_TRY(in_range(message, "transport.ranks", transport.ranks, 1, kMaxSize));
    FA_TRY(in_range(message, "transport.rank", transport.rank, 0, transport.ranks - 1));
    if (transport.ranks > 1 && !(transport.start && transport.wait))
        return fail(message, FA_INVALID_ARGUMENT, "transport.%s is NULL: expected a function with %d ranks",
                    transport.start ? "wait" : "start", transport.ranks);
    const struct {
        const char* name;
        bool given;
    } of_device[] = {{"enter", transport.enter != nullptr},
                     {"leave", transport.leave != nullptr},
                     {"gather_host", transport.gather_host != nullptr},
                     {"synchronize", transport.synchronize != nullptr}};
    const bool device = (transport.flags & FA_CP_DEVICE_MEMORY) != 0;
    for (const auto& f : of_device) {
        if (f.given && !device)
            return fail(message, FA_INVALID_ARGUMENT, "transport.%s is not NULL: expected NULL without FA_CP_DEVICE_MEMORY", f.name);
        if (!f.given && device && transport.ranks > 1)
            return fail(message, FA_INVALID_ARGUMENT, "transport.%s is NULL: expected a function with FA_CP_DEVICE_MEMORY", f.name);
    }
    return FA_OK;
}

static fa_status_t check_handle(fa_handle_t handle, bool device, Message* message) {
    if (!handle) return fail(message, FA_INVALID_ARGUMENT, "handle is NULL: expected a handle");
    int64_t backend = 0, memory = 0;
    fa_status_t status = fa_param_get(handle, FA_INFO_BACKEND, &backend);
    if (status == FA_OK) status = fa_param_get(handle, FA_INFO_MEMORY, &memory);
    if (status != FA_OK) return fail(message, status, "%s", fa_last_error(handle));
    if (backend == FA_BACKEND_CPU || (memory == FA_MEMORY_DEVICE) == device) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "the handle takes %s memory: expected one that was created with %s %s FA_CP_DEVICE_MEMORY",
                device ? "host" : "device", device ? "FA_MEMORY_DEVICE" : "FA_MEMORY_HOST", device ? "under" : "without");
}

static fa_status_t check_figure(Message* message, const char* name, double value) {
    if (value >= 0 && value <= DBL_MAX) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "%s is %g: expected a finite number, 0 or more", name, value);
}

// What the caller does not say is between GPUs of one host, in 16-bit types, as four H100 with NCCL have it (bench/results), or between
// cores of one.
static Machine machine_of(const fa_cp_create_info_t& info, bool device) {
    Machine m = device ? Machine{6.2e14, 1.6e11, 1.7e-4, 2e12, 2e-5, .92} : Machine{1e11, 3e9, 1e-5, 1e10, 2e-6};
    if (info.flops_per_second > 0) m.speed = info.flops_per_second;
    if (info.link_bytes_per_second > 0) m.rate = info.link_bytes_per_second;
    if (info.link_seconds > 0) m.latency = info.link_seconds;
    return m;
}

static fa_status_t create(fa_cp_t* out, fa_handle_t handle, const fa_cp_create_info_t* user, Message* message) {
    if (!out) return fail(message, FA_INVALID_ARGUMENT, "cp is NULL: expected where to put the object");
    *out = nullptr;
    fa_cp_create_info_t info;
    fa_cp_transport_t transport;
    FA_TRY(import_struct(&info, user, message));
    FA_TRY(known_bits(message, "info.flags", info.flags, 0));
    FA_TRY(in_range(message, "info.timeout_ms", info.timeout_ms, -1, INT64_MAX));
    FA_TRY(check_figure(message, "info.link_bytes_per_second", info.link_bytes_per_second));
    FA_TRY(check_figure(message, "info.link_seconds", info.link_seconds));
    FA_TRY(check_figure(message, "info.flops_per_second", info.flops_per_second));
    FA_TRY(import_struct(&transport, info.transport, message));
    FA_TRY(check_transport(transport, message));
    FA_TRY(check_handle(handle, (transport.flags & FA_CP_DEVICE_MEMORY) != 0, message));
    fa_cp_s* cp = static_cast<fa_cp_s*>(calloc(1, sizeof(fa_cp_s)));
    if (!cp) return fail(message, FA_OUT_OF_MEMORY, "no memory for an object of %d bytes", int(sizeof(fa_cp_s)));
    new (&cp->busy) std::atomic<int>(false);
    cp->handle = handle;
    cp->transport = transport;
    cp->timeout_ms = info.timeout_ms == 0 ? kDefaultTimeout : info.timeout_ms;
    cp->device = (transport.flags & FA_CP_DEVICE_MEMORY) != 0;
    cp->machine = machine_of(info, cp->device);
    const fa_status_t status = transport.ranks > 1 ? grow(cp, kHello, (uint64_t(transport.ranks) + 1) * kHelloBytes) : FA_OK;
    if (status != FA_OK) {
        *message = cp->message;
        free(cp);
        return status;
    }
    *out = cp;
    return FA_OK;
}

// The caller's size counts: a newer caller's struct is zeroed to its own end.
template <class T>
static fa_status_t init(T* object, uint32_t struct_size) {
    Message* m = thread_message();
    if (object == nullptr) return fail(m, FA_INVALID_ARGUMENT, "%s is NULL: expected a struct to fill", Sized<T>::kName);
    FA_TRY(check_struct_size(struct_size, Sized<T>::kFirst, Sized<T>::kName, m));
    memset(static_cast<void*>(object), 0, struct_size);
    object->struct_size = struct_size;
    return FA_OK;
}

}  // namespace cp
}  // namespace fa

fa_status_t fa_cp_transport_init(fa_cp_transport_t* transport, uint32_t struct_size) { return fa::cp::init(transport, struct_size); }
fa_status_t fa_cp_create_info_init(fa_cp_create_info_t* info, uint32_t struct_size) { return fa::cp::init(info, struct_size); }
fa_status_t fa_cp_desc_init(fa_cp_desc_t* spread, uint32_t struct_size) { return fa::cp::init(spread, struct_size); }

fa_status_t fa_cp_create(fa_cp_t* cp, fa_handle_t handle, const fa_cp_create_info_t* info) {
    return fa::cp::create(cp, handle, info, fa::cp::thread_message());
}

fa_status_t fa_cp_destroy(fa_cp_t cp) {
    if (!cp) return FA_OK;
    if (cp->device && !cp->failed) fa::cp::synchronize(cp);
    const bool late_messages = cp->failed && !cp->transport.abandon;  // may still come into these buffers
    for (int slot = 0; slot < fa::cp::kSlots && !late_messages; slot++) fa::cp::free_slab(cp, fa::cp::Slot(slot));
    free(cp);
    return FA_OK;
}

const char* fa_cp_last_error(fa_cp_t cp) {
    // While a call is inside, its message is being written; whoever was turned away has the reason in the thread's own.
    return cp && !cp->busy.load(std::memory_order_acquire) ? cp->message.text : fa::cp::own_message.text;
}

fa_status_t fa_cp_traffic(fa_cp_t cp, uint64_t* bytes_sent, uint64_t* messages_sent) {
    if (!cp) return fail(fa::cp::thread_message(), FA_INVALID_ARGUMENT, "cp is NULL: expected an object");
    if (bytes_sent) *bytes_sent = cp->bytes_sent;
    if (messages_sent) *messages_sent = cp->messages_sent;
    return FA_OK;
}
