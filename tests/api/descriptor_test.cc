// Every field of the descriptor, spoiled, as a forward sees it.
#include <climits>
#include <cmath>
#include <cstdio>
#include "backend/options.h"
#include "rules.h"

std::vector<Rule<Forward>> scaled_rows();  // scaled_rows_test.cc
std::vector<Rule<Forward>> slots();        // slots_test.cc

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;
constexpr int64_t kTooLarge = int64_t(1) << 31;
const float kNan = std::nanf(""), kInf = INFINITY;

using Spoil = void (*)(fa_attention_desc_t&);

Rule<Forward> row(void (*good)(Forward*), fa_status_t status, const std::string& says, Spoil spoil) {
    return {good, [spoil](Forward& call) { spoil(call.d); }, status, says, "", true};
}

void set4(int64_t* stride, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t s[4] = {a, b, c, d};
    memcpy(stride, s, sizeof s);
}

using D = fa_attention_desc_t&;

std::string first_unknown_flag() {
    char text[32];
    snprintf(text, sizeof text, "flags is 0x%x:", fa::kAllFlags + 1);
    return text;
}

std::vector<Rule<Forward>> known() {
    return {
        row(plain, F, first_unknown_flag(), [](D d) { d.flags = fa::kAllFlags + 1; }),
        row(plain, F, "flags is 0x80000000:", [](D d) { d.flags = 1u << 31; }),
        row(plain, F, "operands is 0x40000000: bits 0x40000000 are unknown", [](D d) { d.operands = 1 << 30; }),
        row(plain, F, "operands is 0x8000000000000000:", [](D d) { d.operands = 1ull << 63; }),
        row(plain, F, "strided is 0x80:", [](D d) { d.strided = 1 << 7; }),
        row(plain, F, "alignment is 4:", [](D d) { d.alignment = 4; }),
        row(plain, F, "alignment is -1:", [](D d) { d.alignment = -1; }),
        row(plain, F, "q_dtype is 7:", [](D d) { d.q_dtype = 7; }),
        row(plain, F, "q_dtype is -1:", [](D d) { d.q_dtype = -1; }),
        row(plain, F, "k_dtype is 7:", [](D d) { d.k_dtype = 7; }),
        row(plain, F, "k_dtype is -2147483648:", [](D d) { d.k_dtype = INT_MIN; }),
        row(plain, F, "v_dtype is 276:", [](D d) { d.v_dtype = 276; }),
        row(padded, F, "q_descale_dtype is 9:", [](D d) { d.q_descale_dtype = 9; }),
        row(padded, F, "mask_dtype is 49:", [](D d) { d.mask_dtype = 49; }),
        row(plain, F, "precision is 2:", [](D d) { d.precision = 2; }),
        row(plain, F, "precision is -1:", [](D d) { d.precision = -1; }),
        row(plain, F, "list_space is 2:", [](D d) { d.list_space = 2; }),
        row(plain, F, "o_dtype is 2147483647:", [](D d) { d.o_dtype = INT_MAX; }),
        row(padded, F, "bias_dtype is 7:", [](D d) { d.bias_dtype = 7; }),
        row(plain, F, "algorithm is 3:", [](D d) { d.algorithm = 3; }),
        row(plain, F, "algorithm is -1:", [](D d) { d.algorithm = -1; }),
        row(padded, F, "scores_stage is 4:", [](D d) { d.scores_stage = 4; }),
        row(padded, F, "scores_stage is -1:", [](D d) { d.scores_stage = -1; }),
    };
}

std::vector<Rule<Forward>> types() {
    return {
        row(plain, I, "q_dtype is not set:", [](D d) { d.q_dtype = 0; }),
        row(plain, I, "q_dtype is i8: expected one of f32, f16, bf16, e4m3, e5m2", [](D d) { d.q_dtype = FA_I8; }),
        row(plain, I, "o_dtype is i8:", [](D d) { d.o_dtype = FA_I8; }),
        row(plain, I, "q_dtype is q4_0:", [](D d) { d.q_dtype = FA_Q4_0; }),
        row(plain, I, "k_dtype is e8m0:", [](D d) { d.k_dtype = FA_E8M0; }),
        row(plain, I, "v_dtype is bit:", [](D d) { d.v_dtype = FA_BIT; }),
        row(padded, I, "k_descale_dtype is e5m2:", [](D d) { d.k_descale_dtype = FA_E5M2; }),
        row(padded, I, "mask_dtype is f32:", [](D d) { d.mask_dtype = FA_F32; }),
        row(padded, I, "bias_dtype is e4m3:", [](D d) { d.bias_dtype = FA_E4M3; }),
        row(padded, I, "bias_dtype is i8:", [](D d) { d.bias_dtype = FA_I8; }),
        row(plain, I, "bias_dtype is 1: expected 0 without FA_OPERAND_BIAS", [](D d) { d.bias_dtype = FA_F32; }),
        row(plain, U, "algorithm is 1 and", [](D d) { d.algorithm = FA_ALGORITHM_STANDARD, d.q_dtype = FA_F16; }),
        row(plain, U, "algorithm is 1 and",
            [](D d) { d.algorithm = FA_ALGORITHM_STANDARD, d.q_dtype = FA_BF16, d.k_dtype = d.o_dtype = FA_F32; }),
        row(plain, U, "algorithm is 2 and", [](D d) { d.algorithm = FA_ALGORITHM_FLASH1, d.k_dtype = FA_I8; }),
        row(plain, U, "algorithm is 2 and", [](D d) { d.algorithm = FA_ALGORITHM_FLASH1, d.o_dtype = FA_BF16; }),
    };
}

