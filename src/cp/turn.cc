#include "cp/turn.h"

namespace fa {
namespace cp {

static int64_t full_rows(const Job& job, bool of_keys) {
    if (of_keys) return job.packed_k ? job.d.total_k : job.d.seqlen_k;
    return job.packed_q ? job.d.total_q : job.d.seqlen_q;
}
static int64_t full_batch(const Job& job, bool of_keys) { return of_keys ? job.key_batch() : job.row_batch(); }

Turned turned(const Job& job, const View& local, bool of_keys, Shares* shares) {
    const int64_t rows = full_rows(job, of_keys);
    Turned t{local, dense(local.of_heads(0, local.heads / job.ranks), nullptr, rows), of_keys};
    t.full.data = shares->take(bytes_of(t.full, full_batch(job, of_keys), rows));
    return t;
}

void clear_full(const Job& job, const Turned& turned, Moves* moves) {
    moves->clear(turned.full, full_batch(job, turned.of_keys), full_rows(job, turned.of_keys));
}

Turned turned(const Job& job, const LseView& local, Shares* shares) {
    constexpr int64_t kUnit = sizeof(float);
    const View v{
        reinterpret_cast<char*>(local.data), kUnit, local.batch * kUnit, local.row * kUnit, local.head * kUnit, job.d.heads_q, kUnit};
    Turned t = turned(job, v, false, shares);
    t.full.head = t.full.batch / t.full.heads;  // [head][row]
    t.full.row = kUnit;
    return t;
}

LseView full_lse(const Turned& lse) {
    constexpr int64_t kUnit = sizeof(float);
    return {reinterpret_cast<float*>(lse.full.data), lse.full.batch / kUnit, lse.full.head / kUnit, lse.full.row / kUnit};
}

// Rows that a rank has, of all sequences.
static int64_t all_rows(const Job& job, int32_t rank, bool of_keys) {
    int64_t n = 0;
    for (Segments s(job); s.next();) n += s->count * ranges_of(job.partition, of_keys ? s->keys : s->rows, rank).rows();
    return n;
}

// Of a rank's rows of one rank's heads.
static int64_t message_bytes(const Job& job, const Turning& turning, int32_t rank) {
    const int64_t rows = all_rows(job, rank, false), keys = all_rows(job, rank, true);
    int64_t bytes = 0;
    for (int i = 0; i < turning.count; i++) bytes += (turning.tensor[i].of_keys ? keys : rows) * turning.tensor[i].full.row_bytes();
    return bytes;
}

// A segment's part of a tensor: this rank's rows of another's heads, and all rows of this rank's heads.
static View local_of(const Job& job, const Turned& turned, const Segment& segment, int32_t heads_of) {
    return (turned.of_keys ? job.keys_of(turned.local, segment) : job.rows_of(turned.local, segment))
        .of_heads(heads_of * turned.full.heads, turned.full.heads);
}
static View full_of(const Job& job, const Turned& turned, const Segment& segment) {
    const bool packed = turned.of_keys ? job.packed_k : job.packed_q;
    const int32_t* const cu = turned.of_keys ? job.cu_seqlens_k : job.cu_seqlens_q;
    return turned.full.at(packed ? 0 : segment.first, packed ? cu[segment.first] : 0, 0);
}

// Calls move(view, sequences, first row, rows) for this rank's rows of the peer's heads; and, in the same order, for the peer's
// rows of this rank's heads.
template <class Move>
static void each_local(const Job& job, const Turning& turning, int32_t peer, const Move& move) {
    for (Segments s(job); s.next();)
        for (int n = 0; n < turning.count; n++) {
            const Ranges& ranges = turning.tensor[n].of_keys ? s->own_keys : s->own_rows;
            const View view = local_of(job, turning.tensor[n], *s, peer);
            int64_t at = 0;
            for (int32_t i = 0; i < ranges.count; at += ranges.at[i++].rows) move(view, s->count, at, ranges.at[i].rows);
        }
}
template <class Move>
static void each_full(const Job& job, const Turning& turning, int32_t peer, const Move& move) {
    for (Segments s(job); s.next();)
        for (int n = 0; n < turning.count; n++) {
            const View view = full_of(job, turning.tensor[n], *s);
            const Ranges ranges = ranges_of(job.partition, turning.tensor[n].of_keys ? s->keys : s->rows, peer);
            for (int32_t i = 0; i < ranges.count; i++) move(view, s->count, ranges.at[i].begin, ranges.at[i].rows);
        }
}

// This rank's own rows of its own heads, which need no message.
static void turn_own(const Job& job, const Turning& turning, Towards side, Moves* moves) {
    for (Segments s(job); s.next();)
        for (int n = 0; n < turning.count; n++) {
            const View local = local_of(job, turning.tensor[n], *s, job.rank), full = full_of(job, turning.tensor[n], *s);
            const Ranges& ranges = turning.tensor[n].of_keys ? s->own_keys : s->own_rows;
            int64_t at = 0;
            for (int32_t i = 0; i < ranges.count; at += ranges.at[i++].rows) {
                if (side == Towards::heads) moves->copy(local, at, full, ranges.at[i].begin, s->count, ranges.at[i].rows, false);
                else moves->copy(full, ranges.at[i].begin, local, at, s->count, ranges.at[i].rows, job.accumulates());
            }
        }
}

int64_t sent_bytes(const Job& job, const Turning& turning, Towards side) {
    return side == Towards::heads ? message_bytes(job, turning, job.rank) * (job.ranks - 1) : received_bytes(job, turning, Towards::heads);
}

int64_t received_bytes(const Job& job, const Turning& turning, Towards side) {
    if (side == Towards::rows) return sent_bytes(job, turning, Towards::heads);
    int64_t sum = 0;
    for (int32_t r = 0; r < job.ranks; r++) sum += r == job.rank ? 0 : message_bytes(job, turning, r);
    return sum;
}

// Do tensors travel as messages of their own, from or to where they lie, instead of all together from and to buffers? In host memory a copy
// costs more than a message of so many bytes; on a device, where a message costs more, all are packed in one launch. The same on all ranks.
static bool travels_apart(const Job& job, const Turning& turning) {
    constexpr int64_t kLeastBytes = 1 << 16;
    int64_t bytes = 0;
    for (int i = 0; i < turning.count; i++)
        bytes += bytes_of(turning.tensor[i].full, full_batch(job, turning.tensor[i].of_keys), full_rows(job, turning.tensor[i].of_keys));
    const int64_t messages = job.segments() * turning.count * 2;  // ranges of a rank
    return !job.cp->device && bytes >= messages * job.ranks * kLeastBytes;
}

// Are the rows one piece of memory?
static bool dense_rows(const View& view, int64_t sequences) {
    return sequences == 1 && view.row == view.row_bytes() && (view.heads == 1 || view.head == view.head_bytes);
}

fa_status_t turn(Job* job, const Turning& turning, Towards side, const char* what) {
    const bool to_heads = side == Towards::heads, apart = travels_apart(*job, turning), adds = !to_heads && job->accumulates();
    Group group(job->cp);
    Moves moves(job);
    char *out = job->cp->slab[kSend].data, *in = job->cp->slab[kReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        char *sent = out, *received = in;
        const auto send_one = [&](const View& view, int64_t sequences, int64_t row, int64_t rows) {
            if (apart && dense_rows(view, sequences)) {
                group.send(peer, view.at(0, row, 0).data, uint64_t(bytes_of(view, sequences, rows)));
                return;
            }
            out = moves.pack(view, sequences, row, rows, out);
            if (!apart) return;
            group.send(peer, sent, uint64_t(out - sent));
            sent = out;
        };
        const auto receive_one = [&](const View& view, int64_t sequences, int64_t row, int64_t rows) {
            const int64_t bytes = bytes_of(view, sequences, rows);
            if (apart && !adds && dense_rows(view, sequences)) {
                group.receive(peer, view.at(0, row, 0).data, uint64_t(bytes));
                return;
            }
            in += bytes;
            if (!apart) return;
            group.receive(peer, received, uint64_t(bytes));
            received = in;
        };
        if (to_heads) {
            each_local(*job, turning, peer, send_one);
            each_full(*job, turning, peer, receive_one);
        } else {
            each_full(*job, turning, peer, send_one);
            each_local(*job, turning, peer, receive_one);
        }
        group.send(peer, sent, uint64_t(out - sent));  // all together, or nothing
        group.receive(peer, received, uint64_t(in - received));
    }
    moves.flush();
    FA_TRY(group.start());
    turn_own(*job, turning, side, &moves);
    moves.flush();
    FA_TRY(group.wait(what));
    char* from = job->cp->slab[kReceive].data;
    const auto unpack_one = [&](const View& view, int64_t sequences, int64_t row, int64_t rows) {
        if (apart && !adds && dense_rows(view, sequences)) return;
        from = adds ? moves.add(view, sequences, row, rows, from) : moves.unpack(view, sequences, row, rows, from);
    };
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        if (to_heads) each_full(*job, turning, peer, unpack_one);
        else each_local(*job, turning, peer, unpack_one);
    }
    moves.flush();
    return FA_OK;
}

}  // namespace cp
}  // namespace fa
