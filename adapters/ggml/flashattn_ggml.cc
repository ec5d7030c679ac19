// A backend for ggml that computes one operation, FLASH_ATTN_EXT, by libflashattn: a device on the CPU, and one on a GPU, where there is
// one. ggml's scheduler gives them what supports_op() accepts, where that lies in their memory, and leaves all else to ggml's own CPU
// backend.
#include <flashattn.h>
#include <ggml-backend-impl.h>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace {

// 0: no type of the library's. ggml's blocks hold numbers in the machine's byte order, the library's have the low byte first everywhere.
int32_t dtype_of(ggml_type type) {
    if (ggml_is_quantized(type) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) return 0;
    switch (type) {
        case GGML_TYPE_F32: return FA_F32;
        case GGML_TYPE_F16: return FA_F16;
        case GGML_TYPE_BF16: return FA_BF16;
        case GGML_TYPE_Q4_0: return FA_Q4_0;
        case GGML_TYPE_Q4_1: return FA_Q4_1;
        case GGML_TYPE_Q5_0: return FA_Q5_0;
        case GGML_TYPE_Q5_1: return FA_Q5_1;
        case GGML_TYPE_Q8_0: return FA_Q8_0;
        default: return 0;
    }
}

// Strides in units of the type; a tensor of ggml is [dim, row, head, sequence], and its output [dim, head, row, sequence].
void set_strides(int64_t to[4], const ggml_tensor* t, int row, int head) {
    const int64_t size = int64_t(ggml_type_size(t->type));
    to[0] = int64_t(t->nb[3]) / size;
    to[1] = int64_t(t->nb[row]) / size;
    to[2] = int64_t(t->nb[head]) / size;
    to[3] = 1;
}

bool has_dense_rows(const ggml_tensor* t) {
    const size_t size = ggml_type_size(t->type);
    return t->nb[0] == size && t->nb[1] % size == 0 && t->nb[2] % size == 0 && t->nb[3] % size == 0;
}

float parameter(const ggml_tensor* op, int n) {
    float value;
    memcpy(&value, reinterpret_cast<const char*>(op->op_params) + n * sizeof value, sizeof value);
    return value;
}

// The operation as a descriptor; false for what no descriptor says.
bool describe(const ggml_tensor* op, fa_attention_desc_t* d) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    const float scale = parameter(op, 0), max_bias = parameter(op, 1), softcap = parameter(op, 2);
    if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32 || (max_bias != 0 && !(mask && max_bias > 0))) return false;
    for (const ggml_tensor* t : {q, k, v, static_cast<const ggml_tensor*>(op)})
        if (!dtype_of(t->type) || !has_dense_rows(t)) return false;
    *d = FA_ATTENTION_DESC_INIT;
    d->q_dtype = d->o_dtype = FA_F32;
    d->k_dtype = dtype_of(k->type);
    d->v_dtype = dtype_of(v->type);
    d->batch = q->ne[3];
    d->heads_q = q->ne[2];
    d->heads_k = k->ne[2];
    d->heads_v = v->ne[2];
    d->seqlen_q = q->ne[1];
    d->seqlen_k = k->ne[1];
    d->dim_qk = q->ne[0];
    d->dim_v = v->ne[0];
    d->flags = FA_SCALE_EXPLICIT;
    d->scale = scale;
    d->softcap = softcap;
    // ggml's own kernels round q to what k's type is multiplied with, unless they are told not to.
    d->precision = ggml_flash_attn_ext_get_prec(op) == GGML_PREC_F32 ? FA_PRECISION_DEFAULT : FA_PRECISION_NATIVE;
    d->strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
    set_strides(d->q_stride, q, 1, 2);
    set_strides(d->k_stride, k, 1, 2);
    set_strides(d->v_stride, v, 1, 2);
    set_strides(d->o_stride, op, 2, 1);
    if (k->ne[3] != d->batch || v->ne[3] != d->batch) return false;
    if (mask) {  // sequences and heads take its own in turn, each head by a factor of its own where there is a max_bias
        if (mask->type != GGML_TYPE_F16 || !has_dense_rows(mask)) return false;
        d->operands |= max_bias > 0 ? FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE : FA_OPERAND_BIAS;
        d->bias_period[0] = mask->ne[3];
        d->bias_period[1] = mask->ne[2];
        d->bias_dtype = FA_F16;
        d->bias_stride[0] = int64_t(mask->nb[3] / sizeof(ggml_fp16_t));
        d->bias_stride[1] = int64_t(mask->nb[2] / sizeof(ggml_fp16_t));
        d->bias_stride[2] = int64_t(mask->nb[1] / sizeof(ggml_fp16_t));
        d->bias_stride[3] = 1;
    }
    if (sinks) d->operands |= FA_OPERAND_SINKS;
    return true;
}

