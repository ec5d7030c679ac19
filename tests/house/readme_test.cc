// The README keeps its word: its table says what fa_supports says on this machine, and its program is the one that the tests build.
#include <flashattn.h>
#include <gtest/gtest.h>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using Desc = fa_attention_desc_t;

struct Question {
    Desc desc;
    int32_t op;
};

struct Row {
    std::string feature;
    std::string cells[3];  // CPU, CUDA, HIP
};

std::string read(const std::string& name) {
    std::ifstream file(SOURCE_DIR "/" + name);
    EXPECT_TRUE(file) << name;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

Desc plain() {
    Desc d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.batch = 2;
    d.heads_q = 4;
    d.seqlen_q = 8;
    d.seqlen_k = 32;
    d.dim_qk = 64;
    return d;
}

// Each of the changes alone must be supported for the row's "yes".
std::vector<Question> forwards(const std::vector<std::function<void(Desc&)>>& changes) {
    std::vector<Question> questions;
    for (const auto& change : changes) {
        questions.push_back({plain(), FA_OP_FORWARD});
        change(questions.back().desc);
    }
    return questions;
}

std::function<void(Desc&)> operand(uint32_t bits) {
    return [bits](Desc& d) { d.operands = bits; };
}

std::function<void(Desc&)> positioned(const std::function<void(Desc&)>& mask) {
    return [mask](Desc& d) {
        d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        mask(d);
    };
}

std::function<void(Desc&)> types(int32_t q, int32_t kv, int32_t o) {
    return [=](Desc& d) {
        d.q_dtype = q;
        d.k_dtype = kv;
        d.o_dtype = o;
        if (kv == FA_I8) d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        if (o == FA_E4M3 || o == FA_E5M2) d.operands |= FA_OPERAND_O_SCALE;
    };
}

std::function<void(Desc&)> dims(int64_t qk, int64_t v) {
    return [=](Desc& d) {
        d.dim_qk = qk;
        d.dim_v = v;
    };
}

void paged(Desc& d) {
    d.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K;
    d.page_size = 16;
    d.num_pages = 9;
}

void packed(Desc& d) {
    d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    d.total_q = 11;
    d.total_k = 40;
}

void strided(Desc& d) {
    d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V;
    const int64_t q[4] = {4 * 8 * 64, 64, 8 * 64, 1}, broadcast[4] = {0, 4 * 64, 64, 1};
    std::copy(q, q + 4, d.q_stride);
    std::copy(broadcast, broadcast + 4, d.k_stride);
    std::copy(broadcast, broadcast + 4, d.v_stride);
}

void literal_strides(int64_t* stride) {
    const int64_t dense[4] = {4 * 8 * 32, 8 * 32, 32, 1};
    std::copy(dense, dense + 4, stride);
}

Question question(int32_t op, const std::function<void(Desc&)>& change) {
    Question q = {plain(), op};
    change(q.desc);
    if (op == FA_OP_BACKWARD) q.desc.operands |= FA_OPERAND_LSE;
    return q;
}

// What each row of the table stands for. A row without an entry here, or the reverse, is a failure.
std::map<std::string, std::vector<Question>> questions() {
    std::map<std::string, std::vector<Question>> all;
    all["`f32`, `f16`, `bf16`"] =
        forwards({types(FA_F32, FA_F32, FA_F32), types(FA_F16, FA_F16, FA_F16), types(FA_BF16, FA_BF16, FA_BF16)});
    all["8-bit floats `e4m3`, `e5m2`"] = forwards({types(FA_E4M3, FA_E4M3, FA_BF16), types(FA_E5M2, FA_E5M2, FA_E5M2)});
    all["types of q, kv and o chosen apart, `int8` kv"] =
        forwards({types(FA_F16, FA_E4M3, FA_F32), types(FA_BF16, FA_I8, FA_BF16), types(FA_F32, FA_F16, FA_E4M3)});
    all["head dimensions 1 … 1024, dim_v ≠ dim_qk"] = forwards({dims(1, 1), dims(192, 128), dims(576, 512), dims(1024, 3)});
    all["grouped heads (MHA, GQA, MQA)"] = forwards({[](Desc& d) { d.heads_k = 2; }, [](Desc& d) { d.heads_k = 1; }});
    all["any strides, broadcast by stride 0"] = forwards({strided});
    all["scale, softcap"] = forwards({[](Desc& d) {
        d.flags = FA_SCALE_EXPLICIT;
        d.scale = 0.3f;
        d.softcap = 30;
    }});
    all["additive bias, boolean mask"] = forwards({[](Desc& d) {
                                                       d.operands = FA_OPERAND_BIAS;
                                                       d.bias_dtype = FA_BF16;
                                                       literal_strides(d.bias_stride);
                                                   },
                                                   [](Desc& d) {
                                                       d.operands = FA_OPERAND_MASK;
                                                       literal_strides(d.mask_stride);
                                                   }});
    all["ALiBi, attention sinks"] = forwards({positioned(operand(FA_OPERAND_ALIBI)), operand(FA_OPERAND_SINKS)});
    all["causal: top-left, bottom-right, explicit offset"] =
        forwards({positioned([](Desc& d) { d.flags = FA_CAUSAL; }), [](Desc& d) {
                      d.flags = FA_CAUSAL;
                      d.alignment = FA_ALIGN_EXPLICIT;
                      d.operands = FA_OPERAND_CAUSAL_OFFSET;
                  }});
    all["sliding window, chunks"] = forwards({positioned([](Desc& d) {
                                                  d.flags = FA_WINDOW;
                                                  d.window_left = 3;
                                              }),
                                              positioned([](Desc& d) { d.chunk = 4; })});
    all["packed sequences (`cu_seqlens`)"] = forwards({packed});
    all["used lengths, left padding, cache index"] =
        forwards({operand(FA_OPERAND_SEQUSED_Q), operand(FA_OPERAND_SEQUSED_K), operand(FA_OPERAND_LEFTPAD_K), [](Desc& d) {
                      d.operands = FA_OPERAND_KV_BATCH_IDX;
                      d.kv_batch = 5;
                  }});
    all["paged keys and values, any page size"] = forwards({paged, [](Desc& d) {
                                                                paged(d);
                                                                d.page_size = 1;
                                                            }});
    all["dropout"] = forwards({[](Desc& d) { d.dropout_p = 0.1f; }});
    all["outputs: LSE, scores of four stages"] = forwards({operand(FA_OPERAND_LSE), [](Desc& d) {
                                                               d.operands = FA_OPERAND_SCORES;
                                                               d.scores_stage = FA_SCORES_PROBABILITY;
                                                               literal_strides(d.scores_stride);
                                                           }});
    all["splits over keys, fixed split size"] = forwards({[](Desc& d) { d.num_splits = 3; }, [](Desc& d) { d.split_size = 8; }});
    all["study algorithms `standard`, `flash1`"] =
        forwards({[](Desc& d) { d.algorithm = FA_ALGORITHM_STANDARD; }, [](Desc& d) { d.algorithm = FA_ALGORITHM_FLASH1; }});
    const auto differentiable = [](int32_t type) {
        return question(FA_OP_BACKWARD, [type](Desc& d) {
            d.q_dtype = type;
            d.dropout_p = 0.1f;
            d.softcap = 30;
            d.flags = FA_CAUSAL;
            d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        });
    };
    all["`fa_backward` in `f32`, `f16`, `bf16`, with the masks and options above but caches"] = {
        differentiable(FA_F32), differentiable(FA_F16), differentiable(FA_BF16),
        question(FA_OP_BACKWARD, operand(FA_OPERAND_BIAS)), question(FA_OP_BACKWARD, operand(FA_OPERAND_SINKS)),
        question(FA_OP_BACKWARD, packed)};
    all["`fa_merge` of partial results"] = {question(FA_OP_MERGE, operand(FA_OPERAND_LSE))};
    all["`fa_append_kv` into any cache"] = {question(FA_OP_APPEND_KV, operand(FA_OPERAND_SEQUSED_K)),
                                            question(FA_OP_APPEND_KV, paged)};
    all["`fa_rotary`"] = {question(FA_OP_ROTARY, [](Desc&) {})};
    return all;
}

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// The rows below the line "| … | CPU | CUDA | HIP |".
std::vector<Row> table() {
    std::istringstream text(read("README.md"));
    std::vector<Row> rows;
    bool inside = false;
    for (std::string line; std::getline(text, line);) {
        std::vector<std::string> cells;
        std::istringstream parts(line);
        for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(trimmed(cell));
        if (cells.size() != 5) {
            inside = false;
        } else if (cells[2] == "CPU" && cells[3] == "CUDA" && cells[4] == "HIP") {
            inside = true;
        } else if (inside && cells[1].find("---") == std::string::npos) {
            rows.push_back({cells[1], {cells[2], cells[3], cells[4]}});
        }
    }
    return rows;
}

TEST(Readme, TableHasOneRowForEachFeature) {
    const auto expected = questions();
    const std::vector<Row> rows = table();
    EXPECT_EQ(rows.size(), expected.size());
    for (const Row& row : rows) {
        EXPECT_EQ(expected.count(row.feature), 1u) << row.feature;
        for (const std::string& cell : row.cells) EXPECT_TRUE(cell == "yes" || cell == "–") << row.feature << ": " << cell;
    }
}

// Compares one column with what a handle made from `info` answers. Returns fa_create's status and how many cells say yes.
std::pair<fa_status_t, int> compare(int column, const fa_create_info_t& info, std::string* reason) {
    fa_handle_t handle;
    const fa_status_t created = fa_create(&handle, &info);
    *reason = fa_last_error(nullptr);
    const auto all = questions();
    int promised = 0;
    for (const Row& row : table()) {
        const bool yes = row.cells[column] == "yes";
        promised += yes;
        if (created != FA_OK || all.count(row.feature) == 0) continue;
        bool works = true;
        for (const Question& q : all.at(row.feature)) {
            const fa_status_t status = fa_supports(handle, &q.desc, q.op);
            EXPECT_TRUE(status == FA_OK || (status == FA_UNSUPPORTED && !yes)) << row.feature << ": " << fa_last_error(handle);
            works = works && status == FA_OK;
        }
        EXPECT_EQ(works, yes) << row.feature;
    }
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    return {created, promised};
}

class ReadmeTable : public testing::TestWithParam<int32_t> {};

TEST_P(ReadmeTable, SaysWhatTheBackendSays) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = GetParam();
    info.memory = FA_MEMORY_HOST;
    std::string reason;
    const auto [created, promised] = compare(GetParam() - FA_BACKEND_CPU, info, &reason);
    EXPECT_TRUE(created == FA_OK || GetParam() != FA_BACKEND_CPU) << reason;
    if (created != FA_OK && promised > 0) GTEST_SKIP() << "not usable here: " << reason;
}