// A factor of the bias, and sequences and heads after which a bias or a mask repeats.
std::vector<Rule<Forward>> repeats() {
    return {
        row(plain, I, "operands is 0x400: expected FA_OPERAND_BIAS with FA_OPERAND_BIAS_SCALE",
            [](D d) { d.operands = FA_OPERAND_BIAS_SCALE; }),
        row(padded, I, "mask_keys is -1: expected 0 or more", [](D d) { d.mask_keys = -1; }),
        row(padded, I, "mask_keys is 2147483648: expected 2147483647 or less", [](D d) { d.mask_keys = int64_t(1) << 31; }),
        row(plain, I, "operands is 0x4000: expected FA_OPERAND_KEY_LIST with", [](D d) { d.operands = FA_OPERAND_KEY_LIST_COUNT; }),
        row(plain, I, "operands is 0x10000: expected FA_OPERAND_FULL_LIST with", [](D d) { d.operands = FA_OPERAND_FULL_LIST_COUNT; }),
        row(listed, I, "list_max is -1: expected 0 or more", [](D d) { d.list_max = -1; }),
        row(listed, U, "list_rows is 17: expected 1 or a multiple of 16", [](D d) { d.list_rows = 17; }),
        row(listed, I, "list_heads is 3: expected a divisor of heads_q, 4", [](D d) { d.list_heads = 3; }),
        row(listed, I, "list_stride[2] is -1: expected 0 or more", [](D d) { d.list_stride[2] = -1; }),
        row(listed, I, "list_count_stride[0] is -4: expected 0 or more", [](D d) { d.list_count_stride[0] = -4; }),
        row(listed, U, "operands is 0x801e001: no backend writes scores of lists", [](D d) { d.operands |= FA_OPERAND_SCORES; }),
        row(listed, U, "algorithm is 1: expected FA_ALGORITHM_FLASH (0) with lists of keys",
            [](D d) { d.algorithm = FA_ALGORITHM_STANDARD; }),
        row(packed, I, "list_stride[0] is 9: expected 0,", [](D d) { d.operands |= FA_OPERAND_KEY_LIST, d.list_stride[0] = 9; }),
        row(padded, I, "key_range_max is -1: expected 1 or more", [](D d) { d.key_range_max = -1; }),
        row(padded, I, "key_range_stride[3] is -2: expected 0 or more", [](D d) { d.key_range_stride[3] = -2; }),
        row(packed, I, "key_range_stride[0] is 6: expected 0,",
            [](D d) { d.operands |= FA_OPERAND_KEY_RANGES, d.key_range_stride[0] = 6; }),
        row(padded, I, "bias_period[1] is -1: expected 0 or more", [](D d) { d.bias_period[1] = -1; }),
        row(padded, I, "mask_period[0] is -9223372036854775808:", [](D d) { d.mask_period[0] = INT64_MIN; }),
    };
}

// Blocks of 32 dims that carry their own factors.
std::vector<Rule<Forward>> blocks() {
    return {
        row(plain, I, "dim_qk is 8: expected a multiple of 32, the dims of a block of q4_0",
            [](D d) { d.k_dtype = FA_Q4_0, d.v_dtype = FA_F32; }),
        row(plain, I, "dim_qk is 48: expected a multiple of 32, the dims of a block of q8_0",
            [](D d) { d.k_dtype = FA_Q8_0, d.dim_qk = 48; }),
        row(plain, I, "dim_v is 4: expected a multiple of 32, the dims of a block of q5_1", [](D d) { d.v_dtype = FA_Q5_1; }),
        row(plain, I, "k_dtype is q5_0: expected no FA_OPERAND_K_DESCALE, since blocks contain their own scales",
            [](D d) { d.k_dtype = FA_Q5_0, d.v_dtype = FA_F32, d.dim_qk = 64, d.operands = FA_OPERAND_K_DESCALE; }),
        row(plain, I, "v_dtype is q4_1: expected no FA_OPERAND_V_DESCALE",
            [](D d) { d.v_dtype = FA_Q4_1, d.dim_v = 32, d.operands = FA_OPERAND_V_DESCALE; }),
        row(plain, I, "k_stride[3] is 0: expected an element stride of 1",
            [](D d) { d.k_dtype = FA_Q8_0, d.v_dtype = FA_F32, d.dim_qk = 64, d.strided = FA_STRIDED_K, d.k_stride[2] = 2; }),
        row(plain, I, "q_dtype is q8_0: expected one of f32", [](D d) { d.q_dtype = FA_Q8_0; }),
        row(plain, I, "o_dtype is q4_0: expected one of f32", [](D d) { d.o_dtype = FA_Q4_0; }),
    };
}

