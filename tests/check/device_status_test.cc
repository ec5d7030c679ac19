// The status word: what a GPU says of arrays in its own memory, which nobody has checked before the call. A CPU refuses the same.
#include <gtest/gtest.h>
#include <functional>
#include "support/handle.h"

namespace test {
namespace {

using Ints = std::vector<int32_t>;

class DeviceStatus : public testing::Test {
  protected:
    DeviceStatus() {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = backend_under_test(), info.memory = FA_MEMORY_DEVICE;
        EXPECT_EQ(fa_create(&handle_, &info), FA_OK) << fa_last_error(nullptr);
    }
    ~DeviceStatus() override {
        for (void* p : memory_) fa_free(handle_, p);
        fa_destroy(handle_);
    }

    void* room(uint64_t bytes) {
        memory_.push_back(nullptr);
        EXPECT_EQ(fa_malloc(handle_, bytes, &memory_.back()), FA_OK) << fa_last_error(handle_);
        const std::vector<char> zeros(bytes);
        EXPECT_EQ(fa_copy(handle_, memory_.back(), zeros.data(), bytes), FA_OK) << fa_last_error(handle_);
        return memory_.back();
    }
    const int32_t* put(const Ints& values) {
        void* const to = room(values.size() * sizeof(int32_t));
        EXPECT_EQ(fa_copy(handle_, to, values.data(), values.size() * sizeof(int32_t)), FA_OK);
        return static_cast<const int32_t*>(to);
    }
    // What a call says, with the bit 1 << 8 in the word before: of a CPU, whether it refuses.
    uint32_t bits_of(const std::function<fa_status_t(uint32_t* word)>& call) {
        uint32_t bits = 1 << 8;
        uint32_t* const word = static_cast<uint32_t*>(room(sizeof bits));
        EXPECT_EQ(fa_copy(handle_, word, &bits, sizeof bits), FA_OK);
        const fa_status_t status = call(word);
        EXPECT_EQ(fa_synchronize(handle_), FA_OK);
        EXPECT_EQ(fa_copy(handle_, &bits, word, sizeof bits), FA_OK);
        EXPECT_TRUE(bits & 1 << 8);
        if (!testing_the_cpu()) {
            EXPECT_EQ(status, FA_OK) << fa_last_error(handle_);
            return bits & ~(1u << 8);
        }
        EXPECT_EQ(bits, 1u << 8);
        return status == FA_INVALID_ARGUMENT ? ~0u : 0;
    }
    static void expect_bits(uint32_t got, uint32_t want, const char* what) {
        EXPECT_EQ(got, testing_the_cpu() && want != 0 ? ~0u : want) << what;
    }

    fa_handle_t handle_ = nullptr;

