// Handlers of XLA's FFI for flashattn.jax: one for each platform, of both passes. What a call computes is its descriptor, which
// comes along as bytes, since it holds no pointer; where each buffer belongs in the args comes as offsets. The headers are jaxlib's
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

struct Call {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    int32_t op = 0;

    ffi::Error fill(int64_t number, ffi::Span<const uint8_t> bytes, ffi::Span<const int64_t> where, ffi::RemainingArgs args,
                    ffi::RemainingRets results) {
        if (bytes.size() != sizeof desc || where.size() != args.size() + results.size() ||
            (number != FA_OP_FORWARD && number != FA_OP_BACKWARD))
            return ffi::Error::InvalidArgument("the call is not of this version's flashattn.jax");
        op = int32_t(number);
        std::memcpy(&desc, bytes.begin(), sizeof desc);
        backward.forward = &forward;
        for (size_t i = 0; i < where.size(); ++i) {
            void* data;
            if (i < args.size()) {
                const auto buffer = args.get<ffi::AnyBuffer>(i);
                if (!buffer.has_value()) return buffer.error();
                data = buffer->untyped_data();
            } else {
                auto buffer = results.get<ffi::AnyBuffer>(i - args.size());
                if (!buffer.has_value()) return buffer.error();
                data = (*buffer)->untyped_data();
            }
            if (!point(where.begin()[i], data)) return ffi::Error::InvalidArgument("a buffer has no place in the call's args");
        }
        return ffi::Error::Success();
    }

    bool point(int64_t offset, void* data) {
        if (offset == kSkip) return true;
        const bool inner = op == FA_OP_FORWARD || offset >= kForward;
        if (offset >= kForward) offset -= kForward;
        if (offset < 0 || offset + int64_t(sizeof data) > int64_t(inner ? sizeof forward : sizeof backward)) return false;
        std::memcpy((inner ? reinterpret_cast<char*>(&forward) : reinterpret_cast<char*>(&backward)) + offset, &data, sizeof data);
        return true;
    }

    void enqueue(void* stream, void* workspace, uint64_t size) {
        if (op == FA_OP_FORWARD) enqueue(&forward, stream, workspace, size);
        else enqueue(&backward, stream, workspace, size);
    }

    template <typename Args>
    static void enqueue(Args* args, void* stream, void* workspace, uint64_t size) {
        args->flags |= FA_ARGS_STREAM;
        args->stream = stream;
        args->workspace = workspace;
        args->workspace_size = size;
    }

    fa_status_t run(fa_handle_t handle) {
        return op == FA_OP_FORWARD ? fa_forward_ex(handle, &desc, &forward) : fa_backward(handle, &desc, &backward);
    }
};

ffi::Error on_cpu(int64_t op, ffi::Span<const uint8_t> desc, ffi::Span<const int64_t> where, ffi::RemainingArgs args,
                  ffi::RemainingRets results) {
    Call call;
    if (ffi::Error error = call.fill(op, desc, where, args, results); error.failure()) return error;
    fa_handle_t handle;
    if (const fa_status_t status = handle_of(FA_BACKEND_CPU, 0, &handle)) return error_of(status, nullptr);
    const fa_status_t status = call.run(handle);
    return status == FA_OK ? ffi::Error::Success() : error_of(status, handle);
}

// In the program's stream, with a workspace of XLA's.
template <int32_t kBackend>
ffi::Error on_gpu(void* stream, int32_t device, ffi::ScratchAllocator scratch, int64_t op, ffi::Span<const uint8_t> desc,
                  ffi::Span<const int64_t> where, ffi::RemainingArgs args, ffi::RemainingRets results) {
    Call call;
    if (ffi::Error error = call.fill(op, desc, where, args, results); error.failure()) return error;
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
                                  .Attr<ffi::Span<const int64_t>>("where")
                                  .RemainingArgs()
                                  .RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(flashattn_xla_cuda, on_gpu<FA_BACKEND_CUDA>, gpu_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(flashattn_xla_rocm, on_gpu<FA_BACKEND_HIP>, gpu_binding());
