// The README keeps its word: its features are what fa_supports says on this machine, its program is the one that the tests build. And
// every page's links lead somewhere.
#include <flashattn.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Desc = fa_attention_desc_t;

struct Question {
    Desc desc;
    int32_t op;
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

// Each of the changes alone must be supported.
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

std::function<void(Desc&)> v_type(int32_t dtype) {
    return [dtype](Desc& d) { d.v_dtype = dtype; };
}

std::function<void(Desc&)> v_heads(int64_t heads) {
    return [heads](Desc& d) { d.heads_v = heads; };
}

std::function<void(Desc&)> dims(int64_t qk, int64_t v) {
    return [=](Desc& d) {
        d.dim_qk = qk;
        d.dim_v = v;
    };
}

void v_in_k(Desc& d) {
    d.flags = FA_V_IN_K;
    d.heads_k = 1;
    d.dim_qk = 576;
    d.dim_v = 512;
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

void key_ranges(Desc& d) {
    d.operands = FA_OPERAND_KEY_RANGES;
    d.key_range_max = 2;
    const int64_t of_rows[4] = {0, 0, 2, 1};
    std::copy(of_rows, of_rows + 4, d.key_range_stride);
}

void block_mask(Desc& d) {
    d.operands = FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;
    d.list_rows = d.list_keys = 16;
    d.list_max = d.list_stride[2] = 2;
    d.list_stride[3] = 1;
}

void slots(Desc& d) {
    d.operands = FA_OPERAND_KEY_LIST;
    d.list_space = FA_LIST_SLOTS;
    d.page_size = 64, d.num_pages = 10;
    d.list_max = 20, d.list_heads = 1;
    d.list_stride[0] = 8 * 20, d.list_stride[2] = 20, d.list_stride[3] = 1;
}

Question question(int32_t op, const std::function<void(Desc&)>& change) {
    Question q = {plain(), op};
    change(q.desc);
    if (op == FA_OP_BACKWARD) q.desc.operands |= FA_OPERAND_LSE;
    return q;
}

// What each feature stands for. One without an entry here, or the reverse, is a failure.
std::map<std::string, std::vector<Question>> questions() {
    std::map<std::string, std::vector<Question>> all;
    all["`f32`, `f16`, `bf16`"] =
        forwards({types(FA_F32, FA_F32, FA_F32), types(FA_F16, FA_F16, FA_F16), types(FA_BF16, FA_BF16, FA_BF16)});
    all["8-bit floats `e4m3`, `e5m2`"] = forwards({types(FA_E4M3, FA_E4M3, FA_BF16), types(FA_E5M2, FA_E5M2, FA_E5M2)});
    all["types of q, k, v and o chosen apart, `int8` k and v"] =
        forwards({types(FA_F16, FA_E4M3, FA_F32), types(FA_BF16, FA_I8, FA_BF16), types(FA_F32, FA_F16, FA_E4M3), v_type(FA_BF16)});
    all["ggml's blocks `q4_0` … `q8_0` as k and v"] =
        forwards({types(FA_F32, FA_Q4_0, FA_F32), types(FA_F16, FA_Q4_1, FA_F16), types(FA_BF16, FA_Q5_0, FA_F32),
                  types(FA_F32, FA_Q5_1, FA_F32), types(FA_F32, FA_Q8_0, FA_F32), v_type(FA_Q4_0)});
    all["head dimensions 1 … 1024, dim_v ≠ dim_qk"] = forwards({dims(1, 1), dims(192, 128), dims(576, 512), dims(1024, 3)});
    all["grouped heads (MHA, GQA, MQA), of k and v apart"] =
        forwards({[](Desc& d) { d.heads_k = 2; }, [](Desc& d) { d.heads_k = 1; }, v_heads(2)});
    all["latent attention (MLA), v within k"] = forwards({v_in_k});
    all["any strides, broadcast by stride 0"] = forwards({strided});
    all["scale, softcap"] = forwards({[](Desc& d) {
        d.flags = FA_SCALE_EXPLICIT;
        d.scale = 0.3f;
        d.softcap = 30;
    }});
    all["key ranges of each row"] = {question(FA_OP_FORWARD, key_ranges), question(FA_OP_BACKWARD, key_ranges)};
    all["lists of keys (block masks, top-k)"] = {question(FA_OP_FORWARD, block_mask), question(FA_OP_BACKWARD, block_mask)};
    all["lists of slots of a cache"] = forwards({slots});
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
    all["causal masks (top-left, bottom-right, explicit offset)"] =
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
    all["`fa_backward` with the masks and options here"] = {differentiable(FA_F32),
                                                            differentiable(FA_F16),
                                                            differentiable(FA_BF16),
                                                            question(FA_OP_BACKWARD, operand(FA_OPERAND_BIAS)),
                                                            question(FA_OP_BACKWARD, operand(FA_OPERAND_SINKS)),
                                                            question(FA_OP_BACKWARD, packed)};
    all["`fa_merge` of partial results"] = {question(FA_OP_MERGE, operand(FA_OPERAND_LSE))};
    all["`fa_append_kv` into any cache"] = {question(FA_OP_APPEND_KV, operand(FA_OPERAND_SEQUSED_K)),
                                            question(FA_OP_APPEND_KV, types(FA_F32, FA_Q8_0, FA_F32)),
                                            question(FA_OP_APPEND_KV, v_in_k),
                                            question(FA_OP_APPEND_KV, paged)};
    all["`fa_rotary`"] = {question(FA_OP_ROTARY, [](Desc&) {})};
    return all;
}

// "Exceptions: …", in the same words and order.
std::vector<Question> exceptions() {
    const auto study = [](Desc& d) { d.algorithm = FA_ALGORITHM_FLASH1; };
    return {question(FA_OP_BACKWARD, types(FA_E4M3, FA_E4M3, FA_BF16)), question(FA_OP_BACKWARD, types(FA_F32, FA_Q8_0, FA_F32)),
            question(FA_OP_BACKWARD, v_type(FA_F16)), question(FA_OP_BACKWARD, v_heads(2)), question(FA_OP_BACKWARD, v_in_k),
            question(FA_OP_BACKWARD, paged), question(FA_OP_BACKWARD, slots),
            question(FA_OP_BACKWARD, [](Desc& d) { d.operands = FA_OPERAND_KV_BATCH_IDX, d.kv_batch = 5; }),
            question(FA_OP_BACKWARD, study), question(FA_OP_FORWARD, [=](Desc& d) { study(d), d.num_splits = 3; }),
            question(FA_OP_FORWARD, [=](Desc& d) { block_mask(d), study(d); }), question(FA_OP_FORWARD, [](Desc& d) {
                block_mask(d), d.operands |= FA_OPERAND_SCORES;
                literal_strides(d.scores_stride);
            })};
}

// From one phrase of the README to the next, on one line.
std::string between(const std::string& begin, const std::string& end) {
    std::string text = read("README.md");
    for (char& c : text)
        if (c == '\n') c = ' ';
    const size_t from = text.find(begin), to = text.find(end, from);
    EXPECT_NE(from, std::string::npos) << begin;
    EXPECT_NE(to, std::string::npos) << end;
    return from == std::string::npos || to == std::string::npos ? "" : text.substr(from + begin.size(), to - from - begin.size());
}

std::set<std::string> features() {
    std::istringstream text(between("Every backend has: ", ". Exceptions: "));
    std::set<std::string> found;
    for (std::string feature; std::getline(text, feature, ';');) found.insert(feature.substr(feature.find_first_not_of(' ')));
    return found;
}

TEST(Readme, ListsTheFeaturesThatAreAskedFor) {
    std::set<std::string> asked;
    for (const auto& feature : questions()) asked.insert(feature.first);
    EXPECT_EQ(features(), asked);
}

TEST(Readme, NamesTheExceptionsThatAreAskedFor) {
    EXPECT_EQ(between(". Exceptions: ", ". A test holds"),
              "`fa_backward` takes no 8-bit types or blocks, no v of another type or other heads than k's, no v within k, no pages, no "
              "slots, no cache index and no study algorithm; "
              "a study algorithm does not split keys, and has no lists of keys, as scores have none");
}

void expect_supported(fa_handle_t handle) {
    for (const auto& [feature, asked] : questions())
        for (const Question& q : asked)
            EXPECT_EQ(fa_supports(handle, &q.desc, q.op), FA_OK) << feature << ": " << fa_last_error(handle);
    for (const Question& q : exceptions()) EXPECT_EQ(fa_supports(handle, &q.desc, q.op), FA_UNSUPPORTED) << fa_last_error(handle);
}

class ReadmeFeatures : public testing::TestWithParam<int32_t> {};

TEST_P(ReadmeFeatures, AreWhatTheBackendSays) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = GetParam();
    info.memory = FA_MEMORY_HOST;
    fa_handle_t handle;
    if (fa_create(&handle, &info) != FA_OK) {
        ASSERT_NE(GetParam(), FA_BACKEND_CPU) << fa_last_error(nullptr);
        GTEST_SKIP() << "not usable here: " << fa_last_error(nullptr);
    }
    expect_supported(handle);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

INSTANTIATE_TEST_SUITE_P(
    , ReadmeFeatures, testing::Values(FA_BACKEND_CPU, FA_BACKEND_CUDA, FA_BACKEND_HIP), [](const auto& backend) {
        return std::string(backend.param == FA_BACKEND_CPU ? "CPU" : backend.param == FA_BACKEND_CUDA ? "CUDA" : "HIP");
    });

// Without a GPU: the emulator, under the HIP module's name, answers from the text that both GPU modules are made of.
TEST(Readme, FeaturesHoldOnTheEmulator) {
    if (!*EMULATOR_DIR) GTEST_SKIP() << "no emulator in this build";
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_HIP;
    info.memory = FA_MEMORY_HOST;
    info.backend_dir = EMULATOR_DIR;
    fa_handle_t handle;
    ASSERT_EQ(fa_create(&handle, &info), FA_OK) << fa_last_error(nullptr);
    expect_supported(handle);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Readme, ItsProgramIsTheExample) {
    const std::string readme = read("README.md"), program = read("examples/minimal.c");
    const size_t begin = readme.find("```c\n") + 5;
    ASSERT_NE(begin, std::string::npos + 5);
    EXPECT_EQ(readme.substr(begin, readme.find("```", begin) - begin), program);
}

// What the header shows of a quantised cache is what a program says that the tests run.
TEST(Header, ItsExampleOfAQuantisedCacheIsAProgram) {
    const std::string header = read("include/flashattn.h"), program = read("examples/quantised_cache.c");
    const std::string name = "* Example, causal, over a q8_0 cache:";
    const size_t begin = header.find(name), end = header.find("* Example", begin + 1);
    ASSERT_TRUE(begin != std::string::npos && end != std::string::npos);
    const std::string shown = header.substr(begin + name.size(), end - begin - name.size());
    const std::regex statement("[da]\\.[^;]+;");
    int statements = 0;
    for (std::sregex_iterator found(shown.begin(), shown.end(), statement), none; found != none; ++found, statements++)
        EXPECT_NE(program.find("    " + found->str()), std::string::npos) << found->str();
    EXPECT_EQ(statements, 16);
}

TEST(Pages, LinksLeadSomewhere) {
    namespace fs = std::filesystem;
    const std::regex link("\\]\\(([^)#:]+)(#[^)]*)?\\)");  // not those with a scheme, nor within a page
    int links = 0;
    for (const char* folder : {"", "docs", "docs/generated"})
        for (const fs::directory_entry& page : fs::directory_iterator(fs::path(SOURCE_DIR) / folder)) {
            if (page.path().extension() != ".md") continue;
            const std::string text = read(fs::relative(page.path(), SOURCE_DIR).string());
            for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at, links++)
                EXPECT_TRUE(fs::exists(page.path().parent_path() / (*at)[1].str())) << page.path() << ": " << (*at)[1];
        }
    EXPECT_GT(links, 0);
}

// Recipes and pages of today's design name files and folders that exist.
TEST(Pages, NameFilesThatExist) {
    const std::regex path("`((bench|bindings|cli|cmake|docs|examples|include|src|tests|tools)/[^`* ]+)[^`*]*`");
    for (const char* page : {"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/gpu.md", "docs/hopper.md", "docs/SPEC.md"}) {
        const std::string text = read(page);
        for (std::sregex_iterator at(text.begin(), text.end(), path), end; at != end; ++at)
            EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(SOURCE_DIR) / (*at)[1].str())) << page << ": " << (*at)[1];
    }
}

// And what recipes call by a name of the header, of the build's options or of the lists that a new option joins is called so there.
TEST(Pages, RecipesNameWhatExists) {
    std::string known;
    for (const char* file : {"include/flashattn.h", "CMakeLists.txt", "src/backend/options.def"}) known += read(file);
    const std::regex name("`(FA_[A-Z0-9_]+)`");
    const std::string text = read("CONTRIBUTING.md");
    int names = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at, names++)
        EXPECT_NE(std::string::npos, known.find((*at)[1].str())) << (*at)[1];
    EXPECT_NE(std::string::npos, text.find("`FA_ATTENTION_DESC_INIT`")) << "where a new field must be";
    EXPECT_GT(names, 1);
}

}  // namespace