// v within k has no fields of its own.
std::vector<Rule<Forward>> within_k() {
    const auto within = [](void (*good)(Forward*), const char* says, Spoil spoil) {
        return Rule<Forward>{good, [spoil](Forward& call) { call.d.flags |= FA_V_IN_K, spoil(call.d); }, I, says, "with FA_V_IN_K", true};
    };
    return {
        within(plain, "v_dtype is 1: expected 0", [](D d) { d.v_dtype = FA_F32; }),
        within(plain, "heads_v is 2: expected 0", [](D d) { d.heads_v = 2; }),
        within(plain, "dim_v is 9: expected dim_qk, 8, or less", [](D d) { d.dim_v = 9; }),
        within(plain, "strided is 0x4: expected no FA_STRIDED_V", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 80, 16, 8, 1); }),
        within(padded, "operands is 0x", [](D d) { d.v_dtype = 0; }),
        row(plain, I, "v_stride[1] is 16: expected 0 without FA_STRIDED_V", [](D d) { d.flags = FA_V_IN_K, d.v_stride[1] = 16; }),
        row(plain, I, "v_descale_stride[2] is 1: expected 0 without FA_OPERAND_V_DESCALE",
            [](D d) { d.flags = FA_V_IN_K, d.v_descale_stride[2] = 1; }),
    };
}

// Fields of tails, factors and lists that act under an operand which is off.
std::vector<Rule<Forward>> scaled_belongings() {
    return {
        row(plain, I, "strided is 0x20:", [](D d) { d.strided = FA_STRIDED_Q_TAIL; }),
        row(plain, I, "strided is 0x40:", [](D d) { d.strided = FA_STRIDED_K_TAIL; }),
        row(plain, I, "dim_tail is 2: expected 0 without FA_OPERAND_Q_TAIL", [](D d) { d.dim_tail = 2; }),
        row(plain, I, "q_tail_dtype is 1: expected 0 without FA_OPERAND_Q_TAIL", [](D d) { d.q_tail_dtype = FA_F32; }),
        row(plain, I, "k_tail_dtype is 3: expected 0 without FA_OPERAND_K_TAIL", [](D d) { d.k_tail_dtype = FA_BF16; }),
        row(plain, I, "q_tail_stride[0] is 1: expected 0 without FA_OPERAND_Q_TAIL", [](D d) { d.q_tail_stride[0] = 1; }),
        row(plain, I, "k_tail_stride[3] is 1: expected 0 without FA_OPERAND_K_TAIL", [](D d) { d.k_tail_stride[3] = 1; }),
        row(plain, I, "q_descale_dtype is 1: expected 0 without FA_OPERAND_Q_DESCALE", [](D d) { d.q_descale_dtype = FA_F32; }),
        row(plain, I, "k_descale_dtype is 1: expected 0 without FA_OPERAND_K_DESCALE", [](D d) { d.k_descale_dtype = FA_F32; }),
        row(plain, I, "v_descale_dtype is 1: expected 0 without FA_OPERAND_V_DESCALE", [](D d) { d.v_descale_dtype = FA_F32; }),
        row(plain, I, "q_descale_block[0] is 1: expected 0 without FA_OPERAND_Q_DESCALE", [](D d) { d.q_descale_block[0] = 1; }),
        row(plain, I, "k_descale_block[1] is 64: expected 0 without FA_OPERAND_K_DESCALE", [](D d) { d.k_descale_block[1] = 64; }),
        row(plain, I, "v_descale_block[0] is 1: expected 0 without FA_OPERAND_V_DESCALE", [](D d) { d.v_descale_block[0] = 1; }),
        row(plain, I, "mask_dtype is 48: expected 0 without FA_OPERAND_MASK", [](D d) { d.mask_dtype = FA_BIT; }),
        row(plain, I, "mask_keys is 64: expected 0 without FA_OPERAND_MASK", [](D d) { d.mask_keys = 64; }),
        row(plain, I, "bias_period[0] is 1: expected 0 without FA_OPERAND_BIAS", [](D d) { d.bias_period[0] = 1; }),
        row(plain, I, "mask_period[1] is 3: expected 0 without FA_OPERAND_MASK", [](D d) { d.mask_period[1] = 3; }),
        row(plain, I, "key_range_max is 2: expected 0 without FA_OPERAND_KEY_RANGES", [](D d) { d.key_range_max = 2; }),
        row(plain, I, "key_range_stride[2] is 1: expected 0 without FA_OPERAND_KEY_RANGES", [](D d) { d.key_range_stride[2] = 1; }),
        row(plain, I, "list_space is 1: expected 0 without FA_OPERAND_KEY_LIST", [](D d) { d.list_space = FA_LIST_SLOTS; }),
        row(plain, I, "list_max is 8: expected 0 without FA_OPERAND_KEY_LIST", [](D d) { d.list_max = 8; }),
        row(plain, I, "list_rows is 128: expected 0 without", [](D d) { d.list_rows = 128; }),
        row(plain, I, "list_keys is 128: expected 0 without", [](D d) { d.list_keys = 128; }),
        row(plain, I, "list_heads is 1: expected 0 without", [](D d) { d.list_heads = 1; }),
        row(plain, I, "list_stride[1] is -1: expected 0 without", [](D d) { d.list_stride[1] = -1; }),
        row(plain, I, "list_count_stride[0] is 1: expected 0 without", [](D d) { d.list_count_stride[0] = 1; }),
    };
}

