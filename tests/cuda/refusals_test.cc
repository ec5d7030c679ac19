// fa_explain says of each family that was asked before the one that has a call why it does not: every family's every reason, on a pretended
// GPU (fake_hopper.c; FAKE_GPU says which). Nothing is launched.
#include <flashattn.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using Desc = fa_attention_desc_t;

fa_handle_t make_handle() {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA;
    info.memory = FA_MEMORY_DEVICE;
    fa_handle_t handle = nullptr;
    EXPECT_EQ(fa_create(&handle, &info), FA_OK) << fa_last_error(nullptr);
    return handle;
}

class Refusals : public testing::Test {
  protected:
    void SetUp() override { handle_ = make_handle(); }
    void TearDown() override { fa_destroy(handle_); }
    std::string explain(const Desc& desc, int32_t op = FA_OP_FORWARD) {
        char text[FA_TEXT_MAX] = "";
        fa_explain(handle_, &desc, op, text, sizeof text);
        return text;
    }
    bool is(const char* gpu) const {
        const char* const named = std::getenv("FAKE_GPU");
        return std::string(named ? named : "sm_90") == gpu;
    }
    fa_handle_t handle_ = nullptr;
};

// Of each family that is named, its clause: "…; not a, b: clause; not c: clause; workspace of …".
std::map<std::string, std::string> clauses_of(const std::string& text) {
    std::map<std::string, std::string> clauses;
    const std::string sign = "; not ";
    for (size_t at = text.find(sign); at != std::string::npos;) {
        at += sign.size();
        const size_t colon = text.find(": ", at), next = text.find(sign, at), end = std::min(next, text.rfind("; workspace of "));
        const std::string names = text.substr(at, colon - at), clause = text.substr(colon + 2, end - colon - 2);
        for (size_t from = 0; from <= names.size();) {
            const size_t comma = std::min(names.find(", ", from), names.size());
            clauses[names.substr(from, comma - from)] = clause;
            from = comma + 2;
        }
        at = next;
    }
    return clauses;
}

Desc base(int32_t dtype, int64_t heads_q, int64_t heads_k, int64_t rows, int64_t keys, int64_t dim_qk, int64_t dim_v) {
    Desc d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = dtype;
    d.batch = 2;
    d.heads_q = heads_q, d.heads_k = heads_k;
    d.seqlen_q = rows, d.seqlen_k = keys;
    d.dim_qk = dim_qk, d.dim_v = dim_v;
    return d;
}
Desc latent() {
    Desc d = base(FA_BF16, 128, 1, 1, 4096, 576, 512);
    d.flags = FA_V_IN_K;
    return d;
}
Desc latent_bytes() {
    Desc d = latent();
    d.k_dtype = FA_E4M3, d.k_tail_dtype = FA_BF16, d.k_descale_dtype = FA_E8M0, d.dim_tail = 64;
    d.operands = FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE;
    d.k_descale_block[0] = 1, d.k_descale_block[1] = 128;
    const int64_t stride[] = {4096 * 4, 4, 0, 1};
    for (int i = 0; i < 4; i++) d.k_descale_stride[i] = stride[i];
    return d;
}
Desc wide() { return base(FA_BF16, 8, 8, 512, 512, 320, 320); }
Desc plain() { return base(FA_BF16, 32, 8, 4096, 4096, 128, 128); }
Desc bytes() { return base(FA_E4M3, 32, 8, 4096, 4096, 128, 128); }
void causal(Desc& desc) { desc.flags |= FA_CAUSAL, desc.alignment = FA_ALIGN_BOTTOM_RIGHT; }
void scaled(Desc& desc, float scale) { desc.flags |= FA_SCALE_EXPLICIT, desc.scale = scale; }
void paged(Desc& desc, int64_t page) { desc.operands |= FA_OPERAND_PAGE_TABLE, desc.page_size = page, desc.num_pages = 4096; }
void strides(Desc& desc, uint32_t which, int64_t (&stride)[4], int64_t batch, int64_t row, int64_t head) {
    desc.strided |= which;
    stride[0] = batch, stride[1] = row, stride[2] = head, stride[3] = 1;
}
void masked(Desc& desc) {
    desc.operands |= FA_OPERAND_MASK;
    desc.mask_stride[0] = 0, desc.mask_stride[1] = 0, desc.mask_stride[2] = desc.seqlen_k, desc.mask_stride[3] = 1;
}
void biased(Desc& desc, int32_t dtype) {
    desc.operands |= FA_OPERAND_BIAS, desc.bias_dtype = dtype;
    desc.bias_stride[0] = 0, desc.bias_stride[1] = 0, desc.bias_stride[2] = desc.seqlen_k, desc.bias_stride[3] = 1;
}
void listed(Desc& desc, int64_t rows, int64_t keys) {
    desc.operands |= FA_OPERAND_KEY_LIST, desc.list_max = 16, desc.list_rows = rows, desc.list_keys = keys, desc.list_heads = 1;
    desc.list_stride[2] = 16, desc.list_stride[3] = 1;
}

