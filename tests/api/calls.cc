#include "calls.h"
#include <cmath>

namespace {

constexpr size_t kEnough = 4096;  // bytes of any tensor here

void sizes(fa_attention_desc_t* desc) {
    desc->q_dtype = FA_F32;
    desc->batch = 2;
    desc->heads_q = 4;
    desc->heads_k = 2;
    desc->seqlen_q = 3;
    desc->seqlen_k = 5;
    desc->dim_qk = 8;
    desc->dim_v = 4;
}

void dense(int64_t* stride, int64_t b, int64_t c, int64_t d) {
    const int64_t s[4] = {b * c * d, c * d, d, 1};
    memcpy(stride, s, sizeof s);
}

// Two ranges of keys for each of 2 · 4 · 3 rows.
const int32_t* ranges(fa_attention_desc_t* desc, Memory* memory) {
    desc->operands |= FA_OPERAND_KEY_RANGES;
    desc->key_range_max = 2;
    dense(desc->key_range_stride, 4, 3, 2);
    std::vector<int32_t> pairs;
    for (int row = 0; row < 24; row++) pairs.insert(pairs.end(), {-1, 2, 3, 9});
    return memory->array(pairs);
}

// The rotary tables of 5 positions and 4 dims.
const float* cosines(Memory* memory) {
    float* table = memory->make<float>(5 * 2);
    for (int i = 0; i < 10; i++) table[i] = float(std::cos(i));
    return table;
}

// An append's or a rotation's.
template <class C>
void set_rotation(C* c) {
    c->a.max_position = 5;
    c->a.rotary_dim = 4;
    c->a.cos = cosines(&c->memory);
    c->a.sin = cosines(&c->memory);
}

}  // namespace

void plain(Forward* call) {
    sizes(&call->d);
    call->a.q = call->memory.make<char>(kEnough, 0);
    call->a.k = call->memory.make<char>(kEnough, 0);
    call->a.v = call->memory.make<char>(kEnough, 0);
    call->a.o = call->memory.make<char>(kEnough, 0x77);
}

void padded(Forward* call) {
    plain(call);
    fa_attention_desc_t& d = call->d;
    fa_forward_args_t& a = call->a;
    Memory& m = call->memory;
    d.q_dtype = FA_E5M2;
    d.k_dtype = FA_I8;
    d.o_dtype = FA_E4M3;
    d.bias_dtype = FA_F16;
    d.flags = FA_CAUSAL | FA_WINDOW | FA_SCALE_EXPLICIT | FA_DETERMINISTIC;
    d.alignment = FA_ALIGN_EXPLICIT;
    d.scale = 0.5f;
    d.softcap = 30.0f;
    d.dropout_p = 0.25f;
    d.scores_stage = FA_SCORES_BIASED;
    d.window_left = 3;
    d.window_right = -1;
    d.chunk = 4;
    d.kv_batch = 3;
    d.num_splits = 2;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS |
                 FA_OPERAND_CAUSAL_OFFSET | FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX |
                 FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE | FA_OPERAND_SCORES |
                 FA_OPERAND_RNG_STATE;
    dense(d.bias_stride, 4, 3, 5);
    dense(d.mask_stride, 4, 3, 5);
    dense(d.scores_stride, 4, 3, 5);
    d.k_descale_stride[2] = d.v_descale_stride[2] = 1;
    d.q_descale_stride[0] = 12;
    d.q_descale_stride[1] = 4;
    d.q_descale_stride[2] = 1;
    d.alibi_batch_stride = 4;
    a.key_ranges = ranges(&d, &m);
    a.lse = m.make<float>(24, 7.0f);
    a.scores = m.make<float>(120, 7.0f);
    a.bias = m.make<uint16_t>(120);
    a.bias_scale = m.make<float>(4, 0.5f);
    a.mask = m.make<uint8_t>(120, 1);
    a.alibi_slopes = m.make<float>(8, 0.5f);
    a.sinks = m.make<float>(4);
    a.causal_offset = m.array<int32_t>({0, 1});
    a.seqused_q = m.array<int32_t>({3, 2});
    a.seqused_k = m.array<int32_t>({4, 5});
    a.leftpad_k = m.array<int32_t>({0, 2});
    a.kv_batch_idx = m.array<int32_t>({2, 0});
    a.q_descale = m.make<float>(24, 1.0f);
    a.k_descale = m.make<float>(2, 1.0f);
    a.v_descale = m.make<float>(2, 1.0f);
    a.o_scale = m.make<float>(1, 1.0f);
    a.rng_state = m.make<uint64_t>(2, 1);
}

