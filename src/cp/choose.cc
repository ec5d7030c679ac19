// Which method a call takes: the one that is named, or of those that can the one that should be done first.
#include "cp/cost.h"
#include "cp/gather.h"

namespace fa {
namespace cp {
namespace {

constexpr const Method* kMethods[] = {&kUlysses, &kAllGather, &kRingAttention, &kMergeMethod};

Way way_of(const Method& method) { return &method == &kUlysses ? Way::ulysses : &method == &kAllGather ? Way::all_gather : Way::ring; }

// Keys of a row, at most, and of the rows' pairs the share that the mask leaves.
void share_by_mask(const fa_attention_desc_t& desc, double keys, Sharing* sharing) {
    const bool causal = (desc.flags & FA_CAUSAL) != 0, window = (desc.flags & FA_WINDOW) != 0;
    double width = keys;
    if (window && desc.window_left >= 0 && (causal || desc.window_right >= 0))
        width = double(desc.window_left) + 1 + (causal ? 0 : double(desc.window_right));
    if (desc.chunk > 0 && double(desc.chunk) < width) width = double(desc.chunk);
    const double band = keys > 0 && width < keys ? width / keys : 1, others = double(sharing->ranks - 1) / double(sharing->ranks);
    sharing->pairs = causal && band > .5 ? .5 : band;
    sharing->seen = band < 1 && 2 * band < others ? 2 * band / others : 1;  // before each of a rank's two ranges
}

Sharing sharing_of(const Job& job) {
    const fa_attention_desc_t& d = job.d;
    const double rows = job.packed_q ? double(d.total_q) : double(d.batch) * double(d.seqlen_q),
                 keys = job.packed_k ? double(d.total_k) : double(d.batch) * double(d.seqlen_k), batch = d.batch > 0 ? double(d.batch) : 1;
    Sharing s{};
    s.batch = batch;
    s.heads_q = d.heads_q;
    s.heads_kv = d.heads_k < d.heads_v ? d.heads_v : d.heads_k;
    s.n = (rows > keys ? rows : keys) / batch;
    s.dim = double(d.dim_qk + d.dim_v) / 2;
    s.ranks = job.ranks;
    s.element = double(job.q.unit);
    s.chunks = chunks_of(job).count;
    share_by_mask(d, s.n, &s);
    return s;
}

}  // namespace

// The same on all ranks: of the whole problem and of what fa_cp_create was given alone.
double predicted_seconds(const Job& job, const Method& method) {
    if (&method == &kMergeMethod) return 0;
    const Seconds t = seconds_of(way_of(method), sharing_of(job), job.cp->machine);
    return job.op == FA_OP_BACKWARD ? t.backward : t.forward;
}

const Method* find_method(const Job& job, Message* message, fa_status_t* status) {
    const bool rows = job.spread.shard == FA_CP_SHARD_ROWS, chosen = job.spread.method == FA_CP_METHOD_AUTO;
    const Method* best = nullptr;
    double least = 0;
    for (const Method* method : kMethods) {
        if (!chosen && job.spread.method != method->id) continue;
        if (rows == (method == &kMergeMethod)) continue;                                        // which alone has keys' shards
        if (chosen && (job.d.flags & FA_DETERMINISTIC) && method == &kRingAttention) continue;  // whose bits depend on the number of ranks
        *status = method->check(job, message);
        if (!chosen) return *status == FA_OK ? method : nullptr;
        if (*status != FA_OK) continue;
        const double seconds = predicted_seconds(job, *method);
        if (best && seconds >= least) continue;
        best = method;
        least = seconds;
    }
    if (best) {
        *status = FA_OK;
        return best;
    }
    if (!chosen)
        *status = fail(message, FA_INVALID_ARGUMENT, "spread.method is %d: expected %s", job.spread.method,
                       rows ? "another than FA_CP_METHOD_MERGE with FA_CP_SHARD_ROWS" : "FA_CP_METHOD_MERGE with FA_CP_SHARD_KEYS");
    return nullptr;
}

}  // namespace cp
}  // namespace fa
