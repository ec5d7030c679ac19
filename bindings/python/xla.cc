// Handlers of XLA's FFI for flashattn.jax: one for each platform, of every call. What a call computes is its descriptor, which
// comes along as bytes, since it holds no pointer, and so do its args without their pointers; where each buffer belongs in the
// args comes as offsets. The headers are jaxlib's
// (jax.ffi.include_dir()), and none of a GPU's is needed: its stream and its memory are pointers here.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashattn.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kForward = 1 << 20;  // added to an offset: in the args of a backward's forward
constexpr int64_t kSkip = -1;          // the buffer only becomes a result's, whose contents it gives
constexpr size_t kAlignment = 256;     // of a workspace

using Handle = std::unique_ptr<fa_handle_s, fa_status_t (*)(fa_handle_t)>;

// XLA calls from threads of its own, several at once; a handle serves one at a time.
fa_status_t handle_of(int32_t backend, int32_t device, fa_handle_t* found) {
    struct Entry {
        int32_t device;
        Handle handle;
    };
    thread_local std::vector<Entry> handles;
    for (const Entry& entry : handles)
        if (entry.device == device) {
            *found = entry.handle.get();
            return FA_OK;
        }
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.device = device;
    info.memory = FA_MEMORY_DEVICE;
    const fa_status_t status = fa_create(found, &info);
    if (status == FA_OK) handles.push_back({device, Handle(*found, fa_destroy)});
    return status;
}

ffi::Error error_of(fa_status_t status, fa_handle_t handle) {
    ffi::ErrorCode code = ffi::ErrorCode::kInternal;
    if (status == FA_INVALID_ARGUMENT) code = ffi::ErrorCode::kInvalidArgument;
    if (status == FA_UNSUPPORTED || status == FA_UNSUPPORTED_FIELD) code = ffi::ErrorCode::kUnimplemented;
    if (status == FA_OUT_OF_MEMORY) code = ffi::ErrorCode::kResourceExhausted;
    return ffi::Error(code, std::string(fa_status_name(status)) + ": " + fa_last_error(handle));
}

// The functions that take a handle, a descriptor and args.
struct Call {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t inputs = FA_FORWARD_ARGS_INIT;  // of a backward
    union {
        fa_forward_args_t forward;
        fa_backward_args_t backward;
        fa_rotary_args_t rotary;
        fa_append_kv_args_t append;
    } args = {FA_FORWARD_ARGS_INIT};
    int32_t op = 0;

    ffi::Error fill(int64_t number, ffi::Span<const uint8_t> bytes, ffi::Span<const uint8_t> plain, ffi::Span<const int64_t> where,
                    ffi::RemainingArgs given, ffi::RemainingRets results) {
        op = int32_t(number);
        if (bytes.size() != sizeof desc || where.size() != given.size() + results.size() || plain.size() != size() || plain.size() == 0)
            return ffi::Error::InvalidArgument("the call is not of this version's flashattn.jax");
        std::memcpy(&desc, bytes.begin(), sizeof desc);
        std::memcpy(&args, plain.begin(), plain.size());
        if (op == FA_OP_BACKWARD) args.backward.forward = &inputs;
        for (size_t i = 0; i < where.size(); ++i) {
            void* data;
            if (i < given.size()) {
                const auto buffer = given.get<ffi::AnyBuffer>(i);
                if (!buffer.has_value()) return buffer.error();
                data = buffer->untyped_data();
            } else {
                auto buffer = results.get<ffi::AnyBuffer>(i - given.size());
                if (!buffer.has_value()) return buffer.error();
                data = (*buffer)->untyped_data();
            }
            if (!point(where.begin()[i], data)) return ffi::Error::InvalidArgument("a buffer has no place in the call's args");
        }
        return ffi::Error::Success();
    }

    // Bytes of the args; 0: the op is none of these.
    size_t size() const {
        switch (op) {
            case FA_OP_FORWARD: return sizeof args.forward;
            case FA_OP_BACKWARD: return sizeof args.backward;
            case FA_OP_ROTARY: return sizeof args.rotary;
            case FA_OP_APPEND_KV: return sizeof args.append;
            default: return 0;
        }
    }

    bool point(int64_t offset, void* data) {
        if (offset == kSkip) return true;
        const bool inner = offset >= kForward;
        if (inner) offset -= kForward;
        if (offset < 0 || offset + sizeof data > (inner ? sizeof inputs : size())) return false;
        std::memcpy((inner ? reinterpret_cast<char*>(&inputs) : reinterpret_cast<char*>(&args)) + offset, &data, sizeof data);
        return true;
    }