// Factors of two heads' blocks of dims, for each slot.
static void factors_of_dims(int64_t* stride, int64_t* block, int64_t dims) {
    const int64_t s[4] = {20, 4, 2, 1};
    memcpy(stride, s, sizeof s);
    block[1] = dims;
}

void scaled(Forward* call) {
    plain(call);
    fa_attention_desc_t& d = call->d;
    Memory& m = call->memory;
    d.k_dtype = FA_U4;
    d.v_dtype = FA_E2M1;
    d.k_tail_dtype = d.v_descale_dtype = FA_BF16;
    d.k_descale_dtype = FA_F16;
    d.dim_tail = 2;
    d.operands =
        FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;
    factors_of_dims(d.k_descale_stride, d.k_descale_block, 3);
    factors_of_dims(d.v_descale_stride, d.v_descale_block, 2);
    call->a.q_tail = m.make<float>(48);
    call->a.k_tail = m.make<uint16_t>(40);
    call->a.k_descale = m.make<uint16_t>(40);
    call->a.v_descale = m.make<uint16_t>(40);
    call->a.k_shift = m.make<uint16_t>(40);
    call->a.v_shift = m.make<uint16_t>(40);
}

void listed(Forward* call) {
    plain(call);
    fa_attention_desc_t& d = call->d;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;
    d.list_heads = 2, d.list_max = 3;
    dense(d.list_stride, 2, 3, 3);
    d.list_count_stride[0] = 6, d.list_count_stride[1] = 3, d.list_count_stride[2] = 1;
    call->a.lse = call->memory.make<float>(24, 7.0f);
    call->a.key_list = call->memory.make<int32_t>(36, 4);
    call->a.full_list = call->memory.make<int32_t>(36, -1);
    call->a.key_list_count = call->memory.make<int32_t>(12, 1);
    call->a.full_list_count = call->memory.make<int32_t>(12, 3);
}

void slotted(Forward* call) {
    plain(call);
    fa_attention_desc_t& d = call->d;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT;
    d.list_space = FA_LIST_SLOTS;
    d.page_size = 2, d.num_pages = 5, d.seqlen_k = 77;  // the last is not read
    d.list_heads = 2, d.list_max = 3;
    dense(d.list_stride, 2, 3, 3);
    d.list_count_stride[0] = 6, d.list_count_stride[1] = 3, d.list_count_stride[2] = 1;
    call->a.lse = call->memory.make<float>(24, 7.0f);
    call->a.key_list = call->memory.make<int32_t>(36, 9);
    call->a.key_list_count = call->memory.make<int32_t>(12, 3);
}

void packed(Forward* call) {
    plain(call);
    call->d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_Q | FA_OPERAND_LSE;
    call->d.total_q = 6;
    call->d.total_k = 8;
    call->a.cu_seqlens_q = call->memory.array<int32_t>({0, 2, 5});
    call->a.cu_seqlens_k = call->memory.array<int32_t>({1, 6, 8});
    call->a.seqused_q = call->memory.array<int32_t>({2, 1});
    call->a.lse = call->memory.make<float>(24, 7.0f);
}

void paged(Forward* call) {
    plain(call);
    call->d.operands =
        FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_DEVICE_STATUS;
    call->a.device_status = call->memory.make<uint32_t>(1, 0);
    call->d.page_size = 2;
    call->d.num_pages = 5;
    call->d.kv_batch = 3;
    call->a.seqused_k = call->memory.array<int32_t>({4, 5});
    call->a.leftpad_k = call->memory.array<int32_t>({0, 2});
    call->a.kv_batch_idx = call->memory.array<int32_t>({2, 1});
    // Row 0 is nobody's, a page of left padding and the last of four keys are not used: none of these is read.
    call->a.page_table = call->memory.array<int32_t>({-1, -1, -1, 99, 0, 3, 4, 1, -7});
}

namespace {

void gradients(Backward* call) {
    sizes(&call->d);
    BackwardArgs& a = call->a;
    for (const void** in : {&a.f.q, &a.f.k, &a.f.v, &a.dout}) *in = call->memory.make<char>(kEnough, 0);
    a.f.o = call->memory.make<char>(kEnough, 0);
    call->d.operands = FA_OPERAND_LSE;
    for (void** out : {&a.dq, &a.dk, &a.dv}) *out = call->memory.make<char>(kEnough, 0x77);
    a.f.lse = call->memory.make<float>(24, 1.0f);
}

}  // namespace

