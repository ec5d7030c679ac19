// Every field of the descriptor, spoiled, as a forward sees it.
#include <climits>
#include <cmath>
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;
constexpr int64_t kTooLarge = int64_t(1) << 31;
const float kNan = std::nanf(""), kInf = INFINITY;

using Spoil = std::function<void(fa_attention_desc_t&)>;

Rule<Forward> row(void (*good)(Forward*), fa_status_t status, const char* says, const Spoil& spoil) {
    return {good, [spoil](Forward& f) { spoil(f.d); }, status, says, "", true};
}

void set4(int64_t* stride, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t s[4] = {a, b, c, d};
    memcpy(stride, s, sizeof s);
}

using D = fa_attention_desc_t&;

std::vector<Rule<Forward>> known() {
    return {
        row(plain, F, "flags is 0x10:", [](D d) { d.flags = 1 << 4; }),
        row(plain, F, "flags is 0x80000000:", [](D d) { d.flags = 1u << 31; }),
        row(plain, F, "operands is 0x80000:", [](D d) { d.operands = 1 << 19; }),
        row(plain, F, "strided is 0x20:", [](D d) { d.strided = 1 << 5; }),
        row(plain, F, "alignment is 4:", [](D d) { d.alignment = 4; }),
        row(plain, F, "alignment is -1:", [](D d) { d.alignment = -1; }),
        row(plain, F, "q_dtype is 7:", [](D d) { d.q_dtype = 7; }),
        row(plain, F, "q_dtype is -1:", [](D d) { d.q_dtype = -1; }),
        row(plain, F, "kv_dtype is 7:", [](D d) { d.kv_dtype = 7; }),
        row(plain, F, "kv_dtype is -2147483648:", [](D d) { d.kv_dtype = INT_MIN; }),
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
        row(plain, I, "q_dtype is FA_I8:", [](D d) { d.q_dtype = FA_I8; }),
        row(plain, I, "o_dtype is FA_I8:", [](D d) { d.o_dtype = FA_I8; }),
        row(padded, U, "bias_dtype is 4:", [](D d) { d.bias_dtype = FA_E4M3; }),
        row(padded, U, "bias_dtype is 6:", [](D d) { d.bias_dtype = FA_I8; }),
        row(plain, I, "bias_dtype is 1: expected 0 without FA_OPERAND_BIAS", [](D d) { d.bias_dtype = FA_F32; }),
        row(padded, I, "o_dtype is 1: expected an 8-bit type with FA_OPERAND_O_SCALE", [](D d) { d.o_dtype = FA_F32; }),
        row(padded, I, "o_dtype is 3: expected an 8-bit type with FA_OPERAND_O_SCALE", [](D d) { d.o_dtype = 0; }),
        row(plain, U, "algorithm is 1 and", [](D d) { d.algorithm = FA_ALGORITHM_STANDARD, d.q_dtype = FA_F16; }),
        row(plain, U, "algorithm is 1 and",
            [](D d) { d.algorithm = FA_ALGORITHM_STANDARD, d.q_dtype = FA_BF16, d.kv_dtype = d.o_dtype = FA_F32; }),
        row(plain, U, "algorithm is 2 and", [](D d) { d.algorithm = FA_ALGORITHM_FLASH1, d.kv_dtype = FA_I8; }),
        row(plain, U, "algorithm is 2 and", [](D d) { d.algorithm = FA_ALGORITHM_FLASH1, d.o_dtype = FA_BF16; }),
    };
}