// A device: the CPU, in ggml's host memory, or a GPU, with memory of its own. Its handle is what all of its backends and buffers share;
// ggml asks supports_op() from any thread.
struct Device {
    const char* const name;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    std::mutex mutex;
    fa_handle_t handle = nullptr;
    char description[FA_TEXT_MAX] = "";
    ggml_backend_device ggml = {};
    ggml_backend_buffer_type buffers = {};

    Device(const char* called, int32_t backend) : name(called) {
        info.backend = backend;
        info.memory = FA_MEMORY_DEVICE;
        if (fa_create(&handle, &info) == FA_OK) done(fa_explain(handle, nullptr, FA_OP_FORWARD, description, sizeof description));
    }
    bool on_gpu() const { return info.backend != FA_BACKEND_CPU; }
    bool done(fa_status_t status) const {
        if (status != FA_OK) std::fprintf(stderr, "ggml-flashattn: %s\n", fa_last_error(handle));
        return status == FA_OK;
    }
    bool copy(void* to, const void* from, size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex);
        return done(fa_copy(handle, to, from, bytes));
    }
};
// ggml may ask for them until the process ends.
std::vector<Device*>& devices() {
    static std::vector<Device*>* const shared = [] {
        auto* const all = new std::vector<Device*>;
        for (const int32_t backend : {FA_BACKEND_CPU, FA_BACKEND_CUDA, FA_BACKEND_HIP}) {
            if (all->size() == 2) break;
            Device* const one = new Device(backend == FA_BACKEND_CPU ? "FLASHATTN" : "FLASHATTN_GPU", backend);
            if (one->handle) all->push_back(one);
            else delete one;
        }
        return all;
    }();
    return *shared;
}
Device& device_of(ggml_backend_dev_t dev) { return *static_cast<Device*>(dev->context); }

bool computes(Device& device, const ggml_tensor* op) {
    fa_attention_desc_t d;
    if (!describe(op, &d)) return false;
    const std::lock_guard<std::mutex> lock(device.mutex);
    return fa_supports(device.handle, &d, FA_OP_FORWARD) == FA_OK;
}

// ---- memory of a GPU: buffers that programs put caches into, and ggml's scheduler what it copies there

Device& device_of(ggml_backend_buffer_t buffer) { return device_of(buffer->buft->device); }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    Device& device = device_of(type->device);
    ggml_backend_buffer_i i = {};
    i.free_buffer = [](ggml_backend_buffer_t b) { fa_free(device_of(b).handle, b->context); };
    i.get_base = [](ggml_backend_buffer_t b) { return b->context; };
    i.memset_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, uint8_t value, size_t at, size_t n) {
        device_of(b).copy(static_cast<char*>(t->data) + at, std::vector<char>(n, char(value)).data(), n);
    };
    i.set_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, const void* from, size_t at, size_t n) {
        device_of(b).copy(static_cast<char*>(t->data) + at, from, n);
    };
    i.get_tensor = [](ggml_backend_buffer_t b, const ggml_tensor* t, void* to, size_t at, size_t n) {
        device_of(b).copy(to, static_cast<const char*>(t->data) + at, n);
    };
    i.clear = [](ggml_backend_buffer_t b, uint8_t value) {
        device_of(b).copy(b->context, std::vector<char>(b->size, char(value)).data(), b->size);
    };
    void* memory = nullptr;
    const std::lock_guard<std::mutex> lock(device.mutex);
    return device.done(fa_malloc(device.handle, size, &memory)) ? ggml_backend_buffer_init(type, i, memory, size) : nullptr;
}

