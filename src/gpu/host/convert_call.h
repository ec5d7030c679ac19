// fa_convert and fa_copy_async on a stream.
#pragma once
#include "gpu/host/context.h"
#include "gpu/rows/convert.h"

namespace fa {
namespace gpu {
namespace {

fa_status_t launch_convert(const ConvertParams& params, rt::Stream stream, Message* message) {
    if (params.count == 0) return FA_OK;
    return launched(message, rt::launch(convert_tensors, params.end[params.count - 1], kConvertThreads, 0, stream, params),
                    "convert_tensors");
}

fa_status_t convert(Context* context, const fa_conversion_t* list, int64_t count, uint32_t flags, void* named, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_convert");
    OnDevice on(*context);
    rt::Stream stream;
    fa_status_t status = stream_of(context, flags, named, &stream, message);
    for (int64_t i = 0; i < count && status == FA_OK; i++) {
        if (move_of(list[i]).words == 0) continue;
        status = check_pointer(*context, list[i].x, "x", message);
        if (status == FA_OK) status = check_pointer(*context, list[i].out, "out", message);
    }
    ConvertParams params;
    params.count = 0;
    for (int64_t i = 0; i < count && status == FA_OK; i++) {
        const Move move = move_of(list[i]);
        if (move.words == 0) continue;
        const int64_t blocks = ceil_div(move.words, kConvertBlock), before = params.count > 0 ? params.end[params.count - 1] : 0;
        if (params.count == kConvertMoves || before + blocks >= kMaxBlocks) {
            status = launch_convert(params, stream, message);
            params.count = 0;
        }
        params.end[params.count] = (params.count > 0 ? before : 0) + blocks;
        params.move[params.count++] = move;
    }
    return status == FA_OK ? launch_convert(params, stream, message) : status;
}

fa_status_t copy_async(Context* context, void* to, const void* from, uint64_t bytes, uint32_t flags, void* named, Message* message) {
    OnDevice on(*context);
    rt::Stream stream;
    const fa_status_t status = stream_of(context, flags, named, &stream, message);
    return status == FA_OK ? launched(message, rt::copy(to, from, bytes, stream), "copying memory") : status;
}

}  // namespace
}  // namespace gpu
}  // namespace fa