std::vector<Rule<Forward>> sizes() {
    return {
        row(plain, I, "batch is -1: expected 0 or more", [](D d) { d.batch = -1; }),
        row(plain, I, "batch is 2147483648: expected 2147483647 or less", [](D d) { d.batch = kTooLarge; }),
        row(plain, I, "heads_q is 0: expected 1 or more", [](D d) { d.heads_q = d.heads_kv = 0; }),
        row(plain, I, "heads_q is -4:", [](D d) { d.heads_q = -4; }),
        row(plain, I, "heads_q is 2147483648:", [](D d) { d.heads_q = kTooLarge; }),
        row(plain, I, "heads_kv is 3: expected a divisor of heads_q, 4", [](D d) { d.heads_kv = 3; }),
        row(plain, I, "heads_kv is 8:", [](D d) { d.heads_kv = 8; }),
        row(plain, I, "heads_kv is -2:", [](D d) { d.heads_kv = -2; }),
        row(plain, I, "heads_kv is 9223372036854775807:", [](D d) { d.heads_kv = INT64_MAX; }),
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
        row(plain, I, "k is 2147483647 x 2147483647 x 2 x 8 elements",
            [](D d) { d.batch = d.seqlen_k = INT32_MAX, d.seqlen_q = 0; }),
        row(plain, I, "seqlen_q is 16: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = d.heads_q = 1 << 30, d.heads_kv = 1, d.seqlen_q = 16; }),
        row(plain, I, "seqlen_q is 1048577: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = 1 << 20, d.heads_q = 1 << 16, d.seqlen_q = (1 << 20) + 1, d.dim_v = 1; }),
        row(plain, I, "seqlen_q is 2147483647: expected batch * heads_q * seqlen_q",
            [](D d) { d.batch = 0, d.heads_q = d.heads_kv = d.seqlen_q = INT32_MAX, d.dim_qk = d.dim_v = 1; }),
        row(plain, I, "seqlen_q is 2147483647: expected batch * heads_q * seqlen_q",
            [](D d) { d.heads_q = d.batch = d.seqlen_q = INT32_MAX, d.heads_kv = 1; }),
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
        row(plain, I, "scale is nan: expected a finite", [](D d) { d.scale = kNan, d.flags = FA_SCALE_EXPLICIT; }),
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
        row(plain, I, "reserve_sms is -1:", [](D d) { d.reserve_sms = -1; }),
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
        row(plain, I,
            "k_stride[1] is -9223372036854775808:", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 0, INT64_MIN, 8, 1); }),
        row(plain, U, "k_stride[3] is 5:", [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 0, 1, 40, 5); }),
        row(plain, I, "v_stride[2] is -4:", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 40, 8, -4, 1); }),
        row(plain, I, "v_stride[3] is 0:", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 40, 8, 4, 0), d.dim_v = 1; }),
        row(plain, U, "o_stride[3] is 3:", [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 144, 48, 12, 3); }),
        row(packed, I, "q_stride[0] is 1: expected 0, packed",
            [](D d) { d.strided = FA_STRIDED_Q, set4(d.q_stride, 1, 32, 8, 1); }),
        row(packed, I, "k_stride[0] is 5: expected 0, packed",
            [](D d) { d.strided = FA_STRIDED_K, set4(d.k_stride, 5, 16, 8, 1); }),
        row(packed, I, "v_stride[0] is 5: expected 0, packed", [](D d) { d.strided = FA_STRIDED_V, set4(d.v_stride, 5, 8, 4, 1); }),
        row(packed, I, "o_stride[0] is 5: expected 0, packed",
            [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 5, 16, 4, 1); }),
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
        row(packed, I,
            "lse_stride is {0, 5, 1}:", [](D d) { d.strided = FA_STRIDED_LSE, d.lse_stride[1] = 5, d.lse_stride[2] = 1; }),
        row(packed, I, "lse_stride is {0, 0, 0}:", [](D d) { d.strided = FA_STRIDED_LSE; }),
        row(padded, I, "scores_stride is {60, 15, 5, 0}:", [](D d) { d.scores_stride[3] = 0; }),
        row(padded, I, "scores_stride is {60, 15, 4, 1}:", [](D d) { d.scores_stride[2] = 4; }),
        row(padded, I, "scores_stride is {0, 0, 0, 0}:", [](D d) { set4(d.scores_stride, 0, 0, 0, 0); }),
    };
}

}  // namespace

std::vector<Rule<Forward>> descriptor_rules() {
    return all_of<Forward>({known(), types(), sizes(), products(), numbers(), masks(), belongings(), strides(), sharing()});
}

TEST(Descriptor, GoodCallsWork) {
    Handle h;
    for (const auto good : {plain, padded, packed, paged}) check_good(h, good);
}

TEST(Descriptor, UnknownValuesAreRefused) { check_rules(known()); }
TEST(Descriptor, TypesAreChecked) { check_rules(types()); }
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
        [](D d) { d.heads_kv = 0; },
        [](D d) { d.dim_v = 0; },
        [](D d) { d.batch = 1 << 20, d.heads_q = 1 << 16, d.seqlen_q = 1 << 20, d.dim_qk = d.dim_v = 1; },
        [](D d) { d.dim_qk = 1, d.dim_v = 1024; },
        [](D d) { d.dim_qk = 1024, d.dim_v = 1; },
        [](D d) { d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT; },
        [](D d) { d.flags = FA_SCALE_EXPLICIT, d.scale = -3.0e38f; },
        [](D d) { d.softcap = 1.0e-30f; },
        [](D d) { d.dropout_p = 0.99999994f; },
        [](D d) { d.num_splits = 65536; },
        [](D d) { d.split_size = INT64_MAX; },
        [](D d) { d.reserve_sms = INT_MAX; },
        [](D d) { d.flags = FA_WINDOW, d.alignment = FA_ALIGN_TOP_LEFT, d.window_left = d.window_right = INT64_MAX; },
        [](D d) { d.flags = FA_WINDOW | FA_CAUSAL, d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.chunk = INT64_MAX, d.alignment = FA_ALIGN_BOTTOM_RIGHT; },
        [](D d) { d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1; },
        [](D d) { d.strided = FA_STRIDED_O, set4(d.o_stride, 16, 32, 4, 1); },
        [](D d) { d.strided = FA_STRIDED_O, d.batch = d.seqlen_q = d.heads_q = d.heads_kv = 1, set4(d.o_stride, 0, 0, 0, 1); },
    };
    Handle h;
    for (const Spoil& edge : edges) {
        Forward f;
        plain(&f);
        edge(f.d);
        EXPECT_EQ(fa_supports(h, &f.d, FA_OP_FORWARD), FA_OK) << fa_last_error(h);
        if (f.d.dim_qk == 8) {
            EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
        }
    }
}