INSTANTIATE_TEST_SUITE_P(, ReadmeTable, testing::Values(FA_BACKEND_CPU, FA_BACKEND_CUDA, FA_BACKEND_HIP), [](const auto& backend) {
    return std::string(backend.param == FA_BACKEND_CPU ? "CPU" : backend.param == FA_BACKEND_CUDA ? "CUDA" : "HIP");
});

// Without a GPU: the emulator, under the HIP module's name, answers from the text that both GPU modules are made of.
class ReadmeColumn : public testing::TestWithParam<int32_t> {};
TEST_P(ReadmeColumn, HoldsOnTheEmulator) {
    if (!*EMULATOR_DIR) GTEST_SKIP() << "no emulator in this build";
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_HIP;
    info.memory = FA_MEMORY_HOST;
    info.backend_dir = EMULATOR_DIR;
    std::string reason;
    EXPECT_EQ(compare(GetParam() - FA_BACKEND_CPU, info, &reason).first, FA_OK) << reason;
}
INSTANTIATE_TEST_SUITE_P(, ReadmeColumn, testing::Values(FA_BACKEND_CUDA, FA_BACKEND_HIP));

TEST(Readme, ItsProgramIsTheExample) {
    const std::string readme = read("README.md"), program = read("examples/minimal.c");
    const size_t begin = readme.find("```c\n") + 5;
    ASSERT_NE(begin, std::string::npos + 5);
    EXPECT_EQ(readme.substr(begin, readme.find("```", begin) - begin), program);
}

}  // namespace