// ---- the backend: a handle of its own, for its threads, or its stream, are its own

fa_handle_t handle_of(ggml_backend_t backend) { return static_cast<fa_handle_t>(backend->context); }

ggml_status compute(ggml_backend_t backend, const ggml_tensor* op) {
    fa_attention_desc_t d;
    if (!describe(op, &d)) return GGML_STATUS_FAILED;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.q = op->src[0]->data;
    a.k = op->src[1]->data;
    a.v = op->src[2]->data;
    a.o = op->data;
    if (op->src[3]) a.bias = op->src[3]->data;
    if (op->src[4]) a.sinks = static_cast<const float*>(op->src[4]->data);
    const fa_handle_t handle = handle_of(backend);
    void* slopes = nullptr;
    fa_status_t status = FA_OK;
    if (d.operands & FA_OPERAND_BIAS_SCALE) {
        std::vector<float> values(size_t(d.heads_q));
        status = fa_alibi_slopes(d.heads_q, parameter(op, 1), values.data());
        if (status == FA_OK) status = fa_malloc(handle, values.size() * sizeof values[0], &slopes);
        if (status == FA_OK) status = fa_copy(handle, slopes, values.data(), values.size() * sizeof values[0]);
        a.bias_scale = static_cast<const float*>(slopes);
    }
    if (status == FA_OK) status = fa_forward_ex(handle, &d, &a);
    if (status == FA_OK) status = fa_synchronize(handle);
    if (status != FA_OK) std::fprintf(stderr, "ggml-flashattn: %s\n", fa_last_error(handle));
    if (slopes) fa_free(handle, slopes);
    return status == FA_OK ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor* const node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_FLASH_ATTN_EXT || ggml_is_empty(node)) continue;  // views, which are nothing to compute
        const ggml_status status = compute(backend, node);
        if (status != GGML_STATUS_SUCCESS) return status;
    }
    return GGML_STATUS_SUCCESS;
}

void free_backend(ggml_backend_t backend) {
    fa_destroy(handle_of(backend));
    delete backend;
}

// Asked for by name; ggml tells it the number of threads of its own.
void set_n_threads(ggml_backend_t backend, int n) {
    if (device_of(backend->device).on_gpu()) return;
    if (fa_param_set(handle_of(backend), FA_PARAM_THREADS, n > 0 ? n : 0) != FA_OK)
        std::fprintf(stderr, "ggml-flashattn: %s\n", fa_last_error(handle_of(backend)));
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char*) {
    static ggml_guid guid = {0x66, 0x6c, 0x61, 0x73, 0x68, 0x61, 0x74, 0x74, 0x6e, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x00, 0x01};
    fa_handle_t handle;
    if (fa_create(&handle, &device_of(dev).info) != FA_OK) {
        std::fprintf(stderr, "ggml-flashattn: %s\n", fa_last_error(nullptr));
        return nullptr;
    }
    ggml_backend_t backend = new ggml_backend{};
    backend->guid = &guid;
    backend->iface.get_name = [](ggml_backend_t b) { return device_of(b->device).name; };
    backend->iface.free = free_backend;
    backend->iface.graph_compute = graph_compute;
    backend->device = dev;
    backend->context = handle;
    return backend;
}

// ---- devices: accelerators beside the CPU

// Known since ggml 0.20.
template <class Caps>
auto set_mmap_support(Caps& caps, bool supported) -> decltype(void(caps.mmap_support)) {
    caps.mmap_support = supported;
}
[[maybe_unused]] void set_mmap_support(...) {}

void get_props(ggml_backend_dev_t dev, ggml_backend_dev_props* props) {
    *props = {};
    props->name = dev->iface.get_name(dev);
    props->description = dev->iface.get_description(dev);
    props->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
    props->caps.buffer_from_host_ptr = !device_of(dev).on_gpu();
    set_mmap_support(props->caps, !device_of(dev).on_gpu());
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor* op) {
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        case GGML_OP_FLASH_ATTN_EXT: return computes(device_of(dev), op);
        default: return false;
    }
}