  private:
    std::vector<void*> memory_;
};

// Two sequences over three of a cache in pages of 4, with ranges and lists of keys.
struct Paged {
    Ints used_q{3, 2}, used_k{20, 9}, leftpad{0, 5}, index{2, 0};
    Ints table{0, 1, 2, -9, 99, -1, -1, -1, -1, -1, 7, 6, 5, 4, 3};  // sequence 1 begins with its second page and has three
    Ints ranges{0, 5, 7, 9, 0, 0, 3, 30, -4, 2, 2, 8};               // [batch][row], of all heads
    Ints list{0, -1, 1, 1, 0, -1, 1, 0}, counts{2, 1, 2, 2};         // [batch][list head][1][entry]; blocks of 16 keys
};
struct Spoiled {
    const char* what;
    uint32_t bits;
    std::function<void(Paged&)> spoil;
};

TEST_F(DeviceStatus, OfAForwardOverPages) {
    const std::vector<Spoiled> all = {
        {"nothing", 0, [](Paged&) {}},
        {"a length of q", FA_BAD_LENGTH, [](Paged& paged) { paged.used_q[1] = 4; }},
        {"a negative length", FA_BAD_LENGTH, [](Paged& paged) { paged.used_q[0] = -1; }},
        {"a length of k", FA_BAD_LENGTH, [](Paged& paged) { paged.used_k[0] = 21; }},
        {"padding behind the keys", FA_BAD_LENGTH, [](Paged& paged) { paged.leftpad[1] = 10; }},
        {"an index", FA_BAD_INDEX, [](Paged& paged) { paged.index[1] = 3; }},
        {"a page", FA_BAD_PAGE, [](Paged& paged) { paged.table[14] = 12; }},
        {"a negative page", FA_BAD_PAGE, [](Paged& paged) { paged.table[1] = -1; }},
        {"a page that is not used", 0, [](Paged& paged) { paged.table[0] = 1 << 30; }},
        {"an entry", FA_BAD_INDEX, [](Paged& paged) { paged.list[2] = 2; }},
        {"an entry below none", FA_BAD_INDEX, [](Paged& paged) { paged.list[0] = -2; }},
        {"an entry that is not read", 0, [](Paged& paged) { paged.counts[0] = 1, paged.list[1] = 77; }},
        {"a count", FA_BAD_INDEX, [](Paged& paged) { paged.counts[3] = 3; }},
        {"a length and a page", FA_BAD_LENGTH | FA_BAD_PAGE, [](Paged& paged) { paged.used_q[1] = 4, paged.table[14] = 12; }},
    };
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 2, d.heads_q = 2, d.seqlen_q = 3, d.seqlen_k = 20, d.dim_qk = 16;
    d.page_size = 4, d.num_pages = 12, d.kv_batch = 3;
    d.operands = FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE |
                 FA_OPERAND_KEY_RANGES | FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_DEVICE_STATUS;
    d.key_range_max = 1, d.key_range_stride[0] = 3, d.key_range_stride[2] = d.key_range_stride[3] = 1;
    d.list_max = 2, d.list_rows = 16, d.list_keys = 16, d.list_heads = 2;
    d.list_stride[0] = 4, d.list_stride[1] = 2, d.list_stride[3] = 1, d.list_count_stride[0] = 2, d.list_count_stride[1] = 1;
    for (const Spoiled& one : all) {
        Paged p;
        one.spoil(p);
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = room(2 * 3 * 2 * 16 * 4), a.k = room(12 * 4 * 2 * 16 * 4), a.v = room(12 * 4 * 2 * 16 * 4), a.o = room(2 * 3 * 2 * 16 * 4);
        a.seqused_q = put(p.used_q), a.seqused_k = put(p.used_k), a.leftpad_k = put(p.leftpad), a.kv_batch_idx = put(p.index);
        a.page_table = put(p.table), a.key_ranges = put(p.ranges), a.key_list = put(p.list), a.key_list_count = put(p.counts);
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_forward_ex(handle_, &d, &a); }), one.bits, one.what);
    }
}

// The starts of packed sequences, and in the backward.
TEST_F(DeviceStatus, OfPackedSequences) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 3, d.heads_q = 1, d.seqlen_q = d.seqlen_k = 5, d.total_q = d.total_k = 12, d.dim_qk = 16;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_DEVICE_STATUS;
    const struct {
        Ints q, k;
        uint32_t bits;
    } all[] = {{{0, 5, 5, 9}, {2, 3, 7, 12}, 0},
               {{0, 6, 6, 9}, {2, 3, 7, 12}, FA_BAD_LENGTH},
               {{0, 5, 4, 9}, {2, 3, 7, 12}, FA_BAD_LENGTH},
               {{0, 5, 5, 9}, {2, 3, 8, 13}, FA_BAD_LENGTH},
               {{-1, 1, 5, 9}, {2, 3, 7, 12}, FA_BAD_LENGTH}};
    for (const auto& one : all) {
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        constexpr uint64_t kBytes = 12 * 16 * 4;
        a.q = room(kBytes), a.k = room(kBytes), a.v = room(kBytes), a.o = room(kBytes), a.lse = static_cast<float*>(room(12 * 4));
        a.cu_seqlens_q = put(one.q), a.cu_seqlens_k = put(one.k);
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_forward_ex(handle_, &d, &a); }), one.bits, "forward");
        fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
        b.forward = &a, b.dout = room(kBytes), b.dq = room(kBytes), b.dk = room(kBytes), b.dv = room(kBytes);
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_backward(handle_, &d, &b); }), one.bits, "backward");
    }
}