std::vector<Rule<Forward>> sizes() {
    return {
        row(plain, I, "batch is -1: expected 0 or more", [](D d) { d.batch = -1; }),
        row(plain, I, "batch is 2147483648: expected 2147483647 or less", [](D d) { d.batch = kTooLarge; }),
        row(plain, I, "heads_q is 0: expected 1 or more", [](D d) { d.heads_q = d.heads_k = 0; }),
        row(plain, I, "heads_q is -4:", [](D d) { d.heads_q = -4; }),
        row(plain, I, "heads_q is 2147483648:", [](D d) { d.heads_q = kTooLarge; }),
        row(plain, I, "heads_k is 3: expected a divisor of heads_q, 4", [](D d) { d.heads_k = 3; }),
        row(plain, I, "heads_k is 8:", [](D d) { d.heads_k = 8; }),
        row(plain, I, "heads_k is -2:", [](D d) { d.heads_k = -2; }),
        row(plain, I, "heads_v is 3: expected a divisor of heads_q, 4", [](D d) { d.heads_v = 3; }),
        row(plain, I, "heads_v is -1:", [](D d) { d.heads_v = -1; }),
        row(plain, I, "heads_k is 9223372036854775807:", [](D d) { d.heads_k = INT64_MAX; }),
        row(plain, I, "seqlen_q is -3: expected 0 or more", [](D d) { d.seqlen_q = -3; }),
        row(plain, I, "seqlen_q is 2147483648:", [](D d) { d.seqlen_q = kTooLarge; }),
        row(plain, I, "seqlen_k is -1:", [](D d) { d.seqlen_k = -1; }),
        row(plain, I, "seqlen_k is 2147483648:", [](D d) { d.seqlen_k = kTooLarge; }),
        row(plain, I, "dim_qk is 0: expected 1 or more", [](D d) { d.dim_qk = 0; }),
        row(plain, I, "dim_qk is -8:", [](D d) { d.dim_qk = -8; }),
        row(plain, U, "dim_qk is 1025: expected 1024 or less", [](D d) { d.dim_qk = 1025; }),
        row(plain, I, "dim_v is -1:", [](D d) { d.dim_v = -1; }),
        row(plain, U, "dim_v is 1025:", [](D d) { d.dim_v = 1025; }),
        row(packed, I, "total_q is -1:", [](D d) { d.total_q = -1; }),
        row(packed, I, "total_q is 2147483648:", [](D d) { d.total_q = kTooLarge; }),
        row(packed, I, "total_k is -1:", [](D d) { d.total_k = -1; }),
        row(packed, I, "total_k is 2147483648:", [](D d) { d.total_k = kTooLarge; }),
        row(padded, I, "kv_batch is -1:", [](D d) { d.kv_batch = -1; }),
        row(padded, I, "kv_batch is 0: expected 1 or more", [](D d) { d.kv_batch = 0; }),
        row(padded, I, "kv_batch is 2147483648:", [](D d) { d.kv_batch = kTooLarge; }),
        row(paged, I, "page_size is 0: expected 1 or more", [](D d) { d.page_size = 0; }),
        row(paged, I, "page_size is -2:", [](D d) { d.page_size = -2; }),
        row(paged, I, "page_size is 2147483648:", [](D d) { d.page_size = kTooLarge; }),
        row(paged, I, "num_pages is -1:", [](D d) { d.num_pages = -1; }),
        row(paged, I, "num_pages is 2147483648:", [](D d) { d.num_pages = kTooLarge; }),
        row(paged, I, "page_table_stride is -3:", [](D d) { d.page_table_stride = -3; }),
    };
}

