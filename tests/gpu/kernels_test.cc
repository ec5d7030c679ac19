// Every listed kernel: found through fa_explain, compared with the oracle, and asked for the same bits a thousand times. Small enough for
// the compute sanitizer.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include "gpu/gpu.h"
#include "gpu/hopper_cases.h"
#include "gpu/latent_cases.h"
#include "gpu/list_cases.h"
#include "gpu/mma/rows.h"
#include "gpu/simt/kernel_rows.h"
#include "support/random_case.h"

namespace test::gpu {
namespace {

class EveryKernel : public Gpu {};

// A matrix kernel's name with the type that it is compiled for.
std::string mma_name(const fa::gpu::MmaKernels& kernels, const fa::gpu::MmaRow& row) {
    const int rows = kernels.tile_rows * row.row_tiles * row.row_warps;
    return std::string(kernels.family) + "_" + std::to_string(rows) + "x" + std::to_string(row.dims) + " " + kernels.type;
}

// Is a row of sm90/forward/kernels.def with those types compiled for f16 and bf16?
bool is_of_both(const std::string& types) { return types.rfind("both", 0) == 0; }

// Hopper's own, from their rows.
std::set<std::string> listed_hopper_kernels() {
    std::set<std::string> names;
#define FA_PAIR_true "_pair"
#define FA_PAIR_false ""
#define FA_MOD_none ""
#define FA_MOD_softcap "_softcap"
#define FA_MOD_alibi "_alibi"
#define FA_MOD_mask "_mask"
#define FA_MOD_bias "_bias"
#define FA_MOD_bias_f32 "_bias_f32"
#define FA_MOD_factors "_factors"
#define FA_SM90(d, dv, n, warpgroups, mask, pair, mod, stages, q_stages, min_k, cost, types)                      \
    for (const std::string dtype : {"f16", "bf16", "e4m3"})                                                       \
        if ((is_of_both(#types) && dtype != "e4m3") || std::string(#types).rfind(dtype, 0) == 0)                  \
            names.insert("fwd_sm90_" #d "x" #dv "_" #mask "_" #warpgroups "x64x" #n FA_PAIR_##pair FA_MOD_##mod + \
                         std::string(#types).substr(is_of_both(#types) ? 4 : dtype.size()) + " " + dtype);
#include "cuda/sm90/forward/kernels.def"
#undef FA_SM90
    const auto insert = [&](const char* name, const std::string& type) {
        names.insert(std::string(name) + (type == "F16" ? " f16" : " bf16"));
    };
#define FA_SM90_WIDE(type, pair, name) insert(name, #type);
#include "cuda/sm90/wide/kernels.def"
#define FA_SM90_LATENT(type, dims, source, name) insert(name, #type);
#define FA_SM90_LATENT_TOKENS(form, rows, name) insert(name, "Bf16");
#include "cuda/sm90/latent/kernels.def"
    return names;
}

std::set<std::string> listed_kernels() {
    std::set<std::string> names = {"merge_splits", "merge_split_rows", "merge_split_states", "write_scores"};
    for (const fa::gpu::MmaKernels& kernels : fa::gpu::kMmaKernels)
        for (const fa::gpu::MmaRow* row = kernels.rows; row < kernels.rows + kernels.count; row++)
            if (row->dims <= kernels.widest) names.insert(mma_name(kernels, *row));
    for (const fa::gpu::SimtRow& row : fa::gpu::kSimtRows<64>)  // 64: rt::kWideRows of rt_cuda.h
        names.insert("fwd_simt_" + std::to_string(row.rows) + "x" + std::to_string(row.columns));
    if (has_hopper_kernels()) {
        names.insert("merge_in_cluster");
        for (const std::string& name : listed_hopper_kernels()) names.insert(name);
    }
    return names;
}

bool of_hopper(const std::string& name) { return name.rfind("fwd_sm90", 0) == 0; }
// The kernels that a forward launches, from the words of fa_explain.
std::vector<std::string> kernels_of(const Handle& handle, const fa_attention_desc_t& desc) {
    char text[512];
    if (fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text) != FA_OK) return {};
    const std::string words = text;
    const size_t begin = words.find("kernel ") + 7;
    std::vector<std::string> names = {words.substr(begin, words.find(' ', begin) - begin)};
    const bool bf16 = words.find("products of bf16") != std::string::npos, f16 = words.find("products of f16") != std::string::npos;
    if (names[0].rfind("fwd_mma", 0) == 0 || of_hopper(names[0]))
        names[0] += std::string(" ") + oracle::name_of(bf16 ? FA_BF16 : f16 ? FA_F16 : desc.q_dtype);
    const bool together = words.find("their cluster") != std::string::npos;
    const bool split = words.find(" splits") != std::string::npos && !together, scores = (desc.operands & FA_OPERAND_SCORES) != 0;
    if (together) names.push_back("merge_in_cluster");
    for (const char* merge : {"merge_splits", "merge_split_rows", "merge_latent_splits"})
        if (split && words.find(merge) != std::string::npos) names.push_back(merge);
    if (scores) names.push_back("write_scores");
    if (split && scores) names.push_back("merge_split_states");
    return names;
}

constexpr int kCasesOfAKernel = 5;

// Plain calls, dense and as wide as a kernel's columns, which have loops of their own: one for each kernel that they lead to.
std::vector<Case> plain_cases(const Handle& handle, int64_t batch, int64_t heads, int64_t keys, const std::vector<int64_t>& all_rows) {
    struct Types {
        int32_t q, kv, v = 0;
    };  // v: as k
    std::vector<Case> cases;
    std::set<std::vector<std::string>> known;
    for (const Types& types : {Types{FA_BF16, FA_BF16}, Types{FA_F16, FA_F16}, Types{FA_F32, FA_F32}, Types{FA_F16, FA_E4M3},
                               Types{FA_BF16, FA_I8}, Types{FA_F32, FA_E5M2}, Types{FA_BF16, FA_Q8_0}, Types{FA_BF16, FA_Q4_0},
                               Types{FA_F16, FA_Q8_0}, Types{FA_F16, FA_Q5_0}, Types{FA_BF16, FA_Q4_1}, Types{FA_F16, FA_Q5_1},
                               Types{FA_BF16, FA_Q8_0, FA_Q4_0}, Types{FA_F16, FA_Q5_1, FA_E4M3}, Types{FA_E4M3, FA_E4M3}})
        for (const int64_t dim : {64, 128, 256, 512, 576})
            for (const int64_t rows : all_rows)
                for (const int splits : {0, 1, 5})
                    for (const bool scores : {false, true}) {
                        const bool narrow =
                            types.q != types.kv || types.q == FA_F32 || types.q == FA_E4M3;         // no matrix units for wide heads
                        if ((scores && (dim > 64 || rows > 5)) || (narrow && dim > 256)) continue;  // scores are written slowly, one by one
                        Case c = shaped({batch, heads, 2, rows, keys, dim, std::min<int64_t>(dim, 512)}, types.q);
                        c.d.k_dtype = types.kv, c.d.v_dtype = types.v;
                        if (dim > 256) c.d.o_dtype = types.q == FA_F16 ? FA_BF16 : FA_F16;  // not for Hopper's
                        if (dim > 512 && splits == 5) c.d.split_size = 64;  // the tallest tiles, which few rows do not have otherwise
                        else c.d.num_splits = splits;
                        causal(c, FA_ALIGN_BOTTOM_RIGHT);
                        if (scores) c.d.operands |= FA_OPERAND_SCORES, dense_pairs(c.d, c.d.scores_stride);
                        if (known.insert(kernels_of(handle, c.d)).second) cases.push_back(std::move(c));
                    }
    for (const int64_t rows : all_rows)
        for (Case& c : latent_mma_cases(batch, heads, rows, keys))
            if (known.insert(kernels_of(handle, c.d)).second) cases.push_back(std::move(c));
    return cases;
}

// Calls with so many rows that Hopper's own kernels take them, one for each: long and short ones, of few and of many tiles, of one length
// and of several, over pages; for pairs, with and without query heads that share keys.
std::vector<Case> tall_cases(const Handle& handle) {
    struct Shape {
        int64_t batch, heads, rows, keys;
    };
    enum { dense, causal_mask, window, masks };
    // alone: every query head has keys of its own; bytes: k and v of 8 bits
    enum { alike, without_lse, alone, ragged, in_pages, to_f32, to_e4m3, bytes, bytes_in_pages, layouts };
    std::vector<Case> cases;
    std::set<std::string> known;
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_E4M3})
        for (const auto& [dim_qk, dim_v] : {std::pair{64, 64}, {80, 72}, {128, 128}, {192, 128}, {160, 136}, {160, 144}, {256, 256}})
            for (const Shape& shape : {Shape{1, 4, 200, 150}, Shape{1, 2, 300, 2100}, Shape{1, 2, 140, 8200}, Shape{2, 36, 768, 300},
                                       Shape{1, 22, 1152, 300}, Shape{1, 36, 768, 2100}, Shape{1, 60, 1000, 1100}})
                for (int n = 0; n < 2 * masks * layouts; n++) {
                    const int mask = n / 2 / layouts, layout = n / 2 % layouts;
                    if (n % 2 == 1 && dtype != FA_E4M3) continue;
                    const int64_t heads_k = layout == alone ? shape.heads : shape.heads / 2;
                    Case c = shaped({shape.batch, shape.heads, heads_k, shape.rows, shape.keys, dim_qk, dim_v}, dtype);
                    c.d.num_splits = 1;  // where there are few tiles, other kernels would cut the keys
                    c.d.precision = n % 2 == 1 ? FA_PRECISION_NATIVE : FA_PRECISION_DEFAULT;
                    if (mask != dense) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (mask == window) c.d.flags |= FA_WINDOW, c.d.window_left = 100, c.d.window_right = -1;
                    if (layout == without_lse) c.d.operands = 0;
                    if (layout == to_e4m3 && dtype != FA_E4M3) continue;
                    const bool of_bytes = layout == bytes || layout == bytes_in_pages;
                    if (of_bytes && dtype == FA_E4M3) continue;
                    if (of_bytes) {  // with factors and without
                        c.d.k_dtype = std::vector{FA_I8, FA_E4M3, FA_E5M2}[size_t((dim_v / 64 + mask) % 3)];
                        c.d.v_dtype = mask == causal_mask ? FA_E4M3 : c.d.k_dtype;
                    }
                    if (layout == to_f32) c.d.o_dtype = FA_F32;
                    else if (layout == to_e4m3) c.d.o_dtype = FA_E4M3, c.d.operands |= FA_OPERAND_O_SCALE;
                    else if (layout >= ragged && layout != bytes) {
                        c.d.operands |= FA_OPERAND_SEQUSED_K;
                        for (int64_t b = 0; b < shape.batch; b++) c.metadata.seqused_k.push_back(int32_t(shape.keys - 60 * b - 1));
                    }
                    if (layout == in_pages || layout == bytes_in_pages) paged(c, std::vector{16, 48, 64}[cases.size() % 3]);
                    if ((dtype == FA_E4M3 && layout != alike) || (of_bytes && mask != dense)) descale_heads(c);
                    if (dtype == FA_E4M3 && layout == ragged) c.d.o_dtype = FA_F16;
                    const std::vector<std::string> names = kernels_of(handle, c.d);
                    if (names.empty() || !of_hopper(names[0])) continue;
                    const bool pair = names[0].find("_pair") != std::string::npos;
                    const char* const way = layout == in_pages        ? " over pages"
                                            : layout == bytes         ? " over bytes"
                                            : of_bytes                ? " over bytes in pages"
                                            : layout == to_f32        ? " to f32"
                                            : layout == to_e4m3       ? " to e4m3"
                                            : pair && layout == alone ? " of one head"
                                                                      : "";
                    if (known.insert(names[0] + way).second) cases.push_back(std::move(c));
                }
    return cases;
}

// The same for kernels that work on single scores, each with weak and strong options: for steady loops, for the exact way, and both in one
// block.
std::vector<Case> worked_cases(const Handle& handle) {
    enum { dense, causal_mask, band, masks };
    constexpr float alibi = 0, mask_operand = -1, own_bias = -2, f32_bias = -3, block_factors = -4;
    struct Shape {
        int64_t heads, rows, keys, dim;
    };
    std::vector<Case> cases;
    std::set<std::pair<std::string, float>> known;
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_E4M3})
        for (const Shape& shape : {Shape{2, 300, 700, 64}, Shape{2, 300, 700, 128}, Shape{2, 300, 700, 256}, Shape{36, 384, 1300, 128}})
            for (int mask = dense; mask < masks; mask++)
                for (const float work : {mask_operand, own_bias, f32_bias, block_factors, alibi, 50.f, 5.f, 0.4f}) {
                    Case c = shaped({2, shape.heads, shape.heads / 2, shape.rows, shape.keys, shape.dim, shape.dim}, dtype);
                    c.d.alignment = FA_ALIGN_TOP_LEFT;  // with distances to both sides
                    c.d.num_splits = 1;                 // as above
                    c.d.operands |= FA_OPERAND_SEQUSED_K;
                    c.metadata.seqused_k = {int32_t(shape.keys), 451};
                    if (mask == causal_mask) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (mask == band) window(c, 500, 60, FA_ALIGN_BOTTOM_RIGHT);
                    if (work > 0) c.d.softcap = work;
                    if (work == alibi) c.d.operands |= FA_OPERAND_ALIBI;
                    if (work == mask_operand) c.d.operands |= FA_OPERAND_MASK, dense_pairs(c.d, c.d.mask_stride);
                    if (work == own_bias || work == f32_bias) {  // as it is, one row for all, and of strides that have it copied
                        c.d.operands |= FA_OPERAND_BIAS;
                        c.d.bias_dtype = work == f32_bias ? int32_t(FA_F32) : dtype;
                        dense_pairs(c.d, c.d.bias_stride);
                        if (mask == dense) c.d.operands &= ~uint64_t(FA_OPERAND_SEQUSED_K), c.metadata.seqused_k.clear();  // for pairs
                        if (mask == dense) c.d.bias_stride[0] = 0, c.d.bias_stride[2] = 1304, c.d.bias_stride[1] = 1304 * shape.rows;
                        if (mask == causal_mask) c.d.bias_stride[2] = 0;
                        if (mask == band)
                            c.d.bias_stride[1] = c.d.bias_stride[0], c.d.bias_period[1] = 1, c.d.operands |= FA_OPERAND_BIAS_SCALE;
                        if (mask == band && shape.dim == 64) c.d.bias_dtype = dtype == FA_F16 ? FA_BF16 : FA_F16;
                    }
                    if (shape.heads > 2 && (work == 5 || work == own_bias)) paged(c, 48);
                    if (work == block_factors) descale_blocks(c, 1 + mask * 7, 16 * (1 + mask));
                    else if (dtype == FA_E4M3) descale_heads(c);
                    const std::vector<std::string> names = kernels_of(handle, c.d);
                    if (names.empty() || !of_hopper(names[0])) continue;
                    // Many heads fill the device, and take their time to judge: only for what few do not lead to.
                    if (known.insert({names[0], work}).second || shape.heads == 2) cases.push_back(std::move(c));
                }
    return cases;
}

// One of those for each kernel, layout and way to merge.
std::vector<Case> some_of(std::vector<Case> all, const Handle& handle) {
    std::vector<Case> cases;
    std::set<std::tuple<std::vector<std::string>, uint64_t, int64_t, int32_t>> known;
    for (auto c = all.rbegin(); c != all.rend(); ++c)
        if (known.insert({kernels_of(handle, c->d), c->d.operands, c->d.page_size, c->d.o_dtype}).second) cases.push_back(std::move(*c));
    return cases;
}

void fill(Case& test_case, Rng& rng) {
    test_case.bind(rng);
    test_case.fill_normal(rng);
    if (test_case.d.operands & (FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE))
        test_case.set_descales(rng, test_case.d.k_dtype == FA_I8 ? 0.02 : 0.8);
    if (test_case.d.operands & FA_OPERAND_Q_DESCALE) {
        test_case.q_descale.as<float>()[0] *= -1, test_case.v_descale.as<float>()[0] *= -1;
    }
    if (test_case.d.operands & FA_OPERAND_O_SCALE) *test_case.o_scale.as<float>() = -8;
    if (test_case.d.operands & FA_OPERAND_ALIBI) fa_alibi_slopes(test_case.d.heads_q, 0, test_case.alibi.as<float>());
    // Rows, blocks at either end, and whole tiles without a key.
    const auto attend = [&](int64_t b, int64_t head, int64_t row, int64_t key) {
        const bool near = key > 2 * row - 200 && key < 2 * row + 300, tile = b == 1 && head == 1 && row / 128 == 1;
        return near && !tile && row % 9 != 2 && rng.chance(0.6);
    };
    if (test_case.d.operands & FA_OPERAND_MASK) test_case.set_mask(attend);
    // Rows without a key, rows that one score outgrows, and factors that leave a bias as it is, turn it round and take it away.
    if (test_case.d.operands & FA_OPERAND_BIAS)
        test_case.set_bias([&](int64_t b, int64_t head, int64_t row, int64_t key) {
            const bool large = row % 7 == 3 && key % 200 == 17;
            return !attend(b, head, row, key) && key % 3 > 0 ? -kInf : large ? 90 : rng.normal();
        });
    if (test_case.d.operands & FA_OPERAND_BIAS_SCALE) {
        for (int64_t head = 0; head < test_case.d.heads_q; head++)
            test_case.bias_scale.as<float>()[head] = std::vector{1.f, -0.5f, 0.f, 3.f}[size_t(head % 4)];
    }
    if (test_case.d.operands & FA_OPERAND_SINKS)
        for (int64_t head = 0; head < test_case.d.heads_q; head++) test_case.sinks.as<float>()[head] = float(rng.normal());
    if (test_case.d.list_space != FA_LIST_SLOTS) return fill_lists(test_case, rng);
    test_case.set_key_lists([&](int64_t, int64_t, int64_t) {
        Case::Lists lists;
        const int64_t all = test_case.d.num_pages * test_case.d.page_size, first = rng.between(0, all - 1);
        const int64_t entries = rng.chance(0.5) ? test_case.d.list_max : rng.between(0, test_case.d.list_max);
        const double none = rng.chance(0.5) ? 0.1 : 0;
        for (int64_t e = 0; e < entries; e++)
            lists.masked.push_back(rng.chance(none) ? -1 : int32_t((first + 10007 * e) % all));  // each once
        return lists;
    });
}

std::string run_on_device(const Handle& handle, Case& test_case) {
    Moved<fa_forward_args_t> moved_args = moved(test_case);
    for (const Buffer* output : {&test_case.o, &test_case.lse, &test_case.scores})
        if (output->bytes() > 0) memset(output->as(), kPoison, size_t(output->bytes()));
    moved_args.upload();
    if (fa_forward_ex(handle, &test_case.d, &moved_args.device) != FA_OK) return handle.error();
    cuda(cudaDeviceSynchronize());
    moved_args.fetch();
    const int64_t scores = test_case.d.batch * test_case.d.heads_q * test_case.d.seqlen_q * test_case.d.seqlen_k,
                  row_step = scores > 10'000'000 ? 7 : 1;
    return check_device_output(handle, test_case, test_case.d, row_step);
}

// How often those of the listed kernels were met that are `wanted`, all of which are to be.
struct Met {
    std::map<std::string, int> count;
    template <class Wanted>
    explicit Met(Wanted wanted) {
        for (const std::string& name : listed_kernels())
            if (wanted(name)) count[name] = 0;
    }
    ~Met() {
        for (const auto& [name, calls] : count) {
            printf("%-24s %d calls\n", name.c_str(), calls);
            EXPECT_TRUE(calls > 0 || has_less_shared_memory()) << name << " was never chosen";
        }
    }
    void add(const std::vector<std::string>& names) {
        for (const std::string& name : names) count[name]++;
    }
};

void check(const Handle& handle, std::vector<Case> cases, Met& met, uint64_t seed) {
    Rng rng(seed);
    for (Case& c : cases) {
        const std::vector<std::string> names = kernels_of(handle, c.d);
        if (!names.empty() &&
            std::all_of(names.begin(), names.end(), [&](const std::string& name) { return met.count[name] >= most_cases(); }))
            continue;
        fill(c, rng);
        met.add(names);
        ASSERT_EQ(run_on_device(handle, c), "") << c.describe();
    }
}

// Random calls, until each kernel has some, and plain ones.
TEST_F(EveryKernel, AgreesWithTheOracle) {
    const Handle handle = make_handle();
    Met met([](const std::string& name) { return !of_hopper(name); });
    size_t waiting = met.count.size();
    for (uint64_t n = 0; n < 20000 && waiting > 0; n++) {
        Case c = random_case(derive(231, n));
        bool wanted = false;
        const std::vector<std::string> names = kernels_of(handle, c.d);
        for (const std::string& name : names) wanted |= !of_hopper(name) && met.count[name] < kCasesOfAKernel;
        if (!wanted || names.empty()) continue;
        met.add(names);
        for (const std::string& name : names) waiting -= met.count[name] == kCasesOfAKernel;
        ASSERT_EQ(run_on_device(handle, c), "") << c.describe();
    }
    check(handle, plain_cases(handle, 1, 4, 150, {1, 9, 20, 70}), met, 234);
    for (const auto& call : one_of_each(handle)) {
        ASSERT_EQ(call->enqueue(handle, nullptr), FA_OK) << call->name() << ": " << handle.error();
        cuda(cudaStreamSynchronize(nullptr));
        EXPECT_EQ(call->check(), "") << call->name();
    }
}

// Those of one width, type, and way to latent rows: a test for each, as most of the time goes into the oracle, which has one thread.
struct Part {
    std::string width, dtype, latent;
    bool operator()(const std::string& name) const { return of_hopper(name) && *this == part_of(name); }
    bool operator==(const Part& other) const { return text() == other.text(); }
    bool operator<(const Part& other) const { return text() < other.text(); }
    std::string text() const { return width + ' ' + dtype + latent; }
    static Part part_of(const std::string& name) {  // fwd_sm90_576x512_latent_rows_64x128 bf16
        const size_t width = std::strlen("fwd_sm90_");
        Part part{name.substr(width, name.find('x') - width), name.substr(name.find(' ') + 1), ""};
        for (const char* kind : {"_latent_rows", "_latent_bytes", "_latent_tokens"})
            if (name.find(kind) != std::string::npos) part.latent = kind;
        return part;
    }
};
void PrintTo(const Part& part, std::ostream* out) { *out << part.text(); }
std::vector<Part> parts_of(const std::function<bool(const std::string&)>& which) {
    std::set<Part> parts;
    for (const std::string& name : listed_hopper_kernels())
        if (which(name)) parts.insert(Part::part_of(name));
    return {parts.begin(), parts.end()};
}

class EveryHopperKernel : public EveryKernel, public testing::WithParamInterface<Part> {
  protected:
    const Part& part = GetParam();
    std::vector<Case> of_part(const Handle& handle, std::vector<Case> cases) const {
        const auto others = [&](const Case& test_case) {
            const std::vector<std::string> names = kernels_of(handle, test_case.d);
            EXPECT_FALSE(names.empty()) << handle.error();
            return names.empty() || !part(names[0]);
        };
        cases.erase(std::remove_if(cases.begin(), cases.end(), others), cases.end());
        return cases;
    }
};
class EveryHopperKernelOfLists : public EveryHopperKernel {};
bool of_lists(const std::string& name) { return name.find("_list_") != std::string::npos; }

TEST_P(EveryHopperKernel, AgreesWithTheOracle) {
    if (!has_hopper_kernels()) GTEST_SKIP() << "no kernels of Hopper's own";
    const Handle handle = make_handle();
    Met met([&](const std::string& name) { return part(name) && !of_lists(name); });
    check(handle, of_part(handle, tall_cases(handle)), met, 234);
    check(handle, of_part(handle, worked_cases(handle)), met, 235);
    check(handle, of_part(handle, latent_cases()), met, 236);
    check(handle, of_part(handle, wide_cases()), met, 237);
    check(handle, of_part(handle, low_cases()), met, 238);
    check(handle, of_part(handle, latent_row_cases()), met, 239);
}
TEST_P(EveryHopperKernelOfLists, AgreesWithTheOracle) {
    if (!has_hopper_kernels()) GTEST_SKIP() << "no kernels of Hopper's own";
    const Handle handle = make_handle();
    Met met([&](const std::string& name) { return part(name) && of_lists(name); });
    check(handle, of_part(handle, list_cases()), met, 240);
}
TEST_P(EveryHopperKernelOfLists, SkipsWhatAMaskLeavesEmpty) {
    if (!has_hopper_kernels()) GTEST_SKIP() << "no kernels of Hopper's own";
    const Handle handle = make_handle();
    Case c = with_empty_units(std::stoll(part.width), part.dtype == "f16" ? FA_F16 : FA_BF16);
    ASSERT_TRUE(of_lists(kernels_of(handle, c.d).at(0)));
    EXPECT_EQ(run_on_device(handle, c), "");
}
INSTANTIATE_TEST_SUITE_P(Parts, EveryHopperKernel, testing::ValuesIn(parts_of([](const std::string& name) { return !of_lists(name); })));
INSTANTIATE_TEST_SUITE_P(Parts, EveryHopperKernelOfLists, testing::ValuesIn(parts_of(of_lists)));

// fa_explain tells what a call will launch: of latent attention, too, the splits and their merge.
TEST_F(EveryKernel, ExplainsSplitsOfLatentAttention) {
    if (!has_hopper_kernels()) GTEST_SKIP() << "no kernels of Hopper's own";
    const Handle handle = make_handle();
    const std::string kernel = "fwd_sm90_576x512_latent_64x128 bf16";
    Case c = shaped({1, 16, 1, 1, 5000, 576, 512}, FA_BF16);
    c.d.flags = FA_V_IN_K;
    c.d.num_splits = 1;
    EXPECT_EQ(kernels_of(handle, c.d), std::vector<std::string>{kernel});
    c.d.num_splits = 0, c.d.split_size = 1024;
    EXPECT_EQ(kernels_of(handle, c.d), (std::vector<std::string>{kernel, "merge_latent_splits"}));
}

// With another stream at work beside it, which moves the blocks about. In parts, which several processes take.
class EveryKernelAgain : public EveryKernel, public testing::WithParamInterface<int> {};
constexpr int kTimes = 1000, kTimesParts = 5;
TEST_P(EveryKernelAgain, GivesTheSameBitsAThousandTimes) {
    const Handle handle = make_handle(), noise = make_handle();
    const Stream stream, other;
    const std::unique_ptr<Call> busy = packed_call(noise, 232);
    Rng rng(233);
    Memory counter(8);
    std::set<std::string> seen;
    std::vector<Case> cases = plain_cases(handle, 4, 8, 700, {1, 3, 5, 12, 300, 2000});
    for (Case& c : tall_cases(handle)) cases.push_back(std::move(c));
    for (Case& c : worked_cases(handle)) cases.push_back(std::move(c));
    if (has_hopper_kernels())
        for (auto all : {latent_cases, latent_row_cases, wide_cases, list_cases})
            for (Case& c : some_of(all(), handle)) cases.push_back(std::move(c));
    for (Case& c : cases) {
        for (const std::string& name : kernels_of(handle, c.d)) seen.insert(name);
        if ((&c - cases.data()) % kTimesParts != GetParam()) continue;
        fill(c, rng);
        Moved<fa_forward_args_t> moved_args = moved(c);
        moved_args.upload();
        moved_args.device.flags = FA_ARGS_STREAM, moved_args.device.stream = stream;
        cuda(cudaMemset(counter.as(), 0, 8));
        const int64_t o_bytes = c.o.bytes(), lse_bytes = c.lse.bytes();
        Memory o(o_bytes), lse(lse_bytes);
        for (int n = 0; n < kTimes; n++) {
            if (n % 7 == 0) {
                ASSERT_EQ(busy->enqueue(noise, other), FA_OK) << noise.error();
            }
            ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
            if (n == 0) {
                cuda(cudaMemcpyAsync(o.as(), moved_args.device.o, size_t(o_bytes), cudaMemcpyDefault, stream));
                cuda(cudaMemcpyAsync(lse.as(), moved_args.device.lse, size_t(lse_bytes), cudaMemcpyDefault, stream));
            } else {
                count_differences(o.as(), moved_args.device.o, o_bytes, counter.as<unsigned long long>(), stream);
                count_differences(lse.as(), moved_args.device.lse, lse_bytes, counter.as<unsigned long long>(), stream);
            }
            // Written again, or a call that does nothing would pass.
            cuda(cudaMemsetAsync(moved_args.device.o, 0xff, size_t(o_bytes), stream));
            cuda(cudaMemsetAsync(moved_args.device.lse, 0xff, size_t(lse_bytes), stream));
        }
        stream.wait(), other.wait();
        unsigned long long differences = 0;
        cuda(cudaMemcpy(&differences, counter.as(), 8, cudaMemcpyDefault));
        EXPECT_EQ(differences, 0u) << c.describe();
    }
    for (const std::string& name : listed_kernels()) EXPECT_TRUE(seen.count(name)) << name << " took no part";
}
INSTANTIATE_TEST_SUITE_P(Parts, EveryKernelAgain, testing::Range(0, kTimesParts));

TEST_F(EveryKernel, OfTheOtherCallsTooGivesTheSameBitsAThousandTimes) {
    const Handle handle = make_handle();
    const Stream stream;
    for (const auto& call : one_of_each(handle)) {
        std::vector<unsigned char> first;
        for (int n = 0; n < kTimes; n++) {
            ASSERT_EQ(call->enqueue(handle, stream), FA_OK) << call->name() << ": " << handle.error();
            stream.wait();
            if (n % 50 != 0 && n != kTimes - 1) continue;
            ASSERT_EQ(call->check(), "") << call->name();
            if (n == 0) first = call->output();
            ASSERT_EQ(compare_bits(call->output(), first), "") << call->name() << ", call " << n;
        }
    }
}

}  // namespace
}  // namespace test::gpu