// Slots and intervals of which a row has several.
TEST_F(DeviceStatus, OfListsOfSlots) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 1, d.heads_q = 1, d.seqlen_q = 1, d.dim_qk = 16;
    d.operands = FA_OPERAND_KEY_LIST | FA_OPERAND_DEVICE_STATUS;
    d.list_space = FA_LIST_SLOTS, d.page_size = 4, d.num_pages = 2, d.list_max = 3, d.list_stride[3] = 1;
    for (const auto& [list, bits] :
         std::vector<std::pair<Ints, uint32_t>>{{{7, -1, 0}, 0}, {{7, 8, 0}, FA_BAD_INDEX}, {{-2, 1, 0}, FA_BAD_INDEX}}) {
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = room(64), a.k = room(8 * 64), a.v = room(8 * 64), a.o = room(64), a.key_list = put(list);
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_forward_ex(handle_, &d, &a); }), bits, "slots");
    }
    fa_attention_desc_t r = FA_ATTENTION_DESC_INIT;
    r.q_dtype = FA_F32, r.batch = 1, r.heads_q = 1, r.seqlen_q = 1, r.seqlen_k = 8, r.dim_qk = 16;
    r.operands = FA_OPERAND_KEY_RANGES | FA_OPERAND_DEVICE_STATUS, r.key_range_max = 3, r.key_range_stride[3] = 1;
    for (const auto& [pairs, bits] : std::vector<std::pair<Ints, uint32_t>>{
             {{0, 2, 5, 5, 2, 9}, 0}, {{0, 3, 5, 5, 2, 9}, FA_BAD_INDEX}, {{4, 6, 0, 2, 7, 8}, FA_BAD_INDEX}}) {
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = room(64), a.k = room(8 * 64), a.v = room(8 * 64), a.o = room(64), a.key_ranges = put(pairs);
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_forward_ex(handle_, &r, &a); }), bits, "ranges");
    }
}

// New tokens: by positions and behind those in use, rotated or not.
TEST_F(DeviceStatus, OfAnAppend) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 2, d.heads_q = 1, d.seqlen_k = 8, d.dim_qk = 16, d.page_size = 4, d.num_pages = 3;
    d.operands = FA_OPERAND_SEQUSED_K | FA_OPERAND_PAGE_TABLE | FA_OPERAND_DEVICE_STATUS;
    const struct {
        const char* what;
        Ints used_k, table, used_new, positions;
        int64_t angles;
        uint32_t bits;
    } all[] = {{"nothing", {3, 6}, {0, 2, -1, 1}, {2, 2}, {}, 0, 0},
               {"a full cache", {3, 7}, {0, 2, -1, 1}, {2, 2}, {}, 0, FA_BAD_LENGTH},
               {"a length", {3, 9}, {0, 2, -1, 1}, {2, 2}, {}, 0, FA_BAD_LENGTH},
               {"too many tokens", {3, 6}, {0, 2, -1, 1}, {2, 3}, {}, 0, FA_BAD_LENGTH},
               {"a page", {3, 6}, {0, 3, -1, 1}, {2, 2}, {}, 0, FA_BAD_PAGE},
               {"a page that is not needed", {2, 6}, {0, 3, -1, 1}, {2, 2}, {}, 0, 0},
               {"positions", {3, 6}, {0, 2, -1, 1}, {2, 1}, {7, -1, 4, 99}, 0, 0},
               {"a position", {3, 6}, {0, 2, -1, 1}, {2, 2}, {7, -1, 4, 8}, 0, FA_BAD_INDEX},
               {"a position's page", {3, 6}, {0, 2, -1, 1}, {2, 2}, {7, -1, 4, 3}, 0, FA_BAD_PAGE},
               {"angles", {3, 6}, {0, 2, -1, 1}, {2, 2}, {}, 8, 0},
               {"too few angles", {3, 6}, {0, 2, -1, 1}, {2, 2}, {}, 7, FA_BAD_INDEX},
               {"too few angles of a position", {3, 6}, {0, 2, -1, 1}, {2, 2}, {7, 2, 4, 5}, 7, FA_BAD_INDEX}};
    for (const auto& one : all) {
        fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
        a.seqlen_new = 2, a.k_new = room(4 * 64), a.v_new = room(4 * 64), a.k = room(12 * 64), a.v = room(12 * 64);
        a.seqused_k = put(one.used_k), a.page_table = put(one.table), a.seqused_new = put(one.used_new);
        if (!one.positions.empty()) a.positions = put(one.positions);
        if (one.angles > 0) a.max_position = one.angles, a.rotary_dim = 4;
        if (one.angles > 0) a.cos = static_cast<const float*>(room(uint64_t(one.angles) * 8)), a.sin = a.cos;
        expect_bits(bits_of([&](uint32_t* word) { return a.device_status = word, fa_append_kv(handle_, &d, &a); }), one.bits, one.what);
    }
}

}  // namespace
}  // namespace test
