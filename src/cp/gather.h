// Keys and values of other ranks: who needs which, their way into one buffer, a chunk of heads at a time, and the pieces that are
// computed from it.
#pragma once
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {

Range overlap_of(const Range& a, const Range& b);

// Keys of one sequence that a rank needs: ascending ranges, apart from each other.
Ranges needed_keys(const Job& job, const Segment& segment, int32_t rank);

// Calls use(segment, range of keys, the owner's local row where it begins, rows of the receiver's buffer before it) for all that
// `owner` has and `receiver` needs, in one order on both.
template <class Use>
void each_shared(const Job& job, int32_t owner, int32_t receiver, const Use& use) {
    int64_t buffer = 0;
    for (Segments s(job); s.next();) {
        const Ranges keys = ranges_of(job.partition, s->keys, owner), needed = needed_keys(job, *s, receiver);
        for (int32_t n = 0; n < needed.count; n++) {
            int64_t local = 0;
            for (int32_t k = 0; k < keys.count; local += keys.at[k++].rows) {
                const Range shared = overlap_of(keys.at[k], needed.at[n]);
                if (shared.rows > 0)
                    use(*s, shared, local + shared.begin - keys.at[k].begin, buffer + shared.begin - needed.at[n].begin, needed.at[n]);
            }
            buffer += s->count * needed.at[n].rows;
        }
    }
}

// Keys that `owner` has and `receiver` needs, of all sequences.
int64_t shared_keys(const Job& job, int32_t owner, int32_t receiver);

// Heads are gathered in chunks of whole groups that share a k and a v head.
struct Chunks {
    int64_t count, q, k, v;  // heads of one
};
Chunks chunks_of(const Job& job);
fa_status_t check_chunks(const Job& job, Message* message);

// Keys are [sequence][key][heads of the chunk][dim] for each needed range in turn, values behind them.
struct Gathered {
    View k, v;
    int64_t keys;
};
Gathered lay_out_gathered(const Job& job, const Chunks& chunks, Shares* shares);

// The buffers kSend, kReceive and kKeys; a chunk's messages; and what came, with this rank's own keys, to their places.
fa_status_t prepare_gather(Job* job);
fa_status_t start_gather(Job* job, const Chunks& chunks, int64_t chunk, Group* group);
void place_gathered(Job* job, const Chunks& chunks, int64_t chunk, const Gathered& gathered);
int64_t gather_bytes(const Job& job);

// Calls use(piece, place) for each range of rows with the keys that it sees.
template <class Use>
void each_gathered_piece(Job* job, const Chunks& chunks, int64_t chunk, const Gathered& gathered, const Use& use) {
    int64_t buffer = 0;
    for (Segments s(*job); s.next();) {
        const Ranges needed = needed_keys(*job, *s, job->rank);
        int64_t local = 0;
        for (int32_t i = 0; i < s->own_rows.count; local += s->own_rows.at[i++].rows) {
            const Range band = job->band(*s, s->own_rows.at[i]);
            Piece p{};
            p.segment = &*s;
            p.rows = s->own_rows.at[i];
            p.local_row = local;
            p.head = chunk * chunks.q;
            p.heads = chunks.q;
            p.q = job->rows_of(job->q, *s).at(0, local, chunk * chunks.q);
            p.o = job->rows_of(job->o, *s).at(0, local, chunk * chunks.q);
            p.lse = job->lse_of(job->lse, *s).at(0, chunk * chunks.q, local);
            p.k = gathered.k;
            p.v = gathered.v;
            Place place{0, 0};
            int64_t first = buffer;
            for (int32_t n = 0; n < needed.count && band.rows > 0; first += s->count * needed.at[n++].rows) {
                if (overlap_of(needed.at[n], band).rows == 0) continue;
                p.keys = {needed.at[n].begin, band.begin + band.rows - needed.at[n].begin};
                place = {first, needed.at[n].rows};
                p.k = place.in(gathered.k);
                p.v = place.in(gathered.v);
                break;
            }
            use(p, place);
        }
        buffer += s->count * needed.rows();
    }
}

}  // namespace cp
}  // namespace fa