struct Reason {
    const char* family;
    Desc (*from)();  // a call that the family takes
    std::function<void(Desc&)> change;
    const char* clause;  // its begin
};

const std::vector<Reason> kReasonsOfHopper = {
    {"sm90_latent", latent, [](Desc& desc) { desc.flags = 0; }, "flags lacks FA_V_IN_K: expected it"},
    {"sm90_latent", latent, [](Desc& desc) { desc.heads_k = 2; }, "heads_k is 2: expected 1"},
    {"sm90_latent", latent, [](Desc& desc) { desc.dim_v = 256; }, "dim_v is 256: expected 512"},
    {"sm90_latent", latent, [](Desc& desc) { desc.dim_qk = 640; }, "dim_qk is 640: expected 512 or 576"},
    {"sm90_latent", latent, [](Desc& desc) { desc.q_dtype = FA_F32; }, "q_dtype is f32: expected f16 or bf16"},
    {"sm90_latent", latent, [](Desc& desc) { desc.o_dtype = FA_F16; }, "o_dtype is f16: expected bf16, as q_dtype, or f32"},
    {"sm90_latent", latent, [](Desc& desc) { scaled(desc, -1); }, "scale is -1: expected one above 0"},
    {"sm90_latent", latent, [](Desc& desc) { desc.batch = 1, desc.seqlen_q = int64_t(1) << 23; },
     "seqlen_q * heads_q is 1073741824: expected 1 to 1073741823"},
    {"sm90_latent", latent, [](Desc& desc) { desc.batch = int64_t(1) << 30, desc.heads_q = 1; },
     "batch * tiles is 1073741824: expected 0 to"},
    {"sm90_latent", latent, [](Desc& desc) { desc.seqlen_k = int64_t(1) << 30; }, "seqlen_k is 1073741824: expected 1 to 1073741823"},
    {"sm90_latent", latent, [](Desc& desc) { desc.seqlen_q = 4, strides(desc, FA_STRIDED_Q, desc.q_stride, 1 << 20, 128 * 576 + 8, 576); },
     "q_stride is (1048576, 73736, 576): expected rows that are heads_q times the step of a head apart"},
    {"sm90_latent", latent, [](Desc& desc) { strides(desc, FA_STRIDED_Q, desc.q_stride, 1 << 20, 0, 577); },
     "q_stride is (1048576, 577, 0): expected multiples of 8"},
    {"sm90_latent", latent, [](Desc& desc) { strides(desc, FA_STRIDED_O, desc.o_stride, 1 << 20, 0, 516); },
     "o_stride is (1048576, 0, 516): expected multiples of 8"},
    {"sm90_latent", latent, [](Desc& desc) { strides(desc, FA_STRIDED_K, desc.k_stride, 1 << 24, 577, 0); },
     "k_stride is (16777216, 577): expected steps of whole 16 bytes"},
    {"sm90_latent", latent, [](Desc& desc) { causal(desc), desc.operands |= FA_OPERAND_ALIBI; },
     "operands has FA_OPERAND_ALIBI, which it does not implement"},
    {"sm90_latent", latent, [](Desc& desc) { desc.softcap = 30; }, "softcap is 30, which it does not implement"},
    {"sm90_latent", latent, [](Desc& desc) { causal(desc), desc.flags |= FA_WINDOW, desc.window_left = 64, desc.window_right = 0; },
     "flags has FA_WINDOW, which it does not implement"},
    {"sm90_latent", latent, [](Desc& desc) { listed(desc, 1, 64); },
     "list_keys is 64, list_heads 1 and list_rows 1: expected lists of single keys"},
    {"sm90_latent", latent_bytes, [](Desc& desc) { desc.k_tail_dtype = FA_F16; }, "k_tail_dtype is f16: expected bf16"},
    {"sm90_latent", latent_bytes, [](Desc& desc) { desc.dim_tail = 32; }, "dim_tail is 32: expected 64"},
    {"sm90_latent", latent_bytes, [](Desc& desc) { desc.k_dtype = FA_I8; },
     "q_dtype is bf16 beside a k_dtype of i8: expected the same, or bf16 and e4m3"},
    {"sm90_latent", latent_bytes, [](Desc& desc) { desc.q_dtype = FA_F16; },
     "q_dtype is f16 beside a k_dtype of e4m3: expected the same, or bf16 and e4m3"},
    {"sm90_latent", latent_bytes,
     [](Desc& desc) {
         desc.k_descale_dtype = FA_F32, desc.k_descale_block[1] = 64, desc.k_descale_stride[0] = 4096 * 9, desc.k_descale_stride[1] = 9;
     },
     "k_descale_dtype is f32: expected e8m0, or f32 with FA_PRECISION_NATIVE"},

    {"sm90_wide", wide, [](Desc& desc) { desc.dim_qk = desc.dim_v = 640; }, "dim_qk is 640 and dim_v 640: expected 257 to 512"},
    {"sm90_wide", wide, [](Desc& desc) { desc.dim_qk = 324; }, "dim_qk is 324: expected a multiple of 8"},
    {"sm90_wide", wide, [](Desc& desc) { desc.dim_v = 316; }, "dim_v is 316: expected a multiple of 8"},
    {"sm90_wide", wide, [](Desc& desc) { desc.q_dtype = FA_F32; }, "q_dtype is f32: expected f16 or bf16"},
    {"sm90_wide", wide, [](Desc& desc) { desc.k_dtype = FA_F16; }, "k_dtype is f16: expected bf16, as q_dtype"},
    {"sm90_wide", wide, [](Desc& desc) { desc.o_dtype = FA_F16; }, "o_dtype is f16: expected bf16, as q_dtype, or f32"},
    {"sm90_wide", wide, [](Desc& desc) { scaled(desc, 0); }, "scale is 0: expected one above 0"},
    {"sm90_wide", wide, [](Desc& desc) { desc.operands |= FA_OPERAND_SEQUSED_Q; },
     "operands has FA_OPERAND_SEQUSED_Q, which it does not implement"},
    {"sm90_wide", wide, [](Desc& desc) { desc.dropout_p = .5f; }, "dropout_p is 0.5, which it does not implement"},
    {"sm90_wide", wide, [](Desc& desc) { paged(desc, 48); }, "page_size is 48: expected a multiple of 64"},
    {"sm90_wide", wide, [](Desc& desc) { paged(desc, 64), desc.operands |= FA_OPERAND_LEFTPAD_K; },
     "operands has FA_OPERAND_LEFTPAD_K with pages"},
    {"sm90_wide", wide, [](Desc& desc) { desc.batch = desc.heads_q = desc.heads_k = 1, desc.seqlen_q = int64_t(1) << 30; },
     "seqlen_q is 1073741824: expected 1 to 1073741823"},
    {"sm90_wide", wide, [](Desc& desc) { strides(desc, FA_STRIDED_V, desc.v_stride, 1 << 22, 2564, 320); },
     "v_stride is (4194304, 2564, 320): expected multiples of 8"},
    {"sm90_wide", wide, [](Desc& desc) { desc.flags = FA_V_IN_K; }, "flags has FA_V_IN_K, which it does not implement"},

    {"sm90", plain, [](Desc& desc) { desc.q_dtype = FA_F32; }, "q_dtype is f32: expected f16, bf16 or e4m3"},
    {"sm90", plain, [](Desc& desc) { desc.k_dtype = FA_F16; }, "k_dtype is f16: expected bf16, as q_dtype"},
    {"sm90", plain, [](Desc& desc) { desc.o_dtype = FA_F16; }, "o_dtype is f16: expected bf16, as q_dtype, or f32"},
    {"sm90", plain, [](Desc& desc) { desc.dropout_p = .5f; }, "dropout_p is 0.5, which it does not implement"},
    {"sm90", plain, [](Desc& desc) { desc.num_splits = 4; }, "num_splits is 4, which it does not implement"},
    {"sm90", plain, [](Desc& desc) { desc.v_dtype = FA_F16; }, "v_dtype is f16, which it does not implement here"},
    {"sm90", bytes, [](Desc& desc) { listed(desc, 128, 128); }, "q_dtype is e4m3 with lists or ranges of keys: expected f16 or bf16"},
    {"sm90", plain, [](Desc& desc) { listed(desc, 96, 128); }, "list_keys is 128 and list_rows 96: expected multiples of"},
    {"sm90", plain, [](Desc& desc) { scaled(desc, -2); }, "scale is -2: expected one above 0"},
    {"sm90", plain, [](Desc& desc) { desc.softcap = 300; }, "softcap is 300, with a scale of 0.0883883: expected up to 256"},
    {"sm90", plain, [](Desc& desc) { masked(desc), desc.softcap = 30; },
     "operands has FA_OPERAND_MASK beside softcap: expected one of them"},
    {"sm90", plain, [](Desc& desc) { biased(desc, FA_BF16), desc.softcap = 30; },
     "operands has FA_OPERAND_BIAS: expected no softcap, mask or ALiBi beside it"},
    {"sm90", plain, [](Desc& desc) { paged(desc, 8); }, "page_size is 8: expected a multiple of 16"},
    {"sm90", plain, [](Desc& desc) { paged(desc, 64), desc.operands |= FA_OPERAND_LEFTPAD_K; },
     "operands has FA_OPERAND_LEFTPAD_K with pages"},
    {"sm90", plain, [](Desc& desc) { desc.seqlen_q = 8; }, "seqlen_q is 8: expected 9 or more"},
    {"sm90", plain, [](Desc& desc) { causal(desc), desc.seqlen_q = 64, desc.operands |= FA_OPERAND_ALIBI; },
     "seqlen_q is 64, below 128, where operands has FA_OPERAND_ALIBI"},
    {"sm90", bytes, [](Desc& desc) { desc.seqlen_q = 64; }, "seqlen_q is 64, below 128, where q_dtype is e4m3: expected f16 or bf16"},
    {"sm90", plain, [](Desc& desc) { desc.seqlen_q = 64, desc.k_dtype = FA_E4M3; },
     "seqlen_q is 64: expected 128 or more with k or v of 8 bits"},
    {"sm90", plain, [](Desc& desc) { desc.dim_qk = 100; }, "dim_qk is 100: expected a multiple of 8"},
    {"sm90", plain, [](Desc& desc) { desc.dim_qk = desc.dim_v = 264, desc.softcap = 30; }, "dim_qk is 264: expected 8 to 256"},
    {"sm90", plain, [](Desc& desc) { desc.seqlen_k = int64_t(1) << 30; }, "seqlen_k is 1073741824: expected 1 to 1073741823"},
    {"sm90", plain, [](Desc& desc) { strides(desc, FA_STRIDED_Q, desc.q_stride, 1 << 24, 4100, 128); },
     "q_stride is (16777216, 4100, 128): expected multiples of 8"},
    {"sm90", plain, [](Desc& desc) { strides(desc, FA_STRIDED_O, desc.o_stride, 1 << 25, 4100, 128); },
     "o_stride is (33554432, 4100, 128): expected multiples of 8"},
    {"sm90", plain, [](Desc& desc) { desc.q_dtype = FA_F16, desc.softcap = 30; },
     "q_dtype is f16, dim_qk 128 and dim_v 128 with softcap: there is no such kernel"},
    {"sm90", plain, [](Desc& desc) { causal(desc), desc.dim_qk = desc.dim_v = 256, desc.operands |= FA_OPERAND_ALIBI; },
     "q_dtype is bf16, dim_qk 256 and dim_v 256 with FA_OPERAND_ALIBI"},
    {"sm90", plain, [](Desc& desc) { desc.batch = 1, desc.heads_q = desc.heads_k = 4, desc.seqlen_q = 256, desc.seqlen_k = 100000; },
     "seqlen_q is 256 and seqlen_k 100000: mma should take "},

    {"mma", plain, [](Desc& desc) { desc.q_dtype = FA_F32, desc.dropout_p = .5f; },
     "dropout_p is 0.5 with q_dtype f32: expected 0, or a q of 16 bits"},
    {"mma", plain, [](Desc& desc) { desc.k_dtype = FA_F16; },
     "k_dtype is f16 and v_dtype f16 beside a q_dtype of bf16: expected q's, or types of 8 bits"},
    {"mma", plain, [](Desc& desc) { desc.operands |= FA_OPERAND_KEY_RANGES, desc.key_range_stride[2] = 1, desc.seqlen_q = 1; },
     "operands has FA_OPERAND_KEY_RANGES, which it does not implement"},
    {"mma", plain, [](Desc& desc) { desc.q_dtype = FA_F32, desc.dim_qk = desc.dim_v = 264; },
     "dim_qk is 264 and dim_v 264: expected at most 256 and 256"},
    {"mma", wide, [](Desc& desc) { desc.dim_qk = desc.dim_v = 640; }, "dim_qk is 640 and dim_v 640: expected at most 576 and "},
    {"mma", bytes, [](Desc& desc) { desc.operands |= FA_OPERAND_KEY_RANGES, desc.key_range_stride[2] = 1; },
     "operands has FA_OPERAND_KEY_RANGES, which it does not implement"},
};

