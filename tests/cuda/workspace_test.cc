// The size of a workspace is a question about a descriptor alone: it has an answer wherever fa_explain has one, and the same, whatever args
// a call with it could or could not have. Random descriptors of every operation, on the CPU and on a pretended GPU (fake_hopper.c).
#include <flashattn.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using Desc = fa_attention_desc_t;

constexpr int kRounds = 10000;  // of an operation
constexpr int64_t kHuge = INT32_MAX;

class Random {
  public:
    explicit Random(uint64_t seed) : bits_(seed) {}
    bool one_in(uint64_t n) { return bits_() % n == 0; }
    template <class T = int64_t>
    T any(const std::vector<T>& of) {
        return of[bits_() % of.size()];
    }

  private:
    std::mt19937_64 bits_;
};

void sizes(Random& random, Desc* desc) {
    desc->batch = random.any({0, 1, 2, 3, 5});
    desc->heads_k = random.any({1, 2, 4});
    desc->heads_q = desc->heads_k * random.any({1, 1, 2, 8});
    desc->seqlen_q = random.any({0, 1, 7, 64, 384, 1024});
    desc->seqlen_k = random.any({0, 1, 7, 384, 1024, 8192});
    desc->dim_qk = random.any({1, 5, 32, 64, 64, 72, 128, 128, 256, 512, 576});
    desc->dim_v = random.one_in(3) ? random.any({3, 64, 128, 512}) : 0;
    if (!random.one_in(12)) return;
    int64_t* const huge[] = {&desc->batch, &desc->heads_q, &desc->seqlen_q, &desc->seqlen_k};
    *random.any<int64_t*>({huge, huge + 4}) = random.any({kHuge, 1 << 20, 1 << 24, (int64_t(1) << 30) + 1});
}

void types(Random& random, Desc* desc, bool backward) {
    const std::vector<int32_t> floats = {FA_F32, FA_F16, FA_BF16, FA_BF16};
    desc->q_dtype = random.any(floats);
    if (random.one_in(3)) desc->k_dtype = random.any(floats);
    if (random.one_in(4)) desc->o_dtype = random.any(floats);
    if (backward || !random.one_in(3)) return;
    desc->k_dtype = random.any<int32_t>({FA_E4M3, FA_I8, FA_Q8_0, FA_Q4_0});
    if (desc->k_dtype == FA_E4M3 && random.one_in(2)) desc->q_dtype = FA_E4M3;
}

void rows(Random& random, Desc* desc) {
    const auto with = [&](uint64_t operand) { return random.one_in(6) && (desc->operands |= operand); };
    if (with(FA_OPERAND_CU_SEQLENS_Q)) desc->total_q = desc->seqlen_q < 4096 ? desc->batch * desc->seqlen_q : desc->seqlen_q;
    if (with(FA_OPERAND_CU_SEQLENS_K)) desc->total_k = desc->seqlen_k < 4096 ? desc->batch * desc->seqlen_k : desc->seqlen_k;
    else if (with(FA_OPERAND_PAGE_TABLE)) desc->page_size = random.any({1, 16, 64}), desc->num_pages = 100;
    with(FA_OPERAND_SEQUSED_Q), with(FA_OPERAND_SEQUSED_K), with(FA_OPERAND_LEFTPAD_K), with(FA_OPERAND_DEVICE_STATUS);
    if (!(desc->operands & FA_OPERAND_CU_SEQLENS_K) && with(FA_OPERAND_KV_BATCH_IDX)) desc->kv_batch = 4;
}

// Strides of inner dimensions that leave no gap, or a small one, or a large one, or share.
template <size_t kRank>
void lay(Random& random, const std::vector<int64_t>& extent, bool unit, bool packed, int64_t (&stride)[kRank]) {
    int64_t next = 1;
    for (size_t i = kRank; i-- > 0;) {
        const bool shares = random.one_in(4) && !(unit && i == kRank - 1);
        stride[i] = shares ? 0 : next;
        if (!shares && random.one_in(8) && !(unit && i == kRank - 1)) stride[i] += random.any({1, 8, int64_t(1) << 40});
        const int64_t many = extent[i] > 1 ? extent[i] : 1;
        if (stride[i] <= (int64_t(1) << 41) / many && stride[i] > 0) next = stride[i] * many;
    }
    if (packed) stride[0] = 0;
}

