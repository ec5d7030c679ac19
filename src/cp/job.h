// A call, read: the whole problem with its defaults, this rank's tensors, and how both are cut into pieces that the core computes.
#pragma once
#include "cp/cp.h"
#include "cp/exchange.h"
#include "cp/partition.h"
#include "spec/mask.h"

namespace fa {
namespace cp {

// Rows of a tensor in memory. Distances are in bytes.
struct View {
    char* data;
    int64_t unit;  // bytes of what a stride of the descriptor counts
    int64_t batch, row, head;
    int64_t heads, head_bytes;  // of a row: head_bytes of each head
    int64_t row_bytes() const { return heads * head_bytes; }
    View at(int64_t b, int64_t i, int64_t h) const {
        View v = *this;
        if (v.data) v.data += b * batch + i * row + h * head;
        return v;
    }
    View of_heads(int64_t first, int64_t count) const {
        View v = at(0, 0, first);
        v.heads = count;
        return v;
    }
};

// Dense [batch][rows][heads][dim], as `like` in all else.
View dense(const View& like, void* data, int64_t rows);

// The f32 values of LSE, in elements.
struct LseView {
    float* data;
    int64_t batch, head, row;
    LseView at(int64_t b, int64_t h, int64_t i) const {
        LseView v = *this;
        if (v.data) v.data += b * batch + h * head + i * row;
        return v;
    }
};

// Sequences that are cut alike: all of padded tensors, or one of packed ones.
struct Segment {
    int64_t first, count;        // sequences
    int64_t rows, keys;          // of each, on all ranks together
    Ranges own_rows, own_keys;   // this rank's
    int64_t row_base, key_base;  // local packed row and key where it begins; 0 in padded tensors
};

struct Job {
    fa_cp_s* cp;
    int32_t op;             // FA_OP_FORWARD or FA_OP_BACKWARD
    fa_attention_desc_t d;  // no zero types, heads and dims
    fa_cp_desc_t spread;
    fa_forward_args_t a;  // of a backward: the forward's, with the backward's own stream
    fa_backward_args_t g;
    // The args' arrays where the host can read them; NULL: not given, or not read.
    const int32_t *cu_seqlens_q, *cu_seqlens_k, *causal_offset, *seqused_q, *seqused_k, *leftpad_k;
    Partition partition;
    int32_t rank, ranks;
    bool packed_q, packed_k, positions;  // does the mask or ALiBi need to know where rows and keys are?
    int64_t local_rows, local_keys;      // of this rank: of a sequence, or of all where packed
    View q, k, v, o;
    LseView lse;
    View dout, dq, dk, dv;  // of a backward; data is NULL where a gradient is not wanted
    LseView dlse;
    float* dsinks;         // this rank's share
    fa_status_t computed;  // the first failure of the core; the exchange goes on without results

    bool accumulates() const { return (g.flags & FA_BACKWARD_ACCUMULATE) != 0; }
    int64_t dropout_heads() const { return a.dropout_heads > 0 ? a.dropout_heads : d.heads_q; }
    bool has(uint64_t operand) const { return (d.operands & operand) != 0; }
    int64_t row_batch() const { return packed_q ? 1 : d.batch; }  // of the local tensors
    int64_t key_batch() const { return packed_k ? 1 : d.batch; }
    int64_t segments() const { return packed_q || packed_k ? d.batch : d.batch > 0; }
    Segment segment(int64_t index, const Segment* previous) const;
    // Keys that rows [row, row + rows) of a segment's sequences may see, as one range.
    Range band(const Segment& segment, const Range& rows) const;
    int64_t diagonal(const Segment& segment, int64_t sequence) const;
    // This rank's part of a segment, from its first sequence and first local row or key on.
    View rows_of(const View& view, const Segment& segment) const { return view.at(packed_q ? 0 : segment.first, segment.row_base, 0); }
    View keys_of(const View& view, const Segment& segment) const { return view.at(packed_k ? 0 : segment.first, segment.key_base, 0); }
    LseView lse_of(const LseView& view, const Segment& segment) const { return view.at(packed_q ? 0 : segment.first, 0, segment.row_base); }
    int64_t keys_on(int32_t r) const;  // as local_keys, of any rank
};

// for (Segments s(job); s.next();) … *s …
class Segments {
  public:
    explicit Segments(const Job& job) : job_(job) {}
    bool next() {
        if (++index_ >= job_.segments()) return false;
        current_ = job_.segment(index_, index_ > 0 ? &current_ : nullptr);
        return true;
    }
    const Segment& operator*() const { return current_; }
    const Segment* operator->() const { return &current_; }
    int64_t index() const { return index_; }

  private:
    const Job& job_;
    Segment current_{};
    int64_t index_ = -1;
};

// Checks and reads the call's structs; args: the op's. `fingerprint` is what ranks compare.
fa_status_t read_job(fa_cp_s* cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args, Job* job,
                     Fingerprint* fingerprint);
// What a backward has beside the forward's: its args before all else is read, and its tensors after.
// Refused: what of a descriptor no method knows.
fa_status_t check_known(const fa_attention_desc_t&, int32_t ranks, Message*);
fa_status_t read_backward_args(const fa_backward_args_t* user, Job* job, Message*);
fa_status_t read_gradients(Job* job, Message*);
// Which gradients ranks compute for each other, and how they are written.
uint64_t gradients_asked(const Job& job);

// Where the core takes job's causal offsets of a piece or of this rank's keys: kOffsets of the host, filled by the caller, or a copy of it.
fa_status_t give_offsets(Job* job, int64_t count, const int32_t** given);

// What a call of the core gave: a failure is the job's, with its sentence.
fa_status_t checked(Job* job, fa_status_t status);

// One call of the core: rows of one range against neighbouring keys. Views begin at the piece's first row, key and head.
struct Piece {
    const Segment* segment;
    Range rows, keys;     // numbers within the whole sequence
    int64_t local_row;    // of the segment: where bias and mask have these rows
    int64_t head, heads;  // query heads
    View q, k, v, o;
    LseView lse;
    bool partial;  // an f32 o and LSE for a merge, without sinks
};
fa_status_t attend(Job* job, const Piece& piece);

// The gradients of a piece, added to f32. Its o and LSE are the whole's. NULL where one is not wanted; without dsinks the piece
// leaves sinks to the LSE.
struct PieceGradients {
    View dq, dk, dv;
    float* dsinks;
};
fa_status_t differentiate(Job* job, const Piece& piece, const PieceGradients& gradients);

// dsinks of this rank's rows, which depend on no key, added to job->dsinks.
void differentiate_sinks(Job* job);

// Merges an f32 o and its LSE into what `into` holds (accumulate), or rounds it to o's type with sinks and o_scale.
struct Merging {
    int64_t sequences, rows;
    View part;
    LseView part_lse;
    View into;
    LseView into_lse;
    int64_t parts;  // 1; 0: rows that see no key
    bool accumulate;
};
fa_status_t merge(Job* job, const Merging& merging);

}  // namespace cp
}  // namespace fa
