// What is refused, and that no rank is left waiting: with peers that refuse, differ, are silent or cut a message short.
#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>
#include <algorithm>
#include <set>
#include "spread.h"
#include "support/at_the_end.h"

namespace test {
namespace {

Case small(int32_t q_dtype = FA_F32) {
    Case c = shaped({1, 4, 4, 24, 24, 16, 16}, q_dtype);
    Rng rng(3);
    c.bind(rng);
    c.fill_normal(rng);
    return c;
}

using Change = std::function<void(int32_t, fa_attention_desc_t&, fa_cp_desc_t&, fa_forward_args_t&)>;

std::vector<RankResult> changed(const Change& change, int32_t ranks = 3) {
    Case c = small();
    Spread s = by_rows(ranks, FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_ZIGZAG);
    s.change = change;
    StandIn room(ranks);
    return run_spread(c, s, room);
}

void expect_everywhere(const Change& change, fa_status_t status, const char* sentence) {
    for (const RankResult& r : changed(change)) {
        EXPECT_EQ(status, r.status) << fa_status_name(r.status) << ": " << r.error;
        EXPECT_NE(std::string::npos, r.error.find(sentence)) << r.error;
    }
}

TEST(CpFaults, WhatNoMethodHasIsRefused) {
    using D = fa_attention_desc_t&;
    using S = fa_cp_desc_t&;
    using A = fa_forward_args_t&;
    static float scores[4 * 24 * 24];
    alignas(256) static char workspace[256];
    expect_everywhere([](int32_t, D d, S s, A) { d.dropout_p = 0.5f, s = {sizeof s, 0, FA_CP_SHARD_KEYS, 0, 0, 0, 0}; }, FA_UNSUPPORTED,
                      "dropout_p is 0.5: expected 0 with FA_CP_SHARD_KEYS");
    expect_everywhere([](int32_t, D d, S, A a) { d.flags |= FA_V_IN_K, a.v = nullptr; }, FA_UNSUPPORTED, "no FA_V_IN_K on 3 ranks");
    static float bias[4 * 24 * 24];
    expect_everywhere([](int32_t, D d, S, A a) { d.operands |= FA_OPERAND_BIAS, d.bias_period[1] = 2, a.bias = bias; }, FA_UNSUPPORTED,
                      "bias_period[1] is 2");
    static uint8_t mask[4 * 24 * 24];
    expect_everywhere([](int32_t, D d, S, A a) { d.operands |= FA_OPERAND_MASK, d.mask_keys = 8, a.mask = mask; }, FA_UNSUPPORTED,
                      "mask_keys is 8");
    expect_everywhere([](int32_t, D d, S, A a) { d.operands |= FA_OPERAND_SCORES, a.scores = scores; }, FA_UNSUPPORTED,
                      "no FA_OPERAND_SCORES");
    expect_everywhere([](int32_t, D d, S, A) { d.algorithm = FA_ALGORITHM_STANDARD; }, FA_UNSUPPORTED, "algorithm is 1");
    expect_everywhere([](int32_t, D, S, A a) { a.workspace = workspace, a.workspace_size = 256; }, FA_UNSUPPORTED, "workspace is ");
    expect_everywhere([](int32_t, D, S s, A) { s.method = FA_CP_METHOD_ULYSSES; }, FA_UNSUPPORTED,
                      "heads_k is 4: expected a multiple of the 3 ranks");
    expect_everywhere([](int32_t, D d, S s, A) { s.method = FA_CP_METHOD_RING, d.chunk = 8, d.alignment = FA_ALIGN_TOP_LEFT; },
                      FA_UNSUPPORTED, "chunk is 8");
    expect_everywhere([](int32_t, D, S s, A) { s.method = FA_CP_METHOD_MERGE; }, FA_INVALID_ARGUMENT, "spread.method is 4");
    expect_everywhere([](int32_t, D, S s, A) { s.shard = 0; }, FA_INVALID_ARGUMENT, "spread.shard is not set");
    expect_everywhere([](int32_t, D, S s, A) { s.shard = 7; }, FA_UNSUPPORTED_FIELD, "spread.shard is 7");
    expect_everywhere([](int32_t, D, S s, A) { s.block = -1; }, FA_INVALID_ARGUMENT, "spread.block is -1");
    expect_everywhere([](int32_t, D, S s, A) { s.head_chunk = 3; }, FA_INVALID_ARGUMENT, "spread.head_chunk is 3");
    expect_everywhere([](int32_t, D, S s, A) { s.shard = FA_CP_SHARD_KEYS, s.method = 0; }, FA_INVALID_ARGUMENT, "spread.layout is 1");
    expect_everywhere([](int32_t, D d, S, A) { d.heads_k = 3; }, FA_INVALID_ARGUMENT, "heads_k is 3");
    expect_everywhere([](int32_t, D, S, A a) { a.k = nullptr; }, FA_INVALID_ARGUMENT, "k is NULL");
    expect_everywhere([](int32_t, D, S, A a) { a.lse = nullptr; }, FA_INVALID_ARGUMENT, "lse is NULL");
    expect_everywhere([](int32_t, D, S, A a) { a.sinks = scores; }, FA_INVALID_ARGUMENT, "expected NULL without FA_OPERAND_SINKS");
    expect_everywhere([](int32_t, D, S, A a) { a.flags = 1u << 30; }, FA_UNSUPPORTED_FIELD, "flags is 0x40000000");
}

// One that this list lacks is refused, and so is any that the descriptor gains.
TEST(CpFaults, FieldsThatNoMethodKnowsAreRefused) {
    // clang-format off: the fields of src/cp/known.cc, not a line for each
    const std::set<std::string> known = {
        "struct_size", "flags", "operands", "strided", "alignment", "q_dtype", "k_dtype", "v_dtype", "o_dtype", "bias_dtype",
        "q_descale_dtype", "k_descale_dtype", "v_descale_dtype", "precision", "num_splits", "split_size", "reserve_units", "scale",
        "softcap", "dropout_p", "window_left", "window_right", "chunk", "batch", "heads_q", "heads_k", "heads_v", "dim_qk", "dim_v",
        "seqlen_q", "seqlen_k", "total_q", "total_k", "kv_batch", "page_size", "num_pages", "page_table_stride", "q_descale_block",
        "k_descale_block", "v_descale_block", "q_stride", "k_stride", "v_stride", "o_stride", "lse_stride", "bias_stride",
        "mask_stride", "q_descale_stride", "k_descale_stride", "v_descale_stride", "alibi_batch_stride"};
    // clang-format on
    const struct {
        std::string name;
        size_t offset, bytes;
    } fields[] = {
#define FA_FIELD(field) {#field, offsetof(fa_attention_desc_t, field), sizeof(fa_attention_desc_t::field)},
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
    };
    size_t refused = 0;
    for (const auto& field : fields) {
        if (known.count(field.name)) continue;
        SCOPED_TRACE(field.name);
        refused++;
        for (const size_t at : {field.offset, field.offset + field.bytes - 4}) {  // the first element, and the last
            const Change change = [&](int32_t, fa_attention_desc_t& desc, fa_cp_desc_t&, fa_forward_args_t&) {
                reinterpret_cast<char*>(&desc)[at] ^= 1;
            };
            for (const RankResult& r : changed(change)) {
                EXPECT_EQ(FA_UNSUPPORTED, r.status) << fa_status_name(r.status) << ": " << r.error;
                EXPECT_NE(std::string::npos, r.error.find(field.name)) << r.error;
            }
        }
    }
    EXPECT_EQ(sizeof fields / sizeof *fields, known.size() + refused) << "the list has a name that is no field's";
}

TEST(CpFaults, ARankThatRefusesTellsTheOthers) {
    const std::vector<RankResult> results = changed([](int32_t rank, fa_attention_desc_t&, fa_cp_desc_t&, fa_forward_args_t& args) {
        if (rank == 1) args.q = nullptr;
    });
    EXPECT_EQ(FA_INVALID_ARGUMENT, results[1].status) << results[1].error;
    for (const size_t other : {0u, 2u}) {
        EXPECT_EQ(FA_PEER_FAILED, results[other].status);
        EXPECT_EQ("rank 1 gave up the call with FA_INVALID_ARGUMENT", results[other].error);
    }
}

TEST(CpFaults, RanksThatDifferAllSaySo) {
    struct {
        Change change;
        const char* what;
    } const differences[] = {
        {[](int32_t rank, fa_attention_desc_t& desc, fa_cp_desc_t&, fa_forward_args_t&) { desc.softcap = rank == 2 ? 5.f : 0.f; },
         "attention descriptor"},
        {[](int32_t rank, fa_attention_desc_t&, fa_cp_desc_t& s, fa_forward_args_t&) { s.block = rank == 2 ? 1 : 2; }, "fa_cp_desc_t"},
        {[](int32_t rank, fa_attention_desc_t& desc, fa_cp_desc_t&, fa_forward_args_t& args) {
             desc.dropout_p = 0.5f, args.dropout_seed = rank == 2 ? 1 : 2;
         },
         "dropout seeds"},
    };
    for (const auto& difference : differences)
        for (const RankResult& r : changed(difference.change)) {
            EXPECT_EQ(FA_PEERS_DISAGREE, r.status) << r.error;
            EXPECT_NE(std::string::npos, r.error.find(difference.what)) << r.error;
        }
}

// What a rank says of itself begins with its library's version. The peer here says the same as this rank, but for the bytes' order there.
TEST(CpFaults, ARankOfAnotherByteOrderIsToldSo) {
    const Handle handle = make_handle();
    fa_cp_transport_t transport = FA_CP_TRANSPORT_INIT;
    transport.ranks = 2;
    transport.start = [](void*, const fa_cp_message_t* messages, int64_t count, uint64_t*) {
        const char* said = nullptr;
        for (int64_t i = 0; i < count; i++)
            if (messages[i].direction == FA_CP_SEND) said = static_cast<const char*>(messages[i].data);
        for (int64_t i = 0; i < count; i++) {
            if (messages[i].direction == FA_CP_SEND) continue;
            char* const heard = static_cast<char*>(messages[i].data);
            memcpy(heard, said, messages[i].bytes);
            std::reverse(heard, heard + sizeof(uint64_t));
        }
        return fa_status_t(FA_OK);
    };
    transport.wait = [](void*, uint64_t, int64_t) { return fa_status_t(FA_OK); };
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp = nullptr;
    ASSERT_EQ(FA_OK, fa_cp_create(&cp, handle, &info));
    Case c = small();
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS;
    EXPECT_EQ(FA_PEERS_DISAGREE, fa_cp_forward(cp, &c.d, &spread, &c.a));
    EXPECT_STREQ("rank 1 stores numbers in another byte order than rank 0", fa_cp_last_error(cp));
    EXPECT_EQ(FA_OK, fa_cp_destroy(cp));
}

TEST(CpFaults, ARankThatComputesNothingTellsTheOthersAtTheEnd) {
    // The core refuses the piece: this rank's bias is not aligned.
    static float bias[4 * 24 * 24 + 1];
    const std::vector<RankResult> results = changed([](int32_t rank, fa_attention_desc_t& desc, fa_cp_desc_t&, fa_forward_args_t& args) {
        desc.operands |= FA_OPERAND_BIAS;
        dense_pairs(desc, desc.bias_stride);
        args.bias = reinterpret_cast<char*>(bias) + (rank == 1 ? 1 : 0);
    });
    EXPECT_EQ(FA_INVALID_ARGUMENT, results[1].status) << results[1].error;
    EXPECT_NE(std::string::npos, results[1].error.find("bias")) << results[1].error;
    EXPECT_EQ(FA_PEER_FAILED, results[0].status) << results[0].error;
    EXPECT_EQ(FA_PEER_FAILED, results[2].status) << results[2].error;
}

TEST(CpFaults, ASilentRankIsATimeoutForEachThatWaitsForIt) {
    for (const int32_t method : {FA_CP_METHOD_ALL_GATHER, FA_CP_METHOD_RING, FA_CP_METHOD_ULYSSES}) {
        for (const int64_t message : {0, 3, 5}) {
            Case c = small();
            Spread s = by_rows(4, method, FA_CP_LAYOUT_CONTIGUOUS);
            s.timeout_ms = 200;
            s.again = true;  // afterwards the object is of no use
            StandIn room(4);
            room.mute_rank = 1, room.mute_message = message;
            const std::vector<RankResult> results = run_spread(c, s, room);
            for (const RankResult& r : results) {
                EXPECT_EQ(FA_INVALID_STATE, r.status) << fa_status_name(r.status) << ": " << r.error;
                EXPECT_NE(std::string::npos, r.error.find("the transport failed")) << r.error;
            }
        }
    }
}

TEST(CpFaults, ASilentRankHasItsSentence) {
    Case c = small();
    Spread s = by_rows(2, FA_CP_METHOD_RING, FA_CP_LAYOUT_CONTIGUOUS);
    s.timeout_ms = 150;
    StandIn room(2);
    room.mute_rank = 0;
    const std::vector<RankResult> results = run_spread(c, s, room);
    EXPECT_EQ(FA_TIMEOUT, results[1].status);
    EXPECT_EQ("rank 1 of 2 waited 150 ms for the ranks' statuses: a peer does not answer", results[1].error);
    EXPECT_EQ(FA_TIMEOUT, results[0].status);
}

TEST(CpFaults, AMessageCutShortIsAFailedPeer) {
    for (const int64_t message : {0, 1}) {  // a status, and data
        Case c = small();
        Spread s = by_rows(2, FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_CONTIGUOUS);
        s.timeout_ms = 3000;  // longer than a busy machine delays a thread: the receiver's status must not be a timeout
        StandIn room(2);
        room.cut_rank = 0, room.cut_message = message;
        const std::vector<RankResult> results = run_spread(c, s, room);
        EXPECT_EQ(FA_PEER_FAILED, results[1].status) << results[1].error;
        EXPECT_NE(FA_OK, results[0].status);
    }
}

TEST(CpFaults, CreateChecksItsArguments) {
    const Handle handle = make_handle();
    StandIn room(2);
    fa_cp_transport_t transport = room.transport(0);
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp = nullptr;
    const auto refused = [&](fa_status_t status, const char* sentence) {
        EXPECT_EQ(status, fa_cp_create(&cp, handle, &info));
        EXPECT_EQ(nullptr, cp);
        EXPECT_NE(std::string::npos, std::string(fa_cp_last_error(nullptr)).find(sentence)) << fa_cp_last_error(nullptr);
    };
    EXPECT_EQ(FA_OK, fa_cp_create(&cp, handle, &info));
    EXPECT_EQ(FA_OK, fa_cp_destroy(cp));
    EXPECT_EQ(FA_OK, fa_cp_destroy(nullptr));
    info.flags = 2, refused(FA_UNSUPPORTED_FIELD, "info.flags is 0x2"), info.flags = 0;
    info.timeout_ms = -2, refused(FA_INVALID_ARGUMENT, "info.timeout_ms is -2"), info.timeout_ms = 0;
    info.link_seconds = -1, refused(FA_INVALID_ARGUMENT, "info.link_seconds is -1: expected a finite number"), info.link_seconds = 0;
    info.transport = nullptr, refused(FA_INVALID_ARGUMENT, "fa_cp_transport_t is NULL"), info.transport = &transport;
    transport.rank = 2, refused(FA_INVALID_ARGUMENT, "transport.rank is 2"), transport.rank = 0;
    transport.ranks = 0, refused(FA_INVALID_ARGUMENT, "transport.ranks is 0"), transport.ranks = 2;
    transport.wait = nullptr, refused(FA_INVALID_ARGUMENT, "transport.wait is NULL");
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_cp_create(&cp, nullptr, &info));
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_cp_create(nullptr, handle, &info));
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_cp_forward(nullptr, nullptr, nullptr, nullptr));
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_cp_traffic(nullptr, nullptr, nullptr));
}