void strides(Random& random, Desc* desc) {
    const bool packed_q = desc->operands & FA_OPERAND_CU_SEQLENS_Q, packed_k = desc->operands & FA_OPERAND_CU_SEQLENS_K;
    const bool paged = desc->operands & FA_OPERAND_PAGE_TABLE;
    const int64_t dim_v = desc->dim_v ? desc->dim_v : desc->dim_qk, queries = packed_q ? desc->total_q : desc->seqlen_q;
    const int64_t keys = packed_k ? desc->total_k : paged ? desc->page_size : desc->seqlen_k;
    const auto strided = [&](uint32_t bit) { return random.one_in(2) && (desc->strided |= bit); };
    if (strided(FA_STRIDED_Q)) lay(random, {desc->batch, queries, desc->heads_q, desc->dim_qk}, true, packed_q, desc->q_stride);
    if (strided(FA_STRIDED_K)) lay(random, {desc->batch, keys, desc->heads_k, desc->dim_qk}, true, packed_k, desc->k_stride);
    if (strided(FA_STRIDED_V)) lay(random, {desc->batch, keys, desc->heads_k, dim_v}, true, packed_k, desc->v_stride);
    if (random.one_in(4))
        lay(random, {desc->batch, queries, desc->heads_q, dim_v}, true, packed_q, desc->o_stride), desc->strided |= FA_STRIDED_O;
}

void scores(Random& random, Desc* desc, bool backward) {
    const std::vector<int64_t> pairs = {desc->batch, desc->heads_q, desc->seqlen_q, desc->seqlen_k};
    const auto with = [&](uint64_t n, uint64_t operand) { return random.one_in(n) && (desc->operands |= operand); };
    if (random.one_in(3)) desc->flags |= FA_CAUSAL, desc->alignment = FA_ALIGN_BOTTOM_RIGHT;
    if (random.one_in(8)) desc->flags |= FA_WINDOW, desc->window_left = 64, desc->alignment = FA_ALIGN_TOP_LEFT;
    if (with(2, FA_OPERAND_BIAS)) {
        lay(random, pairs, false, false, desc->bias_stride);
        desc->bias_dtype = random.one_in(2) ? desc->q_dtype : random.any<int32_t>({0, FA_F32, FA_F16, FA_BF16});
        if (random.one_in(3)) desc->bias_period[0] = 1;
        if (random.one_in(3)) desc->bias_period[1] = random.any({1, 2});
        if (random.one_in(6)) desc->bias_stride[2] = desc->bias_stride[3] = 1;  // by the sum of row and key
    }
    if (with(6, FA_OPERAND_MASK)) lay(random, pairs, false, false, desc->mask_stride);
    if (with(12, FA_OPERAND_KEY_RANGES)) desc->key_range_stride[2] = 1;
    if (with(8, FA_OPERAND_KEY_LIST)) {
        desc->list_rows = desc->list_keys = random.any({16, 64, 128}), desc->list_max = 8;
        desc->list_heads = 1, desc->list_stride[2] = 8, desc->list_stride[3] = 1;
        if (with(2, FA_OPERAND_KEY_LIST_COUNT)) desc->list_count_stride[2] = 1;
    }
    with(8, FA_OPERAND_ALIBI), with(6, FA_OPERAND_SINKS);
    if (with(12, FA_OPERAND_RNG_STATE)) desc->dropout_p = .25f;
    if (desc->operands & FA_OPERAND_ALIBI) desc->alignment = FA_ALIGN_BOTTOM_RIGHT;
    if (with(12, FA_OPERAND_CAUSAL_OFFSET)) desc->alignment = FA_ALIGN_EXPLICIT;
    if (backward) return;
    if (with(12, FA_OPERAND_SCORES)) {
        desc->scores_stage = FA_SCORES_PROBABILITY;
        int64_t next = 1;
        for (int i = 4; i-- > 0; next *= pairs[size_t(i)] > 0 && pairs[size_t(i)] < 10000 ? pairs[size_t(i)] : 1)
            desc->scores_stride[i] = next;
    }
    with(8, FA_OPERAND_O_SCALE), with(8, FA_OPERAND_K_DESCALE), with(8, FA_OPERAND_V_DESCALE);
    if (random.one_in(16)) desc->algorithm = random.any<int32_t>({FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1});
    if (random.one_in(6)) desc->num_splits = random.any<int32_t>({1, 2, 7});
}

Desc describe(Random& random, int32_t op) {
    const bool backward = op == FA_OP_BACKWARD;
    Desc d = FA_ATTENTION_DESC_INIT;
    sizes(random, &d);
    types(random, &d, backward);
    if (op == FA_OP_FORWARD || backward) {
        rows(random, &d);
        scores(random, &d, backward);
    } else if (op == FA_OP_APPEND_KV) {
        d.operands = random.any<uint64_t>({0, FA_OPERAND_SEQUSED_K, FA_OPERAND_SEQUSED_K | FA_OPERAND_DEVICE_STATUS});
        if (random.one_in(3)) d.operands |= FA_OPERAND_PAGE_TABLE, d.page_size = 16, d.num_pages = 100;
    } else if (random.one_in(3)) {
        d.operands = FA_OPERAND_CU_SEQLENS_Q, d.total_q = d.seqlen_q;
    }
    if (backward || op == FA_OP_MERGE || random.one_in(2)) d.operands |= FA_OPERAND_LSE;
    if (op == FA_OP_ROTARY || op == FA_OP_APPEND_KV) d.operands &= ~FA_OPERAND_LSE;
    if (!random.one_in(4)) strides(random, &d);
    return d;
}

