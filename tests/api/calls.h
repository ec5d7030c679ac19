// Good calls of every operation, small enough to spoil one thing at a time.
#pragma once
#include <flashattn.h>
#include <cstring>
#include <deque>
#include <vector>

// All memory of a call, to see whether a refused one touched any of it.
class Memory {
  public:
    template <class T>
    T* make(size_t count, T value = {}) {
        const size_t bytes = (count * sizeof(T) + kSlack + 255) / 256 * 256;
        blocks_.emplace_back(bytes + 256, char(0x5a));
        char* at = blocks_.back().data();
        at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
        T* first = reinterpret_cast<T*>(at);
        for (size_t i = 0; i < count; i++) memcpy(first + i, &value, sizeof value);
        return first;
    }
    template <class T>
    T* array(std::initializer_list<T> values) {
        T* to = make<T>(values.size());
        memcpy(to, values.begin(), values.size() * sizeof(T));
        return to;
    }
    template <class T>
    T* array(const std::vector<T>& values) {
        T* to = make<T>(values.size());
        memcpy(to, values.data(), values.size() * sizeof(T));
        return to;
    }
    const std::deque<std::vector<char>>& blocks() const { return blocks_; }

  private:
    static constexpr size_t kSlack = 1024;  // room for a pointer that tests move, and for the largest output in place of the smallest array
    std::deque<std::vector<char>> blocks_;
};

struct Forward {
    static constexpr int32_t op = FA_OP_FORWARD;
    Memory memory;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    fa_status_t run(fa_handle_t h) const { return fa_forward_ex(h, &d, &a); }
};

struct BackwardArgs : fa_backward_args_t {
    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    BackwardArgs() : fa_backward_args_t(FA_BACKWARD_ARGS_INIT) {}
};

struct Backward {
    static constexpr int32_t op = FA_OP_BACKWARD;
    Memory memory;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    BackwardArgs a;
    bool without_forward = false;
    fa_backward_args_t args() const {
        fa_backward_args_t full = a;
        full.forward = without_forward ? nullptr : &a.f;
        return full;
    }
    fa_status_t run(fa_handle_t h) const {
        const fa_backward_args_t full = args();
        return fa_backward(h, &d, &full);
    }
};

struct Merge {
    static constexpr int32_t op = FA_OP_MERGE;
    Memory memory;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    fa_status_t run(fa_handle_t h) const { return fa_merge(h, &d, &a); }
};

struct Append {
    static constexpr int32_t op = FA_OP_APPEND_KV;
    Memory memory;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    fa_status_t run(fa_handle_t h) const { return fa_append_kv(h, &d, &a); }
};

struct Rotary {
    static constexpr int32_t op = FA_OP_ROTARY;
    Memory memory;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
    fa_status_t run(fa_handle_t h) const { return fa_rotary(h, &d, &a); }
};

// batch 2, heads 4 over 2, 3 rows, 5 keys, dims 8 and 4; f32, no operand.
void plain(Forward*);
// The same with 8-bit types and every operand that goes with padded sequences; three sequences in the cache.
void padded(Forward*);
// Packed: sequences of 2 and 3 rows in 6, of 5 and 2 keys in 8; LSE.
void listed(Forward*);
// Lists of three slots, of five pages of 2, for each row and two heads.
void slotted(Forward*);
void packed(Forward*);
// Five pages of 2 keys, a table of 3 rows by kv_batch_idx; seqused_k 4 and 5, left padding 0 and 2.
void paged(Forward*);

// plain's with tails of 2 dims, k of u4 by f16 factors and shifts for 3 dims, v of e2m1 by bf16 ones for 2.
void scaled(Forward*);

// f32 without any operand, all gradients.
void backward_plain(Backward*);
// bf16 with f32 o, and every operand that goes with padded sequences; dlse, dbias over all heads, dsinks.
void backward_padded(Backward*);
// f16 accumulated in f32: packed as above.
void backward_packed(Backward*);

// Three parts, padded: o e4m3 with a scale, LSE, sinks, seqused_q.
void merge_padded(Merge*);
// Two parts, packed as above: f32 with LSE, accumulated.
void merge_packed(Merge*);

// Two new tokens each, quantised to int8 with scales of their own, into the pages above; seqused_k 2 and 3, left padding 0 and 2, rotated.
void append_paged(Append*);
// bf16 into a dense f32 cache of 5 slots: packed tokens by cu_seqlens_new {0, 2, 3} at explicit positions.
void append_packed(Append*);
// f32 into u4 with f16 factors and shifts for 3 dims, and e4m3 with e8m0 factors for 2, all computed; a tail of 2 dims of k.
void append_scaled(Append*);

// seqused_q and position_offset, out of place.
void rotary_padded(Rotary*);
// Packed, positions, in place.
void rotary_packed(Rotary*);
// f16 keys of an f32 descriptor without any operand, in place.
void rotary_of_k(Rotary*);