// Sizes that nobody set, in each struct that a caller fills: refused by every call that reads one, with nothing touched.
TEST(CpFaults, F84_sizes_of_structs) {
    const Handle handle = make_handle();
    StandIn room(1);
    fa_cp_transport_t transport = room.transport(0);
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp = nullptr;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS;
    Case c = small();
    const auto refused = [&](fa_status_t status, fa_cp_t of, const char* name, uint32_t size) {
        EXPECT_EQ(FA_INVALID_ARGUMENT, status) << name << " " << size;
        const std::string start = std::string("struct_size of ") + name + " is " + std::to_string(size) + ":";
        EXPECT_EQ(0u, std::string(fa_cp_last_error(of)).find(start)) << fa_cp_last_error(of);
    };
    const auto untouched = [&](auto init, uint32_t size, const char* name) {
        const std::vector<unsigned char> before(8192, 0xa5);
        std::vector<unsigned char> memory = before;
        refused(init(memory.data(), size), nullptr, name, size);
        EXPECT_EQ(before, memory) << name << " " << size;
    };
    fa_cp_t good = nullptr;
    ASSERT_EQ(FA_OK, fa_cp_create(&good, handle, &info));
    for (const uint32_t size : {0u, 1u, 4u, 8u, 4097u, 0x40000000u, 0xccccccccu, 0xffffffffu}) {
        info.struct_size = size, refused(fa_cp_create(&cp, handle, &info), nullptr, "fa_cp_create_info_t", size);
        info.struct_size = sizeof info;
        transport.struct_size = size, refused(fa_cp_create(&cp, handle, &info), nullptr, "fa_cp_transport_t", size);
        transport.struct_size = sizeof transport;
        spread.struct_size = size, refused(fa_cp_forward(good, &c.d, &spread, &c.a), good, "fa_cp_desc_t", size);
        EXPECT_EQ(nullptr, cp);
        untouched([](void* at, uint32_t n) { return fa_cp_create_info_init(static_cast<fa_cp_create_info_t*>(at), n); }, size,
                  "fa_cp_create_info_t");
        untouched([](void* at, uint32_t n) { return fa_cp_transport_init(static_cast<fa_cp_transport_t*>(at), n); }, size,
                  "fa_cp_transport_t");
        untouched([](void* at, uint32_t n) { return fa_cp_desc_init(static_cast<fa_cp_desc_t*>(at), n); }, size, "fa_cp_desc_t");
    }
    EXPECT_EQ(FA_OK, fa_cp_destroy(good));
}