// What the plan says, unprepared.
std::string planned(const std::string& text) {
    const std::string sign = "workspace of ";
    const size_t at = text.rfind(sign);
    return at == std::string::npos ? text : text.substr(at + sign.size());
}

class Workspace : public testing::TestWithParam<int32_t> {
  protected:
    void SetUp() override {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = GetParam();
        info.memory = FA_MEMORY_DEVICE;
        if (info.backend == FA_BACKEND_CPU) info.memory = FA_MEMORY_DEFAULT;
        ASSERT_EQ(fa_create(&handle_, &info), FA_OK) << fa_last_error(nullptr);
    }
    void TearDown() override { fa_destroy(handle_); }

    // Did the question have an answer?
    bool expect_planned(const Desc& desc, int32_t op) {
        char text[FA_TEXT_MAX] = "";
        uint64_t bytes = 12345;
        const fa_status_t status = fa_explain(handle_, &desc, op, text, sizeof text);
        EXPECT_EQ(fa_workspace_size(handle_, &desc, op, &bytes), status) << fa_last_error(handle_) << "\n" << text;
        if (status == FA_OK) EXPECT_EQ(std::to_string(bytes) + " bytes", planned(text));
        else EXPECT_EQ(bytes, 12345u);
        return status == FA_OK;
    }
    fa_handle_t handle_ = nullptr;
};

TEST_P(Workspace, HasTheSizeThatIsPlanned) {
    for (const int32_t op : {FA_OP_FORWARD, FA_OP_MERGE, FA_OP_APPEND_KV, FA_OP_ROTARY, FA_OP_BACKWARD}) {
        Random random(20261129u + uint64_t(op));
        int answered = 0;
        for (int n = 0; n < kRounds; n++) {
            SCOPED_TRACE("operation " + std::to_string(op) + ", round " + std::to_string(n));
            answered += expect_planned(describe(random, op), op);
            if (HasFailure()) return;
        }
        EXPECT_GT(answered, kRounds / 2) << op;
    }
}

// Each input of a backward alone, in each dimension: the gradient of none of them can have such strides.
TEST_P(Workspace, OfGradientsOfBroadcastInputs) {
    const struct {
        uint32_t bit;
        int64_t (Desc::*stride)[4];
    } inputs[] = {
        {FA_STRIDED_Q, &Desc::q_stride}, {FA_STRIDED_K, &Desc::k_stride}, {FA_STRIDED_V, &Desc::v_stride}, {0, &Desc::bias_stride}};
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const uint64_t packed : {uint64_t(0), uint64_t(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K)})
            for (const auto& input : inputs)
                for (int shared = 1; shared < 16; shared++) {  // a bit for each dimension
                    Desc d = FA_ATTENTION_DESC_INIT;
                    d.q_dtype = dtype, d.bias_dtype = input.bit ? 0 : dtype;
                    d.batch = 2, d.heads_q = d.heads_k = 4, d.seqlen_q = d.seqlen_k = 256, d.dim_qk = 64;
                    d.operands = FA_OPERAND_LSE | (input.bit ? packed : FA_OPERAND_BIAS);
                    d.total_q = d.total_k = d.operands & packed ? 500 : 0;
                    d.strided = input.bit;
                    int64_t (&stride)[4] = d.*input.stride;
                    int64_t next = 1;
                    for (int i = 4; i-- > 0; next *= 256) stride[i] = shared >> i & 1 ? 0 : next;
                    if (input.bit) stride[3] = 1;
                    if (d.operands & packed) stride[0] = 0;
                    EXPECT_TRUE(expect_planned(d, FA_OP_BACKWARD)) << fa_last_error(handle_);
                }
}

// A bias of two bytes that a gradient of four could not follow so far.
TEST_P(Workspace, OfGradientsThatReachFarther) {
    Desc d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = d.bias_dtype = FA_BF16;
    d.batch = 2, d.heads_q = 4, d.seqlen_q = d.seqlen_k = 256, d.dim_qk = 64;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS;
    d.bias_stride[0] = (int64_t(1) << 62) - 1024 * 1024;
    d.bias_stride[1] = 65536, d.bias_stride[2] = 256, d.bias_stride[3] = 1;
    EXPECT_TRUE(expect_planned(d, FA_OP_BACKWARD)) << fa_last_error(handle_);
}

// More rows than one launch appends, if there were a new one of each sequence.
TEST_P(Workspace, OfAppendsToMoreSequencesThanALaunchHolds) {
    Desc d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = d.k_dtype = FA_BF16;
    d.batch = kHuge, d.heads_q = d.heads_k = 64, d.seqlen_k = 1, d.dim_qk = 1;
    EXPECT_TRUE(expect_planned(d, FA_OP_APPEND_KV)) << fa_last_error(handle_);
}

INSTANTIATE_TEST_SUITE_P(Backends, Workspace, testing::Values(FA_BACKEND_CPU, FA_BACKEND_CUDA),
                         [](const auto& backend) { return backend.param == FA_BACKEND_CPU ? "Cpu" : "Cuda"; });

}  // namespace