void backward_plain(Backward* call) { gradients(call); }

void backward_padded(Backward* call) {
    gradients(call);
    fa_attention_desc_t& d = call->d;
    BackwardArgs& a = call->a;
    Memory& m = call->memory;
    d.q_dtype = FA_BF16;
    d.o_dtype = FA_F32;
    d.bias_dtype = FA_F16;
    d.flags = FA_CAUSAL | FA_WINDOW | FA_SCALE_EXPLICIT | FA_DETERMINISTIC;
    d.alignment = FA_ALIGN_EXPLICIT;
    d.scale = 0.5f;
    d.softcap = 30.0f;
    d.dropout_p = 0.25f;
    d.window_left = 3;
    d.window_right = -1;
    d.chunk = 4;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS |
                 FA_OPERAND_CAUSAL_OFFSET | FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_RNG_STATE;
    a.f.key_ranges = ranges(&d, &m);
    d.alibi_batch_stride = 4;
    dense(d.bias_stride, 4, 3, 5);
    d.bias_stride[1] = 0;
    dense(d.mask_stride, 4, 3, 5);
    a.dlse = m.make<float>(24, 1.0f);
    a.dbias = m.make<float>(120, 7.0f);
    a.dsinks = m.make<float>(4, 7.0f);
    a.f.bias = m.make<uint16_t>(120);
    a.f.bias_scale = m.make<float>(4, 0.5f);
    a.f.mask = m.make<uint8_t>(120, 1);
    a.f.alibi_slopes = m.make<float>(8, 0.5f);
    a.f.sinks = m.make<float>(4);
    a.f.causal_offset = m.array<int32_t>({0, 1});
    a.f.seqused_q = m.array<int32_t>({3, 2});
    a.f.seqused_k = m.array<int32_t>({4, 5});
    a.f.leftpad_k = m.array<int32_t>({0, 2});
    a.f.rng_state = m.make<uint64_t>(2, 1);
}

void backward_packed(Backward* call) {
    gradients(call);
    call->d.q_dtype = FA_F16;
    call->d.operands = FA_OPERAND_LSE | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    call->d.total_q = 6;
    call->d.total_k = 8;
    call->a.flags = FA_BACKWARD_ACCUMULATE;
    for (void** out : {&call->a.dq, &call->a.dk, &call->a.dv}) *out = call->memory.make<float>(kEnough / 4, 1.0f);
    call->a.f.cu_seqlens_q = call->memory.array<int32_t>({0, 2, 5});
    call->a.f.cu_seqlens_k = call->memory.array<int32_t>({1, 6, 8});
}

void merge_padded(Merge* call) {
    sizes(&call->d);
    call->d.o_dtype = FA_E4M3;
    call->d.operands = FA_OPERAND_LSE | FA_OPERAND_SINKS | FA_OPERAND_O_SCALE | FA_OPERAND_SEQUSED_Q;
    call->a.parts = 3;
    call->a.o_parts = call->memory.make<float>(3 * 96, 1.0f);
    call->a.lse_parts = call->memory.make<float>(3 * 24, 0.0f);
    call->a.o = call->memory.make<char>(96, 0x77);
    call->a.lse = call->memory.make<float>(24, 7.0f);
    call->a.sinks = call->memory.make<float>(4);
    call->a.o_scale = call->memory.make<float>(1, 1.0f);
    call->a.seqused_q = call->memory.array<int32_t>({3, 2});
}

void merge_packed(Merge* call) {
    sizes(&call->d);
    call->d.operands = FA_OPERAND_LSE | FA_OPERAND_CU_SEQLENS_Q;
    call->d.total_q = 6;
    call->a.flags = FA_MERGE_ACCUMULATE;
    call->a.parts = 2;
    call->a.o_parts = call->memory.make<float>(2 * 96, 1.0f);
    call->a.lse_parts = call->memory.make<float>(2 * 24, 0.0f);
    call->a.o = call->memory.make<float>(96, 7.0f);
    call->a.lse = call->memory.make<float>(24, 7.0f);
    call->a.cu_seqlens_q = call->memory.array<int32_t>({0, 2, 5});
}

