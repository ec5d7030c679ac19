// Ring attention: each rank's keys and values pass from rank to rank, as far as somebody needs them, while rows are computed with
// those that are here. Partial results are merged in f32.
#include <string.h>
#include "cp/ring.h"

namespace fa {
namespace cp {
namespace {

struct Partials {
    View o, part;  // f32; of all local rows, and room for one piece
    LseView lse, part_lse;
};
Partials lay_out(const Job& job, Shares* all, Shares* one) {
    Partials p{};
    const int64_t batch = job.packed_q ? 1 : job.d.batch, rows = job.local_rows, heads = job.d.heads_q;
    View o = job.o;
    o.unit = sizeof(float);
    o.head_bytes = job.d.dim_v * int64_t(sizeof(float));
    p.o = dense(o, nullptr, rows);
    p.part = p.o;
    p.o.data = all->take(bytes_of(p.o, batch, rows));
    p.lse = {reinterpret_cast<float*>(all->take(batch * heads * rows * int64_t(sizeof(float)))), heads * rows, rows, 1};
    p.part.data = one->take(bytes_of(p.o, batch, rows));
    p.part_lse = p.lse;
    p.part_lse.data = reinterpret_cast<float*>(one->take(batch * heads * rows * int64_t(sizeof(float))));
    return p;
}

fa_status_t check(const Job& job, Message* message) {
    if (job.d.chunk == 0) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "chunk is %lld: expected 0 for FA_CP_METHOD_RING", ll(job.d.chunk));
}

fa_status_t prepare(Job* job) {
    const uint64_t largest = uint64_t(largest_shard(*job));
    Shares all(nullptr), one(nullptr);
    lay_out(*job, &all, &one);
    FA_TRY(grow(job->cp, kBegun, uint64_t(2 * job->segments())));
    FA_TRY(grow(job->cp, kSend, largest));
    FA_TRY(grow(job->cp, kReceive, largest));
    FA_TRY(grow(job->cp, kLocal, uint64_t(all.used())));
    return grow(job->cp, kPartial, uint64_t(one.used()));
}

// One range of rows against what it sees of one range of keys.
void compute_piece(Job* job, Piece piece, const Partials& partials, char* begun) {
    const Segment& s = *piece.segment;
    Merging m{s.count,
              piece.rows.rows,
              partials.part,
              partials.part_lse,
              job->rows_of(partials.o, s).at(0, piece.local_row, 0),
              job->lse_of(partials.lse, s).at(0, 0, piece.local_row),
              1,
              true};
    m.part.batch = piece.rows.rows * m.part.row;
    m.part_lse.head = piece.rows.rows;
    m.part_lse.batch = piece.rows.rows * job->d.heads_q;
    piece.partial = true;
    piece.o = *begun ? m.part : m.into;
    piece.lse = *begun ? m.part_lse : m.into_lse;
    attend(job, piece);
    if (*begun) merge(job, m);
    *begun = 1;
}

// All are rounded to o's type. Rows that saw no key have no part.
void finish(Job* job, const Partials& partials, const char* begun) {
    for (Segments s(*job); s.next();) {
        int64_t local = 0;
        for (int32_t i = 0; i < s->own_rows.count; local += s->own_rows.at[i++].rows) {
            const int64_t rows = s->own_rows.at[i].rows;
            const View from = job->rows_of(partials.o, *s).at(0, local, 0);
            const LseView from_lse = job->lse_of(partials.lse, *s).at(0, 0, local);
            merge(job, {s->count, rows, from, from_lse, job->rows_of(job->o, *s).at(0, local, 0), job->lse_of(job->lse, *s).at(0, 0, local),
                        begun[2 * s.index() + i], false});
        }
    }
}

fa_status_t run(Job* job) {
    Slab* slab = job->cp->slab;
    Shares all(slab[kLocal].data), one(slab[kPartial].data);
    const Partials p = lay_out(*job, &all, &one);
    char* const begun = slab[kBegun].data;
    memset(begun, 0, size_t(2 * job->segments()));
    char *here = slab[kSend].data, *coming = slab[kReceive].data;
    pack_own(job, shard_of(*job, job->rank, here));
    for (int32_t step = 0; step < job->ranks; step++) {
        const int32_t owner = owner_at(*job, step);
        Group group(job->cp);
        pass_on(*job, step, here, coming, &group);
        FA_TRY(group.start());
        each_ring_piece(job, owner, shard_of(*job, owner, here), [&](const Piece& piece, int64_t segment, int32_t range, const auto&) {
            compute_piece(job, piece, p, begun + 2 * segment + range);
        });
        FA_TRY(group.wait("keys and values of the rank before"));
        char* const sent = here;
        here = coming;
        coming = sent;
    }
    finish(job, p, begun);
    return FA_OK;
}

}  // namespace

extern const Method kRingAttention{FA_CP_METHOD_RING, "ring", check, {prepare, run, ring_bytes, ring_minimum}, &kRingBackward};

}  // namespace cp
}  // namespace fa