// Products that int64 does not hold.
std::vector<Rule<Forward>> products() {
    return {
        row(plain, I, "q is 1073741824 x 16777216 x 4 x 1024 elements",
            [](D d) { d.batch = 1 << 30, d.seqlen_q = 1 << 24, d.dim_qk = 1024; }),
        row(plain, I, "k is 2147483647 x 2147483647 x 2 x 8 elements", [](D d) { d.batch = d.seqlen_k = INT32_MAX, d.seqlen_q = 0; }),
        row(plain, I, "seqlen_q is 16: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = d.heads_q = 1 << 30, d.heads_k = 1, d.seqlen_q = 16; }),
        row(plain, I, "seqlen_q is 1048577: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = 1 << 20, d.heads_q = 1 << 16, d.seqlen_q = (1 << 20) + 1, d.dim_v = 1; }),
        row(plain, I, "seqlen_q is 2147483647: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = 0, d.heads_q = d.heads_k = d.seqlen_q = INT32_MAX, d.dim_qk = d.dim_v = 1; }),
        row(plain, I, "seqlen_q is 2147483647: expected batch * heads_q * seqlen_q",
            [](D d) { d.heads_q = d.batch = d.seqlen_q = INT32_MAX, d.heads_k = 1; }),
        row(plain, I, "seqlen_k is 2147483647: expected batch * heads_q * seqlen_k, 33554432 * 1024 * 2147483647, below 2^63",
            [](D d) {
                d.batch = 1 << 25, d.heads_q = d.heads_k = 1 << 10, d.seqlen_q = 1, d.seqlen_k = INT32_MAX;
                d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1;
            }),
        row(plain, I, "q is", [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, INT64_MAX / 4, 32, 8, 1); }),
        row(plain, I, "q is", [](D d) { d.strided = FA_STRIDED_Q, d.q_stride[0] = d.q_stride[1] = INT64_MAX, d.q_stride[3] = 1; }),
        row(plain, I, "k is", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 80, INT64_MAX / 3, 8, 1); }),
        row(plain, I, "v is", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 80, 16, INT64_MAX, 1); }),
        row(plain, I, "o is", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, INT64_MAX - 2, 16, 4, 1); }),
        row(packed, I, "lse is", [](D d) { d.strided = FA_STRIDED_LSE, d.lse_stride[1] = INT64_MAX / 3, d.lse_stride[2] = 1; }),
        row(padded, I, "bias is", [](D d) { d.bias_stride[3] = INT64_MAX; }),
        row(padded, I, "mask is", [](D d) { d.mask_stride[2] = INT64_MAX; }),
        row(padded, I, "scores is", [](D d) { d.scores_stride[0] = INT64_MAX / 4; }),
        row(padded, I, "q_descale is", [](D d) { d.q_descale_stride[0] = INT64_MAX; }),
        row(padded, I, "k_descale is", [](D d) { d.k_descale_stride[1] = INT64_MAX / 2; }),
        row(padded, I, "v_descale is", [](D d) { d.v_descale_stride[2] = INT64_MAX; }),
        row(padded, I, "alibi_slopes is", [](D d) { d.alibi_batch_stride = INT64_MAX - 3; }),
        row(paged, I, "page_table is", [](D d) { d.page_table_stride = INT64_MAX / 8 + 1; }),
        row(paged, I, "k is", [](D d) { d.page_size = d.num_pages = INT32_MAX; }),
    };
}

std::vector<Rule<Forward>> numbers() {
    return {
        row(plain, I, "scale is nan:", [](D d) { d.scale = kNan; }),
        row(plain, I, "scale is nan: expected a magnitude", [](D d) { d.scale = kNan, d.flags = FA_SCALE_EXPLICIT; }),
        row(plain, I, "scale is 2.4e+38: expected a magnitude of at most 2.35866e+38",
            [](D d) { d.scale = 2.4e38f, d.flags = FA_SCALE_EXPLICIT; }),
        row(plain, I, "scale is -3e+38: expected a magnitude", [](D d) { d.scale = -3e38f, d.flags = FA_SCALE_EXPLICIT; }),
        row(plain, I, "scale is inf:", [](D d) { d.scale = kInf, d.flags = FA_SCALE_EXPLICIT; }),
        row(plain, I, "scale is -inf:", [](D d) { d.scale = -kInf, d.flags = FA_SCALE_EXPLICIT; }),
        row(plain, I, "scale is 0.5: expected 0 without FA_SCALE_EXPLICIT", [](D d) { d.scale = 0.5f; }),
        row(plain, I, "softcap is nan:", [](D d) { d.softcap = kNan; }),
        row(plain, I, "softcap is inf:", [](D d) { d.softcap = kInf; }),
        row(plain, I, "softcap is -1:", [](D d) { d.softcap = -1.0f; }),
        row(plain, I, "dropout_p is nan:", [](D d) { d.dropout_p = kNan; }),
        row(plain, I, "dropout_p is 1:", [](D d) { d.dropout_p = 1.0f; }),
        row(plain, I, "dropout_p is -0.1:", [](D d) { d.dropout_p = -0.1f; }),
        row(plain, I, "dropout_p is inf:", [](D d) { d.dropout_p = kInf; }),
        row(plain, I, "num_splits is -1:", [](D d) { d.num_splits = -1; }),
        row(plain, I, "num_splits is 65537: expected 65536 or less", [](D d) { d.num_splits = 65537; }),
        row(plain, I, "split_size is -64:", [](D d) { d.split_size = -64; }),
        row(plain, I, "split_size is 64: expected 0 when num_splits is set, 2", [](D d) { d.split_size = 64, d.num_splits = 2; }),
        row(plain, I, "reserve_units is -1:", [](D d) { d.reserve_units = -1; }),
    };
}