TEST_F(Refusals, EachReasonOfEachFamily) {
    if (!is("sm_90")) GTEST_SKIP() << "not a Hopper";
    for (const Reason& reason : kReasonsOfHopper) {
        Desc d = reason.from();
        const std::string taken = explain(d);
        EXPECT_EQ(clauses_of(taken).count(reason.family), 0u) << reason.family << " should take this: " << taken;
        reason.change(d);
        const std::string text = explain(d);
        EXPECT_EQ(clauses_of(text)[reason.family].rfind(reason.clause, 0), 0u) << reason.family << ": " << reason.clause << "\n" << text;
    }
}

Desc gradients() {
    Desc d = plain();
    d.operands = FA_OPERAND_LSE;
    return d;
}
const std::vector<Reason> kReasonsOfGradients = {
    {"sm90", gradients, [](Desc& desc) { desc.dropout_p = .5f; }, "dropout_p is 0.5, which it does not implement"},
    {"sm90", gradients, [](Desc& desc) { scaled(desc, -1); }, "scale is -1: expected one above 0"},
    {"sm90", gradients, [](Desc& desc) { desc.q_dtype = FA_F32; }, "q_dtype is f32: expected f16 or bf16"},
    {"sm90", gradients, [](Desc& desc) { desc.o_dtype = FA_F16; }, "o_dtype is f16: expected bf16, as q_dtype, or f32"},
    {"sm90", gradients, [](Desc& desc) { desc.seqlen_q = 127; }, "seqlen_q is 127: expected 128 to 1073741823"},
    {"sm90", gradients, [](Desc& desc) { desc.seqlen_k = 64; }, "seqlen_k is 64: expected 128 to 1073741823"},
    {"sm90", gradients, [](Desc& desc) { desc.dim_qk = desc.dim_v = 100; }, "dim_qk is 100: expected a multiple of 8"},
    {"sm90", gradients, [](Desc& desc) { desc.dim_qk = desc.dim_v = 264; }, "dim_qk is 264 and dim_v 264: expected at most 256"},
    {"sm90", gradients, [](Desc& desc) { biased(desc, FA_F32); }, "bias_dtype is f32: expected bf16, as q_dtype"},
    {"sm90", gradients, [](Desc& desc) { biased(desc, FA_BF16), desc.dim_qk = desc.dim_v = 256; },
     "dim_qk is 256 and dim_v 256 with FA_OPERAND_BIAS"},
    {"sm90", gradients, [](Desc& desc) { strides(desc, FA_STRIDED_Q, desc.q_stride, 1 << 25, 4100, 128); },
     "q_stride is (33554432, 4100, 128)"},
    {"mma", gradients, [](Desc& desc) { desc.operands |= FA_OPERAND_KEY_RANGES, desc.key_range_stride[2] = 1; },
     "operands has FA_OPERAND_KEY_RANGES"},
    {"mma", gradients, [](Desc& desc) { desc.q_dtype = FA_BF16, desc.k_dtype = FA_F16; }, "k_dtype is f16: expected bf16, as q_dtype"},
    {"mma", gradients, [](Desc& desc) { desc.dim_qk = desc.dim_v = 576; }, "dim_qk is 576 and dim_v 576: expected at most 512 on sm_90"},
};
TEST_F(Refusals, EachReasonOfEachFamilyOfGradients) {
    if (!is("sm_90")) GTEST_SKIP() << "not a Hopper";
    for (const Reason& reason : kReasonsOfGradients) {
        Desc d = reason.from();
        EXPECT_EQ(clauses_of(explain(d, FA_OP_BACKWARD)).count(reason.family), 0u) << reason.family;
        reason.change(d);
        const std::string text = explain(d, FA_OP_BACKWARD);
        EXPECT_EQ(clauses_of(text)[reason.family].rfind(reason.clause, 0), 0u) << reason.family << ": " << reason.clause << "\n" << text;
    }
}