ggml_backend_dev_t get_device(ggml_backend_reg_t reg, size_t index) {
    Device& device = *devices()[index];
    ggml_backend_device_i& i = device.ggml.iface;
    i.get_name = [](ggml_backend_dev_t dev) { return device_of(dev).name; };
    i.get_description = [](ggml_backend_dev_t dev) -> const char* { return device_of(dev).description; };
    i.get_memory = [](ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; };  // none that layers should be divided by
    i.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
    i.get_props = get_props;
    i.init_backend = init_backend;
    i.supports_op = supports_op;
    if (device.on_gpu()) {
        device.buffers.iface.get_name = [](ggml_backend_buffer_type_t type) { return device_of(type->device).name; };
        device.buffers.iface.alloc_buffer = alloc_buffer;
        device.buffers.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 256; };
        device.buffers.device = &device.ggml;
        i.get_buffer_type = [](ggml_backend_dev_t dev) { return &device_of(dev).buffers; };
        i.supports_buft = [](ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) { return type == &device_of(dev).buffers; };
    } else {
        i.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
        i.buffer_from_host_ptr = [](ggml_backend_dev_t, void* p, size_t size, size_t) { return ggml_backend_cpu_buffer_from_ptr(p, size); };
        i.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); };
    }
    device.ggml.context = &device;
    device.ggml.reg = reg;
    return &device.ggml;
}

void* get_proc_address(ggml_backend_reg_t, const char* name) {
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void*>(set_n_threads) : nullptr;
}

// ---- is this the ggml that the backend was compiled for? Its numbers and structs change while GGML_BACKEND_API_VERSION does not: so names
// are compared, and its functions are asked for members of structs, by what each member is there.

void mismatch(const char* what, const char* found, const char* expected) {
    std::fprintf(stderr,
                 "ggml-flashattn: compiled for another ggml than this one, %s, where %s is %s, expected %s; compile the backend with "
                 "the sources of this ggml as GGML_SOURCE\n",
                 ggml_version(), what, found, expected);
}

bool same_name(const char* what, const char* found, const char* expected) {
    if (strcmp(found, expected) == 0) return true;
    mismatch(what, found, expected);
    return false;
}

int called = -1;  // the number of the member that was called last
template <size_t N>
void* tell_number() {
    called = int(N);
    return nullptr;
}
// A struct of pointers, as many as any of ggml's and more: each leads to a function that tells the member's number.
template <size_t... N>
std::array<void*, sizeof...(N)> members(std::index_sequence<N...>) {
    return {reinterpret_cast<void*>(&tell_number<N>)...};
}

bool same_member(const char* what, int found, size_t expected_offset) {
    const int expected = int(expected_offset / sizeof(void*));
    if (found == expected) return true;
    char numbers[2][16];
    std::snprintf(numbers[0], sizeof numbers[0], "member %d", found);
    std::snprintf(numbers[1], sizeof numbers[1], "member %d", expected);
    mismatch(what, numbers[0], numbers[1]);
    return false;
}
#define SAME_CALL(call, type, member) (called = -1, (void)(call), same_member(#type "::" #member, called, offsetof(type, member)))