// No call reads further than a struct's size says.
TEST(CpFaults, StructsAreReadNoFurther) {
    const Handle handle = make_handle();
    const Case c = small();
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS;
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    const AtTheEnd memory(&info, 4);
    void* const four = memory.get(4);
    const auto refused = [](fa_status_t status, fa_cp_t of, const char* name) {
        EXPECT_EQ(FA_INVALID_ARGUMENT, status);
        EXPECT_EQ(0u, std::string(fa_cp_last_error(of)).find(std::string("struct_size of ") + name + " is 4:")) << fa_cp_last_error(of);
    };
    fa_cp_t cp = nullptr;
    refused(fa_cp_create(&cp, handle, static_cast<fa_cp_create_info_t*>(four)), nullptr, "fa_cp_create_info_t");
    info.transport = static_cast<fa_cp_transport_t*>(four);
    refused(fa_cp_create(&cp, handle, &info), nullptr, "fa_cp_transport_t");
    int64_t count;
    refused(fa_cp_partition(static_cast<fa_cp_desc_t*>(four), 0, 2, nullptr, 1, 8, nullptr, 0, &count), nullptr, "fa_cp_desc_t");
    for (const int32_t ranks : {1, 2}) {
        StandIn room(ranks);
        const fa_cp_transport_t transport = room.transport(0);
        info.transport = &transport;
        ASSERT_EQ(FA_OK, fa_cp_create(&cp, handle, &info));
        const auto ask = [&](const void* d, const void* s, int32_t op, const void* a) {
            return fa_cp_explain(cp, static_cast<const fa_attention_desc_t*>(d), static_cast<const fa_cp_desc_t*>(s), op, a, nullptr, 0);
        };
        refused(ask(four, &spread, FA_OP_FORWARD, &c.a), cp, "fa_attention_desc_t");
        refused(ask(&c.d, four, FA_OP_FORWARD, &c.a), cp, "fa_cp_desc_t");
        refused(ask(&c.d, &spread, FA_OP_FORWARD, four), cp, "fa_forward_args_t");
        refused(ask(&c.d, &spread, FA_OP_BACKWARD, four), cp, "fa_backward_args_t");
        b.forward = static_cast<fa_forward_args_t*>(four);
        refused(ask(&c.d, &spread, FA_OP_BACKWARD, &b), cp, "fa_forward_args_t");
        if (ranks == 1) {
            refused(fa_cp_forward(cp, static_cast<fa_attention_desc_t*>(four), &spread, &c.a), cp, "fa_attention_desc_t");
            refused(fa_cp_forward(cp, &c.d, static_cast<fa_cp_desc_t*>(four), &c.a), cp, "fa_cp_desc_t");
            refused(fa_cp_forward(cp, &c.d, &spread, static_cast<fa_forward_args_t*>(four)), cp, "fa_forward_args_t");
            refused(fa_cp_backward(cp, &c.d, &spread, static_cast<fa_backward_args_t*>(four)), cp, "fa_backward_args_t");
        }
        EXPECT_EQ(FA_OK, fa_cp_destroy(cp));
    }
}