void append_paged(Append* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.k_dtype = FA_I8;
    call->d.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX |
                       FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_DEVICE_STATUS;
    call->a.device_status = m.make<uint32_t>(1, 0);
    call->d.page_size = 2;
    call->d.num_pages = 5;
    call->d.kv_batch = 3;
    for (int64_t* stride : {call->d.k_descale_stride, call->d.v_descale_stride}) {
        stride[0] = 4;
        stride[1] = 2;
        stride[2] = 1;
    }
    call->a.flags = FA_APPEND_DYNAMIC_SCALE | FA_ROTARY_INTERLEAVED;
    call->a.seqlen_new = 2;
    call->a.k_new = m.make<float>(64, 1.0f);
    call->a.v_new = m.make<float>(32, 1.0f);
    call->a.k = m.make<int8_t>(160, 0x77);
    call->a.v = m.make<int8_t>(80, 0x77);
    call->a.k_descale = m.make<float>(20, 7.0f);
    call->a.v_descale = m.make<float>(20, 7.0f);
    call->a.seqused_new = m.array<int32_t>({2, 1});
    call->a.seqused_k = m.array<int32_t>({2, 3});
    call->a.leftpad_k = m.array<int32_t>({0, 2});
    call->a.kv_batch_idx = m.array<int32_t>({2, 1});
    call->a.page_table = m.array<int32_t>({-1, -1, -1, -1, 0, -1, -1, 1, -7});  // the pages of slots 2, 3 of row 2 and of slot 3 of row 1
    set_rotation(call);
}

void append_scaled(Append* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.k_dtype = FA_U4;
    call->d.v_dtype = FA_E4M3;
    call->d.k_descale_dtype = FA_F16;
    call->d.v_descale_dtype = FA_E8M0;
    call->d.dim_tail = 2;
    call->d.operands = FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT;
    factors_of_dims(call->d.k_descale_stride, call->d.k_descale_block, 3);
    factors_of_dims(call->d.v_descale_stride, call->d.v_descale_block, 2);
    call->a.flags = FA_APPEND_DYNAMIC_SCALE;
    call->a.seqlen_new = 2;
    call->a.k_new = m.make<float>(64, 1.0f);
    call->a.v_new = m.make<float>(32, 1.0f);
    call->a.k = m.make<uint8_t>(60);
    call->a.v = m.make<uint8_t>(80);
    call->a.k_tail = m.make<float>(40);
    call->a.k_descale = m.make<uint16_t>(40);
    call->a.k_shift = m.make<uint16_t>(40);
    call->a.v_descale = m.make<uint8_t>(40);
}

void append_packed(Append* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.q_dtype = FA_BF16;
    call->d.k_dtype = FA_F32;
    call->a.seqlen_new = 2;
    call->a.total_new = 3;
    call->a.k_new = m.make<uint16_t>(48);
    call->a.v_new = m.make<uint16_t>(24);
    call->a.k = m.make<float>(160, 7.0f);
    call->a.v = m.make<float>(80, 7.0f);
    call->a.cu_seqlens_new = m.array<int32_t>({0, 2, 3});
    call->a.positions = m.array<int32_t>({4, -1, 0});
}

void rotary_padded(Rotary* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.operands = FA_OPERAND_SEQUSED_Q;
    call->a.x = m.make<float>(192, 1.0f);
    call->a.out = m.make<float>(192, 7.0f);
    set_rotation(call);
    call->a.seqused = m.array<int32_t>({3, 2});
    call->a.position_offset = m.array<int32_t>({2, 3});
}

void rotary_of_k(Rotary* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.k_dtype = FA_F16;
    call->a.flags = FA_ROTARY_OF_K;
    call->a.x = call->a.out = m.make<uint16_t>(160);
    set_rotation(call);
}

void rotary_packed(Rotary* call) {
    Memory& m = call->memory;
    sizes(&call->d);
    call->d.q_dtype = FA_F16;
    call->d.operands = FA_OPERAND_CU_SEQLENS_Q;
    call->d.total_q = 6;
    call->a.flags = FA_ROTARY_INTERLEAVED;
    call->a.x = call->a.out = m.make<uint16_t>(192);
    set_rotation(call);
    call->a.cu_seqlens = m.array<int32_t>({0, 2, 5});
    call->a.positions = m.array<int32_t>({4, 0, 1, 2, 3, -9});  // the last row is nobody's
}