    void enqueue(void* stream, void* workspace, uint64_t bytes) {
        const auto in_stream = [&](auto& call) {
            call.flags |= FA_ARGS_STREAM;
            call.stream = stream;
            call.workspace = workspace;
            call.workspace_size = bytes;
        };
        if (op == FA_OP_FORWARD) in_stream(args.forward);
        if (op == FA_OP_BACKWARD) in_stream(args.backward);
        if (op == FA_OP_ROTARY) in_stream(args.rotary);
        if (op == FA_OP_APPEND_KV) in_stream(args.append);
    }

    fa_status_t run(fa_handle_t handle) {
        switch (op) {
            case FA_OP_FORWARD: return fa_forward_ex(handle, &desc, &args.forward);
            case FA_OP_BACKWARD: return fa_backward(handle, &desc, &args.backward);
            case FA_OP_ROTARY: return fa_rotary(handle, &desc, &args.rotary);
            default: return fa_append_kv(handle, &desc, &args.append);
        }
    }
};

ffi::Error on_cpu(int64_t op, ffi::Span<const uint8_t> desc, ffi::Span<const uint8_t> plain, ffi::Span<const int64_t> where,
                  ffi::RemainingArgs args, ffi::RemainingRets results) {
    Call call;
    if (ffi::Error error = call.fill(op, desc, plain, where, args, results); error.failure()) return error;
    fa_handle_t handle;
    if (const fa_status_t status = handle_of(FA_BACKEND_CPU, 0, &handle)) return error_of(status, nullptr);
    const fa_status_t status = call.run(handle);
    return status == FA_OK ? ffi::Error::Success() : error_of(status, handle);
}

// In the program's stream, with a workspace of XLA's.
template <int32_t kBackend>
ffi::Error on_gpu(void* stream, int32_t device, ffi::ScratchAllocator scratch, int64_t op, ffi::Span<const uint8_t> desc,
                  ffi::Span<const uint8_t> plain, ffi::Span<const int64_t> where, ffi::RemainingArgs args, ffi::RemainingRets results) {
    Call call;
    if (ffi::Error error = call.fill(op, desc, plain, where, args, results); error.failure()) return error;
    fa_handle_t handle;
    if (const fa_status_t status = handle_of(kBackend, device, &handle)) return error_of(status, nullptr);
    uint64_t size = 0;
    if (const fa_status_t status = fa_workspace_size(handle, &call.desc, call.op, &size)) return error_of(status, handle);
    void* workspace = nullptr;
    if (size > 0) {
        // XLA refuses to promise more than 16 bytes.
        const std::optional<void*> memory = scratch.Allocate(size + kAlignment);
        if (!memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "XLA gave no memory for the call's workspace");
        workspace = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(*memory) + kAlignment - 1) / kAlignment * kAlignment);
    }
    call.enqueue(stream, workspace, size);
    const fa_status_t status = call.run(handle);
    return status == FA_OK ? ffi::Error::Success() : error_of(status, handle);
}

auto gpu_binding() {
    return ffi::Ffi::Bind()
        .Ctx<ffi::PlatformStream<void*>>()
        .Ctx<ffi::DeviceOrdinal>()
        .Ctx<ffi::ScratchAllocator>()
        .Attr<int64_t>("op")
        .Attr<ffi::Span<const uint8_t>>("desc")
        .Attr<ffi::Span<const uint8_t>>("args")
        .Attr<ffi::Span<const int64_t>>("where")
        .RemainingArgs()
        .RemainingRets();
}

}  // namespace

extern "C" {
FA_API XLA_FFI_Error* flashattn_xla_cpu(XLA_FFI_CallFrame* frame);
FA_API XLA_FFI_Error* flashattn_xla_cuda(XLA_FFI_CallFrame* frame);
FA_API XLA_FFI_Error* flashattn_xla_rocm(XLA_FFI_CallFrame* frame);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(flashattn_xla_cpu, on_cpu,
                              ffi::Ffi::Bind()
                                  .Attr<int64_t>("op")
                                  .Attr<ffi::Span<const uint8_t>>("desc")
                                  .Attr<ffi::Span<const uint8_t>>("args")
                                  .Attr<ffi::Span<const int64_t>>("where")
                                  .RemainingArgs()
                                  .RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(flashattn_xla_cuda, on_gpu<FA_BACKEND_CUDA>, gpu_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(flashattn_xla_rocm, on_gpu<FA_BACKEND_HIP>, gpu_binding());