// The families of another device have one reason, and it is said once.
TEST_F(Refusals, NameTheDevice) {
    if (is("sm_90")) GTEST_SKIP() << "a Hopper";
    const std::string text = explain(plain());
    EXPECT_NE(text.find("; not sm90_latent, sm90_wide, sm90: arch is sm_"), std::string::npos) << text;
    EXPECT_NE(text.find(": expected sm_90; workspace of "), std::string::npos) << text;
}

// Where the driver ignores machine code, Hopper's own kernels have no image: others take the calls, and the reason names the switch.
TEST(Ptx, IsNoMachineCode) {
    const fa_handle_t handle = make_handle();
    const std::string sentence = "CUDA_FORCE_PTX_JIT is set: expected it unset, or 0";
    const auto expect_portable = [&](const Desc& desc, int32_t op, const char* family) {
        char text[FA_TEXT_MAX] = "";
        EXPECT_EQ(fa_explain(handle, &desc, op, text, sizeof text), FA_OK) << text;
        EXPECT_EQ(clauses_of(text)[family].rfind(sentence, 0), 0u) << text;
        EXPECT_EQ(std::string(text).find("_sm90_"), std::string::npos) << text;
    };
    for (const Desc& d : {plain(), wide(), bytes()})
        for (const char* const family : {"sm90_latent", "sm90_wide", "sm90"}) expect_portable(d, FA_OP_FORWARD, family);
    expect_portable(gradients(), FA_OP_BACKWARD, "sm90");
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

// With no more shared memory a block than another GPU has, a Hopper has that GPU's kernels, tiles and splits, and says why.
TEST(SharedMemory, MakesAHopperLikeAGpuThatHasNoMore) {
    if (!std::getenv("FLASHATTN_MAX_SHARED")) GTEST_SKIP() << "FLASHATTN_MAX_SHARED is not set";
    const std::string limit = std::getenv("FLASHATTN_MAX_SHARED"), alike = limit == "163" ? "sm_80" : "sm_89";
    setenv("FAKE_GPU", alike.c_str(), 1);
    const fa_handle_t other = make_handle();
    setenv("FAKE_GPU", "sm_90", 1);
    const fa_handle_t hopper = make_handle();
    int explained = 0;
    const auto compare = [&](const Desc& desc, int32_t op) {
        char text[FA_TEXT_MAX] = "", same[FA_TEXT_MAX] = "";
        const fa_status_t status = fa_explain(hopper, &desc, op, text, sizeof text);
        EXPECT_EQ(fa_explain(other, &desc, op, same, sizeof same), status) << same;
        std::string said = text, expected = same;
        for (size_t at; (at = said.find("(sm_90)")) != std::string::npos;) said.replace(at, 7, "(" + alike + ")");
        EXPECT_EQ(said.substr(0, said.find(';')), expected.substr(0, expected.find(';')));
        EXPECT_EQ(said.substr(said.rfind(';')), expected.substr(expected.rfind(';')));  // the workspace
        if (status != FA_OK) return;
        EXPECT_NE(said.find(") with " + limit + " KB of shared memory a block, tiles of "), std::string::npos) << said;
        EXPECT_EQ(clauses_of(said)["sm90"],
                  "FLASHATTN_MAX_SHARED is " + limit + ": expected it unset, or 227 or more, for kernels that are made for so much");
        explained++;
    };
    for (const int32_t dtype : {FA_F16, FA_BF16, FA_F32})
        for (const int64_t dim : {64, 96, 128, 192, 256, 320, 512, 576})
            for (const int64_t rows : {1, 16, 100, 4096}) {
                Desc d = base(dtype, 32, 8, rows, 4096, dim, dim);
                compare(d, FA_OP_FORWARD);
                if (dtype == FA_BF16)
                    for (const int32_t kv : {FA_I8, FA_Q8_0, FA_Q4_0, FA_Q5_0}) d.k_dtype = d.v_dtype = kv, compare(d, FA_OP_FORWARD);
                Desc backward = base(dtype, 8, 8, rows, 4096, dim, dim);
                backward.operands = FA_OPERAND_LSE;
                compare(backward, FA_OP_BACKWARD);
            }
    for (const Desc& d : {latent(), latent_bytes()}) compare(d, FA_OP_FORWARD);
    EXPECT_GT(explained, 200);
    EXPECT_EQ(fa_destroy(hopper), FA_OK);
    EXPECT_EQ(fa_destroy(other), FA_OK);
}

// Of no call is a clause, or what follows, cut off.
TEST_F(Refusals, FitTheText) {
    constexpr size_t kMostClause = 222;  // of sizeof(Refusal::text), 224
    std::mt19937_64 random(20261129);
    const auto any = [&](std::vector<int64_t> of) { return of[random() % of.size()]; };
    size_t longest = 0, explained = 0;
    for (int n = 0; n < 4000; n++) {
        Desc d = n % 4 == 0 ? latent_bytes() : n % 4 == 1 ? wide() : n % 4 == 2 ? plain() : bytes();
        const int64_t most = int64_t(1) << 29;
        d.q_dtype = int32_t(any({FA_F32, FA_F16, FA_BF16, FA_E4M3}));
        d.o_dtype = int32_t(any({0, FA_F32, FA_F16}));
        if (random() % 2) d.batch = any({1, 100, most}), d.seqlen_q = any({1, 100, 5000, most}), d.seqlen_k = any({1, 5000, most});
        if (random() % 4 == 0) strides(d, FA_STRIDED_Q, d.q_stride, most * 64 * 1021, most * 1021, 1021);
        if (random() % 4 == 0) strides(d, FA_STRIDED_O, d.o_stride, most * 64 * 1021, most * 1021, 1021);
        if (random() % 4 == 0) strides(d, FA_STRIDED_K, d.k_stride, most * 64 * 1021, most * 1021, 1021);
        if (random() % 4 == 0) d.dim_qk = any({8, 100, 255, 320, 577, 5000}), d.dim_v = 8;
        if (random() % 4 == 0) d.operands |= uint64_t(1) << random() % 30;
        if (random() % 4 == 0) causal(d);
        if (random() % 4 == 0) scaled(d, 1e-30f);
        const std::string text = explain(d);
        if (text.rfind("cuda, device ", 0) != 0) continue;
        explained++;
        ASSERT_EQ(text.rfind(" bytes"), text.size() - 6) << text;
        for (const auto& [family, clause] : clauses_of(text)) {
            ASSERT_GT(clause.size(), 0u) << text;
            ASSERT_LT(clause.size(), kMostClause) << family << ": " << clause;
        }
        longest = std::max(longest, text.size());
    }
    EXPECT_GT(explained, 500u);
    EXPECT_LT(longest + 1, size_t(FA_TEXT_MAX));
}

}  // namespace
