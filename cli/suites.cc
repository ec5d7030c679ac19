#include "suites.h"
#include <algorithm>
#include <functional>

namespace tool {
namespace {

using Dtypes = std::vector<std::string>;

Load dense(const std::string& suite, const std::string& dtype, const Shape& shape, const std::string& note = "") {
    return {suite, text_of_shape(shape) + note, dtype, describe(dtype, shape, shape.n)};
}

Load causal(Load load) {
    load.shape += " causal";
    load.desc.flags |= FA_CAUSAL;
    load.desc.alignment = FA_ALIGN_BOTTOM_RIGHT;
    return load;
}

// ---- forward: prefill of one sequence, or on a GPU of many

void forward(std::vector<Group>& groups, const std::string& dtype, bool gpu) {
    for (int64_t dim : {64, 128}) {
        for (int64_t n : {512, 2048, 8192}) {
            const int64_t many = 16384 / n;
            const Load load = dense("forward", dtype, gpu ? Shape{many, 16, n, dim} : Shape{1, std::min<int64_t>(many, 16), n, dim});
            groups.push_back({load, causal(load)});
        }
    }
}

// ---- backward: the same shapes; on a GPU also with the same bits every time, which costs time there

void backward(std::vector<Group>& groups, const std::string& dtype, bool gpu) {
    std::vector<Group> plain;
    forward(plain, dtype, gpu);
    for (Group& group : plain) {
        if (gpu) group.push_back(group[0]), group.back().shape += " deterministic", group.back().desc.flags |= FA_DETERMINISTIC;
        for (Load& load : group) load = gradients(load), load.suite = "backward";
        groups.push_back(group);
    }
}

// ---- decode: one row over a cache that stayed near (hot), or that other layers have pushed out (cold)

void decode(std::vector<Group>& groups, const std::string& dtype, bool) {
    struct Cache {
        int64_t batch, heads, heads_k, keys;
    };
    for (const Cache& c : {Cache{1, 32, 32, 4096}, {1, 32, 8, 16384}, {16, 32, 8, 4096}, {1, 8, 1, 65536}}) {
        for (const char* kv : {"", "i8", "e4m3"}) {
            if (*kv && dtype != "bf16") continue;
            for (bool cold : {false, true}) {
                const std::string name = text_of("B", c.batch, " ", c.heads, "/", c.heads_k, " ", c.keys, cold ? " cold" : " hot");
                Load load{"decode", name, dtype, describe(dtype, {c.batch, c.heads, 1, 128}, c.keys), cold};
                load.desc.heads_k = c.heads_k;
                if (*kv) {
                    load.series += text_of(", ", kv);
                    load.desc.k_dtype = value_of(kDtypes, kv);
                    load.desc.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
                }
                groups.push_back({load});
            }
        }
    }
}

// ---- models: head dimensions that models have; one that is no multiple of 16 beside the next that is

void models(std::vector<Group>& groups, const std::string& dtype, bool) {
    const auto of = [&](int64_t dim) { return dense("models", dtype, {1, 8, 1024, dim}); };
    for (int64_t dim : {32, 64, 96, 128, 160, 192, 256}) groups.push_back({of(dim)});
    for (auto [whole, odd] : {std::pair<int64_t, int64_t>{48, 40}, {80, 72}, {112, 100}}) groups.push_back({of(whole), of(odd)});
    Load narrow_v = of(192);
    narrow_v.shape = "[1,8,1024,192/128]";
    narrow_v.desc.dim_v = 128;
    Load latent{"models", "B8 16/1 4096 576/512", dtype, describe(dtype, {8, 16, 1, 576}, 4096)};
    latent.desc.heads_k = 1;
    latent.desc.dim_v = 512;
    groups.insert(groups.end(), {{narrow_v}, {dense("models", dtype, {1, 2, 1024, 1024})}, {latent}});
}

// ---- packed: many short sequences, beside a batch of sequences that are all alike

Load packed(Load load, const std::vector<int32_t>& lengths) {
    load.lengths = lengths;
    load.desc.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    load.desc.batch = int64_t(lengths.size());
    for (const int32_t length : lengths) load.desc.total_q = load.desc.total_k += length;
    load.desc.seqlen_q = load.desc.seqlen_k = *std::max_element(lengths.begin(), lengths.end());
    return load;
}

void packed_sequences(std::vector<Group>& groups, const std::string& dtype, bool) {
    std::vector<int32_t> lengths;
    for (int32_t i = 0; i < 64; ++i) lengths.push_back(8 + i * 37 % 121);  // 8 … 128, in no order
    const Load alike = dense("packed", dtype, {64, 12, 80, 64});
    Load mixed = packed(alike, lengths);
    mixed.shape = "64 of 8…128, 12 heads of 64";
    groups.push_back({alike, mixed});
}

// ---- options: each beside the plain kernel

void options(std::vector<Group>& groups, const std::string& dtype, bool) {
    constexpr int64_t kRows = 1024, kHeads = 8, kDim = 128;
    Group group = {dense("options", dtype, {1, kHeads, kRows, kDim})};
    const auto add = [&](const std::string& name, const std::function<void(Load&)>& change) {
        Load load = group.front();
        change(load);
        load.shape = name;
        group.push_back(load);
    };
    const auto stand = [](Load& load) { load.desc.alignment = FA_ALIGN_BOTTOM_RIGHT; };
    const auto pages = [](Load& load, int64_t size) {
        load.desc.operands |= FA_OPERAND_PAGE_TABLE;
        load.desc.page_size = size;
        load.desc.num_pages = load.desc.seqlen_k / size;
    };
    add("causal", [](Load& load) { load = causal(load); });
    add("window of 1024 in 32768", [&](Load& load) {
        load.desc = describe(dtype, {1, 1, 32768, kDim}, 32768);
        load = causal(load);
        load.desc.flags |= FA_WINDOW;
        load.desc.window_left = 1023;
        load.desc.window_right = -1;
    });
    add("ALiBi", [&](Load& load) { stand(load), load.desc.operands |= FA_OPERAND_ALIBI; });
    add("sinks", [](Load& load) { load.desc.operands |= FA_OPERAND_SINKS; });
    add("softcap", [](Load& load) { load.desc.softcap = 20; });
    add("mask, 7 of 10",
        [](Load& load) { load.desc.operands |= FA_OPERAND_MASK, load.desc.mask_stride[2] = kRows, load.desc.mask_stride[3] = 1; });
    add("mask, triangle", [](Load& load) {
        load.desc.operands |= FA_OPERAND_MASK, load.desc.mask_stride[2] = kRows, load.desc.mask_stride[3] = 1;
        load.triangle = true;
    });
    add("bias of keys",
        [](Load& load) { load.desc.operands |= FA_OPERAND_BIAS, load.desc.bias_stride[1] = kRows, load.desc.bias_stride[3] = 1; });
    add("bias of pairs",
        [](Load& load) { load.desc.operands |= FA_OPERAND_BIAS, load.desc.bias_stride[2] = kRows, load.desc.bias_stride[3] = 1; });
    add("pages of 16", [&](Load& load) { pages(load, 16); });
    add("pages of 64", [&](Load& load) { pages(load, 64); });
    add("packed sequences", [](Load& load) { load = packed(load, {700, 300, 1000, 450}); });
    groups.push_back(group);
}

void small(std::vector<Group>& groups, const std::string& dtype, bool) {
    for (const Shape& shape : {Shape{1, 1, 16, 64}, {16, 12, 64, 64}, {8, 12, 64, 64}, {16, 12, 256, 64}})
        groups.push_back({dense("small", dtype, shape)});
}

struct Suite {
    const char* name;
    Dtypes dtypes;
    void (*add)(std::vector<Group>&, const std::string& dtype, bool gpu);
};

const Suite kTable[] = {{"forward", {"f32", "bf16", "f16"}, forward},
                        {"backward", {"f32", "bf16", "f16"}, backward},
                        {"decode", {"bf16", "f16"}, decode},
                        {"models", {"f32", "bf16"}, models},
                        {"packed", {"f32", "bf16"}, packed_sequences},
                        {"options", {"f32", "bf16"}, options},
                        {"small", {"f32", "bf16"}, small}};

}  // namespace

const std::vector<std::string> kSuites = [] {
    std::vector<std::string> names;
    for (const Suite& suite : kTable) names.push_back(suite.name);
    return names;
}();

Load gradients(Load load) {
    load.backward = true;
    load.desc.operands |= FA_OPERAND_LSE;  // which the forward before it has to leave
    return load;
}

fa_attention_desc_t describe(const std::string& dtype, const Shape& shape, int64_t keys) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = value_of(kDtypes, dtype);
    d.batch = shape.batch;
    d.heads_q = shape.heads;
    d.seqlen_q = shape.n;
    d.seqlen_k = keys;
    d.dim_qk = shape.dim;
    return d;
}

std::vector<Group> groups_of(const std::string& suite, const std::string& dtype, bool gpu) {
    std::vector<Group> groups;
    for (const Suite& s : kTable)
        if (s.name == suite)
            for (const std::string& type : dtype.empty() ? s.dtypes : Dtypes{dtype}) s.add(groups, type, gpu);
    return groups;
}

}  // namespace tool