std::vector<Rule<Forward>> masks() {
    return {
        row(plain, I, "window_left is 3: expected 0 without FA_WINDOW", [](D d) { d.window_left = 3; }),
        row(plain, I, "window_right is -1: expected 0 without FA_WINDOW", [](D d) { d.window_right = -1; }),
        row(padded, I, "window_left is -2:", [](D d) { d.window_left = -2; }),
        row(padded, I, "window_right is -9223372036854775808:", [](D d) { d.window_right = INT64_MIN; }),
        row(plain, I, "chunk is -1:", [](D d) { d.chunk = -1; }),
        row(plain, I, "alignment is not set: expected", [](D d) { d.flags = FA_CAUSAL; }),
        row(plain, I, "alignment is not set: expected", [](D d) { d.flags = FA_WINDOW, d.window_left = d.window_right = -1; }),
        row(plain, I, "alignment is not set: expected", [](D d) { d.chunk = 2; }),
        row(plain, I, "alignment is not set: expected", [](D d) { d.operands = FA_OPERAND_ALIBI; }),
        row(plain, I, "alignment is 3: expected FA_ALIGN_EXPLICIT (3) only with FA_OPERAND_CAUSAL_OFFSET",
            [](D d) { d.alignment = FA_ALIGN_EXPLICIT; }),
        row(padded, I, "alignment is 1: expected FA_ALIGN_EXPLICIT (3) with FA_OPERAND_CAUSAL_OFFSET",
            [](D d) { d.alignment = FA_ALIGN_TOP_LEFT; }),
        row(plain, I, "scores_stage is 1: expected 0 without FA_OPERAND_SCORES", [](D d) { d.scores_stage = 1; }),
    };
}

std::vector<Rule<Forward>> belongings() {
    return {
        row(plain, I, "total_q is 6: expected 0 without FA_OPERAND_CU_SEQLENS_Q", [](D d) { d.total_q = 6; }),
        row(plain, I, "total_k is 6: expected 0 without FA_OPERAND_CU_SEQLENS_K", [](D d) { d.total_k = 6; }),
        row(plain, I, "kv_batch is 2: expected 0 without FA_OPERAND_KV_BATCH_IDX", [](D d) { d.kv_batch = 2; }),
        row(plain, I, "page_size is 2: expected 0 without FA_OPERAND_PAGE_TABLE", [](D d) { d.page_size = 2; }),
        row(plain, I, "num_pages is 2: expected 0 without FA_OPERAND_PAGE_TABLE", [](D d) { d.num_pages = 2; }),
        row(plain, I, "page_table_stride is 2: expected 0 without FA_OPERAND_PAGE_TABLE", [](D d) { d.page_table_stride = 2; }),
        row(plain, I, "bias_stride[3] is 1: expected 0 without FA_OPERAND_BIAS", [](D d) { d.bias_stride[3] = 1; }),
        row(plain, I, "mask_stride[0] is -1: expected 0 without FA_OPERAND_MASK", [](D d) { d.mask_stride[0] = -1; }),
        row(plain, I, "scores_stride[1] is 15: expected 0 without FA_OPERAND_SCORES", [](D d) { d.scores_stride[1] = 15; }),
        row(plain, I, "q_descale_stride[2] is 1: expected 0 without", [](D d) { d.q_descale_stride[2] = 1; }),
        row(plain, I, "k_descale_stride[0] is 1: expected 0 without", [](D d) { d.k_descale_stride[0] = 1; }),
        row(plain, I, "v_descale_stride[1] is 1: expected 0 without", [](D d) { d.v_descale_stride[1] = 1; }),
        row(plain, I, "alibi_batch_stride is 4: expected 0 without FA_OPERAND_ALIBI", [](D d) { d.alibi_batch_stride = 4; }),
        row(packed, I, "operands is", [](D d) { d.operands |= FA_OPERAND_PAGE_TABLE, d.page_size = 1, d.num_pages = 8; }),
        row(packed, I, "operands is", [](D d) { d.operands |= FA_OPERAND_KV_BATCH_IDX, d.kv_batch = 2; }),
    };
}

