// All-gather: each rank gets the keys that its rows see, a chunk of heads at a time, while it computes the chunk before.
#include "cp/gather.h"

namespace fa {
namespace cp {

static fa_status_t run(Job* job) {
    const Chunks c = chunks_of(*job);
    Shares shares(job->cp->slab[kKeys].data);
    const Gathered g = lay_out_gathered(*job, c, &shares);
    Group group(job->cp);
    FA_TRY(start_gather(job, c, 0, &group));
    for (int64_t chunk = 0; chunk < c.count; chunk++) {
        FA_TRY(group.wait("keys and values"));
        place_gathered(job, c, chunk, g);
        group = Group(job->cp);
        if (chunk + 1 < c.count) FA_TRY(start_gather(job, c, chunk + 1, &group));
        each_gathered_piece(job, c, chunk, g, [&](const Piece& piece, const Place&) { attend(job, piece); });
    }
    return FA_OK;
}

extern const Method kAllGather{
    FA_CP_METHOD_ALL_GATHER, "all-gather", check_chunks, {prepare_gather, run, gather_bytes, gather_bytes}, &kAllGatherBackward};

}  // namespace cp
}  // namespace fa