// Whoever is not let in gets a sentence, in the text that was asked for, too, and reads none that another thread is writing.
TEST(CpFaults, WhoIsTurnedAwayHasTheReason) {
    char text[FA_TEXT_MAX];
    const auto asked = [&](fa_cp_t cp) {
        memset(text, 'x', sizeof text);
        const fa_status_t status = fa_cp_explain(cp, nullptr, nullptr, FA_OP_FORWARD, nullptr, text, sizeof text);
        EXPECT_NE(nullptr, memchr(text, 0, sizeof text));
        return status;
    };
    EXPECT_EQ(FA_INVALID_ARGUMENT, asked(nullptr));
    EXPECT_STREQ("cp is NULL: expected an object", text);
    const Handle handle = make_handle();
    fa_cp_t cp = nullptr;
    // A transport that asks while its object is in a call.
    fa_cp_transport_t transport = FA_CP_TRANSPORT_INIT;
    struct Inside {
        fa_cp_t* cp;
        const std::function<fa_status_t(fa_cp_t)> ask;
        int asked = 0;
    } inside{&cp, asked};
    transport.ranks = 2, transport.user = &inside;
    transport.start = [](void* user, const fa_cp_message_t*, int64_t, uint64_t*) -> fa_status_t {
        auto* const self = static_cast<Inside*>(user);
        if (self->asked++ == 0) {
            EXPECT_EQ(FA_INVALID_STATE, self->ask(*self->cp));
            EXPECT_NE(std::string::npos, std::string(fa_cp_last_error(*self->cp)).find("in use by another")) << fa_cp_last_error(*self->cp);
        }
        return FA_PEER_FAILED;
    };
    transport.wait = [](void*, uint64_t, int64_t) -> fa_status_t { return FA_PEER_FAILED; };
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    ASSERT_EQ(FA_OK, fa_cp_create(&cp, handle, &info));
    EXPECT_EQ(FA_PEER_FAILED, fa_cp_forward(cp, nullptr, nullptr, nullptr));
    EXPECT_EQ(1, inside.asked > 0);
    EXPECT_NE(std::string::npos, std::string(text).find("in use by another")) << text;
    EXPECT_EQ(FA_OK, fa_cp_destroy(cp));
}

}  // namespace
}  // namespace test