std::vector<Rule<Forward>> strides() {
    std::vector<Rule<Forward>> rules = {
        row(plain, I, "q_stride[3] is 1: expected 0 without FA_STRIDED_Q",
            [](D d) {
                set4(d.q_stride, 96, 32, 8, 1);
                d.q_stride[0] = d.q_stride[1] = d.q_stride[2] = 0;
            }),
        row(plain, I, "k_stride[0] is 80: expected 0 without FA_STRIDED_K", [](D d) { set4(d.k_stride, 80, 16, 8, 1); }),
        row(plain, I, "v_stride[2] is -1: expected 0 without FA_STRIDED_V", [](D d) { d.v_stride[2] = -1; }),
        row(plain, I, "o_stride[1] is 16: expected 0 without FA_STRIDED_O", [](D d) { d.o_stride[1] = 16; }),
        row(packed, I, "lse_stride[2] is 1: expected 0 without FA_STRIDED_LSE", [](D d) { d.lse_stride[2] = 1; }),
        row(plain, I, "q_stride[0] is -96:", [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, -96, 32, 8, 1); }),
        row(plain, I, "q_stride[3] is 0:", [](D d) { d.strided = FA_STRIDED_Q; }),
        row(plain, U, "q_stride[3] is 2: expected an element stride of 1",
            [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, 192, 64, 16, 2); }),
        row(plain, I, "q_stride[3] is -1:", [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, 96, 32, 8, -1); }),
        row(plain, I, "k_stride[1] is -9223372036854775808:", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 0, INT64_MIN, 8, 1); }),
        row(plain, U, "k_stride[3] is 5:", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 0, 1, 40, 5); }),
        row(plain, I, "v_stride[2] is -4:", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 40, 8, -4, 1); }),
        row(plain, I, "v_stride[3] is 0:", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 40, 8, 4, 0), d.dim_v = 1; }),
        row(plain, U, "o_stride[3] is 3:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 144, 48, 12, 3); }),
        row(packed, I, "q_stride[0] is 1: expected 0, packed", [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, 1, 32, 8, 1); }),
        row(packed, I, "k_stride[0] is 5: expected 0, packed", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 5, 16, 8, 1); }),
        row(packed, I, "v_stride[0] is 5: expected 0, packed", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 5, 8, 4, 1); }),
        row(packed, I, "o_stride[0] is 5: expected 0, packed", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 5, 16, 4, 1); }),
        row(packed, I, "lse_stride[0] is 5: expected 0, packed",
            [](D d) { d.strided = FA_STRIDED_LSE, d.lse_stride[0] = 5, d.lse_stride[1] = 6, d.lse_stride[2] = 1; }),
        row(packed, I, "lse_stride[1] is -6:", [](D d) { d.strided = FA_STRIDED_LSE, d.lse_stride[1] = -6, d.lse_stride[2] = 1; }),
        row(padded, I, "bias_stride[0] is -1:", [](D d) { d.bias_stride[0] = -1; }),
        row(padded, I, "mask_stride[3] is -1:", [](D d) { d.mask_stride[3] = -1; }),
        row(padded, I, "scores_stride[2] is -5:", [](D d) { d.scores_stride[2] = -5; }),
        row(padded, I, "q_descale_stride[1] is -1:", [](D d) { d.q_descale_stride[1] = -1; }),
        row(padded, I, "k_descale_stride[2] is -1:", [](D d) { d.k_descale_stride[2] = -1; }),
        row(padded, I, "v_descale_stride[0] is -1:", [](D d) { d.v_descale_stride[0] = -1; }),
        row(padded, I, "alibi_batch_stride is -4:", [](D d) { d.alibi_batch_stride = -4; }),
    };
    return rules;
}