bool knows_this_ggml() {
    for (const auto& [op, name] : {std::pair<ggml_op, const char*>{GGML_OP_NONE, "NONE"},
                                   {GGML_OP_RESHAPE, "RESHAPE"},
                                   {GGML_OP_VIEW, "VIEW"},
                                   {GGML_OP_PERMUTE, "PERMUTE"},
                                   {GGML_OP_TRANSPOSE, "TRANSPOSE"},
                                   {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"}}) {
        char what[32];
        std::snprintf(what, sizeof what, "operation %d", int(op));
        if (!same_name(what, ggml_op_name(op), name)) return false;
    }
    for (const auto& [type, name] : {std::pair<ggml_type, const char*>{GGML_TYPE_F32, "f32"},
                                     {GGML_TYPE_F16, "f16"},
                                     {GGML_TYPE_BF16, "bf16"},
                                     {GGML_TYPE_Q4_0, "q4_0"},
                                     {GGML_TYPE_Q4_1, "q4_1"},
                                     {GGML_TYPE_Q5_0, "q5_0"},
                                     {GGML_TYPE_Q5_1, "q5_1"},
                                     {GGML_TYPE_Q8_0, "q8_0"}}) {
        char what[32];
        std::snprintf(what, sizeof what, "type %d", int(type));
        if (!same_name(what, ggml_type_name(type), name)) return false;
    }
    ggml_tensor tensor = {};
    tensor.op = GGML_OP_FLASH_ATTN_EXT;
    if (!same_name("the operation of a tensor", ggml_op_desc(&tensor), "FLASH_ATTN_EXT") ||
        !same_member("ggml_tensor::name", int((ggml_get_name(&tensor) - reinterpret_cast<char*>(&tensor)) / ptrdiff_t(sizeof(void*))),
                     offsetof(ggml_tensor, name)))
        return false;

    std::array<void*, 64> all = members(std::make_index_sequence<64>());
    const auto backend = reinterpret_cast<ggml_backend_t>(all.data());
    const auto device = reinterpret_cast<ggml_backend_dev_t>(all.data());
    const auto type = reinterpret_cast<ggml_backend_buffer_type_t>(all.data());
    const auto buffer = reinterpret_cast<ggml_backend_buffer_t>(all.data());
    const auto registered = reinterpret_cast<ggml_backend_reg_t>(all.data());
    const auto number_of = [&](const void* member) {
        int n = 0;
        while (n < int(all.size()) && all[size_t(n)] != member) n++;
        return n;
    };
    // ggml clears them before the device fills them in: in how many bytes?
    alignas(16) unsigned char props[1024];
    memset(props, 0xff, sizeof props);
    const bool gives_props = SAME_CALL(ggml_backend_dev_get_props(device, reinterpret_cast<ggml_backend_dev_props*>(props)),
                                       ggml_backend_device, iface.get_props);
    size_t props_bytes = 0;
    while (props_bytes < sizeof props && props[props_bytes] == 0) props_bytes++;
    return gives_props &&
           same_member("the end of ggml_backend_dev_props", int(props_bytes / sizeof(void*)), sizeof(ggml_backend_dev_props)) &&
           SAME_CALL(ggml_backend_dev_init(device, nullptr), ggml_backend_device, iface.init_backend) &&
           SAME_CALL(ggml_backend_dev_buffer_type(device), ggml_backend_device, iface.get_buffer_type) &&
           SAME_CALL(ggml_backend_dev_supports_op(device, &tensor), ggml_backend_device, iface.supports_op) &&
           SAME_CALL(ggml_backend_dev_supports_buft(device, type), ggml_backend_device, iface.supports_buft) &&
           same_member("ggml_backend_device::reg", number_of(ggml_backend_dev_backend_reg(device)), offsetof(ggml_backend_device, reg)) &&
           SAME_CALL(ggml_backend_synchronize(backend), ggml_backend, iface.synchronize) &&
           SAME_CALL(ggml_backend_graph_compute_async(backend, nullptr), ggml_backend, iface.graph_compute) &&
           same_member("ggml_backend::device", number_of(ggml_backend_get_device(backend)), offsetof(ggml_backend, device)) &&
           SAME_CALL(ggml_backend_buft_get_alignment(type), ggml_backend_buffer_type, iface.get_alignment) &&
           same_member("ggml_backend_buffer_type::device", number_of(ggml_backend_buft_get_device(type)),
                       offsetof(ggml_backend_buffer_type, device)) &&
           SAME_CALL(ggml_backend_buffer_clear(buffer, 0), ggml_backend_buffer, iface.clear) &&
           same_member("ggml_backend_buffer::size", number_of(reinterpret_cast<void*>(ggml_backend_buffer_get_size(buffer))),
                       offsetof(ggml_backend_buffer, size)) &&
           SAME_CALL(ggml_backend_reg_get_proc_address(registered, ""), ggml_backend_reg, iface.get_proc_address);
}
#undef SAME_CALL

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    if (!knows_this_ggml()) return nullptr;
    static ggml_backend_reg reg = {};
    reg.api_version = GGML_BACKEND_API_VERSION;
    reg.iface.get_name = [](ggml_backend_reg_t) { return "FLASHATTN"; };
    reg.iface.get_device_count = [](ggml_backend_reg_t) { return devices().size(); };
    reg.iface.get_device = get_device;
    reg.iface.get_proc_address = get_proc_address;
    return &reg;
}