// Outputs whose elements would share memory.
std::vector<Rule<Forward>> sharing() {
    return {
        row(plain, I, "o_stride is {0, 16, 4, 1}:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 0, 16, 4, 1); }),
        row(plain, I, "o_stride is {48, 0, 4, 1}:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 48, 0, 4, 1); }),
        row(plain, I, "o_stride is {48, 16, 3, 1}:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 48, 16, 3, 1); }),
        row(plain, I, "o_stride is {32, 16, 4, 1}:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 32, 16, 4, 1); }),
        row(plain, I, "o_stride is {1, 1, 1, 1}:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 1, 1, 1, 1); }),
        row(packed, I, "lse_stride is {0, 5, 1}:", [](D d) { d.strided = FA_STRIDED_LSE, d.lse_stride[1] = 5, d.lse_stride[2] = 1; }),
        row(packed, I, "lse_stride is {0, 0, 0}:", [](D d) { d.strided = FA_STRIDED_LSE; }),
        row(padded, I, "scores_stride is {60, 15, 5, 0}:", [](D d) { d.scores_stride[3] = 0; }),
        row(padded, I, "scores_stride is {60, 15, 4, 1}:", [](D d) { d.scores_stride[2] = 4; }),
        row(padded, I, "scores_stride is {0, 0, 0, 0}:", [](D d) { set4(d.scores_stride, 0, 0, 0, 0); }),
    };
}

}  // namespace

std::vector<Rule<Forward>> descriptor_rules() {
    return all_of<Forward>({known(), types(), scaled_belongings(), repeats(), slots(), scaled_rows(), blocks(), within_k(), sizes(),
                            products(), numbers(), masks(), belongings(), strides(), sharing()});
}

TEST(Descriptor, GoodCallsWork) {
    Handle h;
    for (const auto good : {plain, padded, listed, slotted, packed, paged}) check_good(h, good);
}

TEST(Descriptor, UnknownValuesAreRefused) { check_rules(known()); }
TEST(Descriptor, TypesAreChecked) { check_rules(types()); }
TEST(Descriptor, VWithinKHasNoFieldsOfItsOwn) { check_rules(within_k()); }
TEST(Descriptor, RowsHoldWholeBlocks) { check_rules(blocks()); }
TEST(Descriptor, BiasesAndMasksRepeat) { check_rules(repeats()); }
TEST(Descriptor, ReservedFieldsBelongToTheirOperands) { check_rules(scaled_belongings()); }
TEST(Descriptor, SizesAreChecked) { check_rules(sizes()); }
TEST(Descriptor, ProductsThatOverflowAreRefused) { check_rules(products()); }
TEST(Descriptor, NumbersAreChecked) { check_rules(numbers()); }
TEST(Descriptor, MasksAreChecked) { check_rules(masks()); }
TEST(Descriptor, FieldsWithoutTheirOperandAreRefused) { check_rules(belongings()); }
TEST(Descriptor, StridesAreChecked) { check_rules(strides()); }
TEST(Descriptor, OutputsThatShareElementsAreRefused) { check_rules(sharing()); }

TEST(Descriptor, OpIsChecked) {
    Handle h;
    Forward f;
    plain(&f);
    for (const int32_t op : {0, 6, -1, INT_MAX}) {
        uint64_t bytes;
        char text[256];
        EXPECT_EQ(fa_supports(h, &f.d, op), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(fa_last_error(h)).find("op is " + std::to_string(op) + ":"), 0u) << fa_last_error(h);
        EXPECT_EQ(fa_explain(h, &f.d, op, text, sizeof text), FA_INVALID_ARGUMENT);
        EXPECT_EQ(fa_workspace_size(h, &f.d, op, &bytes), FA_INVALID_ARGUMENT);
    }
}

// A handle knows its last descriptor again: no other may pass for it, and what was refused once is refused once more.
TEST(Descriptor, EachCallIsCheckedForItself) {
    Handle h;
    Forward f;
    plain(&f);
    struct {
        fa_attention_desc_t d;
        uint64_t later;
    } longer{f.d, 0};
    longer.d.struct_size = sizeof longer;
    for (int round = 0; round < 2; round++) {
        EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
        for (int again = 0; again < 2; again++) {
            Forward spoiled;
            spoiled.d = f.d, spoiled.a = f.a;
            spoiled.d.o_stride[3] = 1;
            EXPECT_EQ(spoiled.run(h), FA_INVALID_ARGUMENT);
        }
        longer.later = 0;
        EXPECT_EQ(fa_forward_ex(h, &longer.d, &f.a), FA_OK) << fa_last_error(h);
        longer.later = 1;
        EXPECT_EQ(fa_forward_ex(h, &longer.d, &f.a), FA_UNSUPPORTED_FIELD);
        EXPECT_EQ(fa_forward_ex(h, nullptr, &f.a), FA_INVALID_ARGUMENT);
    }
}

TEST(Descriptor, AnEmptyBatchNeedsNoCache) {
    Handle h;
    Forward f;
    plain(&f);
    f.d.batch = 0;
    f.d.operands = FA_OPERAND_KV_BATCH_IDX;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
}

// At the edge, and on the right side of it.
TEST(Descriptor, EdgesAreAccepted) {
    const Spoil edges[] = {
        [](D d) { d.batch = 0; },
        [](D d) { d.seqlen_q = 0; },
        [](D d) { d.seqlen_k = 0; },
        [](D d) { d.heads_k = 0; },
        [](D d) { d.dim_v = 0; },
        [](D d) { d.batch = 1 << 20, d.heads_q = 1 << 16, d.seqlen_q = 1 << 20, d.dim_qk = d.dim_v = 1; },
        [](D d) { d.dim_qk = 1, d.dim_v = 1024; },
        [](D d) { d.dim_qk = 1024, d.dim_v = 1; },
        [](D d) { d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT, d.scale = 2.358e38f; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT, d.scale = -2.358e38f; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT, d.scale = 1e-45f; },
        [](D d) { d.softcap = 1.0e-30f; },
        [](D d) { d.dropout_p = 0.99999994f; },
        [](D d) { d.num_splits = 65536; },
        [](D d) { d.split_size = INT64_MAX; },
        [](D d) { d.reserve_units = INT_MAX; },
        [](D d) { d.flags = FA_WINDOW, d.alignment = FA_ALIGN_TOP_LEFT, d.window_left = d.window_right = INT64_MAX; },
        [](D d) { d.flags = FA_WINDOW | FA_CAUSAL, d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.chunk = INT64_MAX, d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1; },
        [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 16, 32, 4, 1); },
        [](D d) { d.strided = FA_STRIDED_O, d.batch = d.seqlen_q = d.heads_q = d.heads_k = 1, set4(d.o_stride, 0, 0, 0, 1); },
    };
    Handle h;
    for (Spoil edge : edges) {
        Forward f;
        plain(&f);
        edge(f.d);
        EXPECT_EQ(fa_supports(h, &f.d, FA_OP_FORWARD), FA_OK) << fa_last_error(h);
        if (f.d.dim_qk == 8) {
            EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
        }
    }
}
