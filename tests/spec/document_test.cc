// Every worked example of docs/SPEC.md on softmax, states, masks, splits, dropout and formats, recomputed twice: in double from the
// definitions, and with the functions of src/spec.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include "example.h"
#include "spec/block_formats.h"
#include "spec/mask.h"
#include "spec/online_softmax.h"
#include "spec/random.h"
#include "spec/shape.h"
#include "spec/small_formats.h"

namespace spec {
namespace {

using fa::RowState;
using std::string;
using std::vector;

constexpr double kSlack = 3e-7;  // f32 results, relative

struct Row {
    double output, lse;
    vector<double> weights;
};

// Softmax by its definition. Scores are natural; sink −∞ is none.
Row exact_row(const vector<double>& scores, const vector<double>& values, double sink = -INFINITY) {
    double top = sink, sum = 0, out = 0;
    for (double s : scores) top = std::max(top, s);
    Row row;
    if (top == -INFINITY) return {0, -INFINITY, vector<double>(scores.size(), 0)};
    sum = std::exp(sink - top);
    for (double s : scores) sum += std::exp(s - top);
    for (size_t j = 0; j < scores.size(); j++) {
        row.weights.push_back(std::exp(scores[j] - top) / sum);
        out += row.weights[j] * values[j];
    }
    row.output = out;
    row.lse = top + std::log(sum);
    return row;
}

struct Partial {
    RowState state = fa::empty_row();
    float o = 0;
};

// A block measured from its own maximum, as a kernel takes a tile. Scores in log2 units.
Partial block_of(const vector<double>& scores, const vector<double>& values) {
    Partial p;
    for (double s : scores) p.state.m = fa::max_fn(p.state.m, float(s));
    for (size_t j = 0; j < scores.size(); j++) {
        const float w = fa::prob(float(scores[j]), p.state.m);
        p.state.l += w;
        p.o += w * float(values[j]);
    }
    return p;
}

vector<double> times(vector<double> list, double factor) {
    for (double& x : list) x *= factor;
    return list;
}

Partial library_row(const vector<double>& scores, const vector<double>& values, double sink = -INFINITY) {
    Partial p = block_of(times(scores, double(fa::kLog2e)), values);
    if (sink == -INFINITY) return p;
    const fa::Merged f = fa::merge(p.state, fa::sink_state(float(sink)));
    return {f.state, p.o * f.scale_a};
}

vector<double> numbers_of(const Partial& partial) { return {partial.state.m, partial.state.l, partial.o}; }

void check_scores(Example& example) {
    const double scale = example.number("scale"), cap = example.number("softcap"), slope = example.number("slope"),
                 p = example.number("dropout");
    const int64_t row = example.integer("row"), off = example.integer("off");
    const vector<double> bias = example.numbers("bias"), keep = example.numbers("keep");
    vector<double> s = times(example.numbers("products"), scale), values = example.numbers("values");
    example.expect("raw", s);
    for (double& x : s) x = cap * std::tanh(x / cap);
    example.expect("capped", s);
    const fa::KeyBand band = fa::key_band({off, -1, 0, 0}, row, int64_t(s.size()));
    for (int64_t j = 0; j < int64_t(s.size()); j++) {
        s[j] += bias[j] - slope * std::fabs(double(row + off - j));
        if (j > row + off) s[j] = -INFINITY;
        EXPECT_EQ(j >= band.begin && j < band.end, s[j] != -INFINITY);
    }
    example.expect("biased", s);
    const double sink = example.number("sink");
    const Row exact = exact_row(s, values, sink);
    example.expect("probability", exact.weights);
    example.expect("lse", {exact.lse});
    for (size_t j = 0; j < values.size(); j++) values[j] *= keep[j] / (1 - p);
    example.expect("output", {exact_row(s, values, sink).output});
    const Partial got = library_row(s, values, sink);
    example.expect("output", {got.o * fa::normaliser(got.state)}, kSlack);
    example.expect("lse", {fa::log_sum_exp(got.state)}, kSlack);
}

void check_attention(Example& example) {
    const int64_t rows = example.integer("rows"), heads = example.integer("heads");
    const vector<double> q = example.numbers("q"), k = example.numbers("k"), v = example.numbers("v");
    const int64_t width = int64_t(q.size()) / rows, d = width / heads;
    vector<double> o(q.size()), o_got(q.size()), lse, lse_got;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t h = 0; h < heads; h++) {
            vector<double> scores(rows), values(rows);
            for (int64_t j = 0; j < rows; j++)
                for (int64_t c = h * d; c < (h + 1) * d; c++) scores[j] += q[i * width + c] * k[j * width + c] / std::sqrt(double(d));
            for (int64_t c = h * d; c < (h + 1) * d; c++) {
                for (int64_t j = 0; j < rows; j++) values[j] = v[j * width + c];
                const Partial got = library_row(scores, values);
                o[i * width + c] = exact_row(scores, values).output;
                o_got[i * width + c] = got.o * fa::normaliser(got.state);
            }
            lse.push_back(exact_row(scores, values).lse);
            lse_got.push_back(fa::log_sum_exp(library_row(scores, values).state));
        }
    example.expect("o", o);
    example.expect("o", o_got, kSlack * 10);
    example.expect("lse", lse);
    example.expect("lse", lse_got, kSlack);
}

void check_softmax(Example& example) {
    const vector<double> scores = example.numbers("scores"), none(scores.size());
    float sum = 0;
    for (double s : scores) sum += std::exp(float(s));
    vector<double> plain;
    for (double s : scores) plain.push_back(std::exp(float(s)) / sum);
    example.expect("plain", plain, kSlack);
    example.expect("softmax", exact_row(scores, none).weights);
    const RowState state = library_row(scores, none).state;
    vector<double> got;
    for (double s : scores) got.push_back(fa::prob(float(s) * fa::kLog2e, state.m) * fa::normaliser(state));
    example.expect("softmax", got, 1e-4);  // scores near 1000 are exact to 2^-14 in f32
}

void check_online(Example& example) {
    const vector<double> scores = example.numbers("scores"), values = example.numbers("values");
    vector<double> m, l, o, exact_l, exact_o;
    Partial row;
    for (size_t j = 0; j < scores.size(); j++) {
        const fa::Merged f = fa::merge(row.state, {float(scores[j]), 1.f});
        row = {f.state, row.o * f.scale_a + float(values[j]) * f.scale_b};
        m.push_back(row.state.m);
        l.push_back(row.state.l);
        o.push_back(row.o);
        const double top = *std::max_element(scores.begin(), scores.begin() + int64_t(j) + 1);
        exact_l.push_back(0);
        exact_o.push_back(0);
        for (size_t t = 0; t <= j; t++) {
            exact_l[j] += std::exp2(scores[t] - top);
            exact_o[j] += std::exp2(scores[t] - top) * values[t];
        }
        EXPECT_EQ(m[j], top);
    }
    example.expect("m", m);
    for (const auto& list : {l, exact_l}) example.expect("l", list, kSlack);
    for (const auto& list : {o, exact_o}) example.expect("o", list, kSlack);
    example.expect("output", {exact_o.back() / exact_l.back()});
    example.expect("output", {row.o * fa::normaliser(row.state)}, kSlack);
}

void check_merge_of_two(Example& example) {
    vector<double> scores = example.numbers("a scores"), values = example.numbers("a values");
    const Partial a = block_of(scores, values);
    const vector<double> b_scores = example.numbers("b scores"), b_values = example.numbers("b values");
    const Partial b = block_of(b_scores, b_values);
    example.expect("a state", numbers_of(a));
    example.expect("b state", numbers_of(b));
    const fa::Merged f = fa::merge(a.state, b.state);
    const Partial whole{f.state, a.o * f.scale_a + b.o * f.scale_b};
    example.expect("scales", {f.scale_a, f.scale_b});
    example.expect("state", numbers_of(whole));
    scores.insert(scores.end(), b_scores.begin(), b_scores.end());
    values.insert(values.end(), b_values.begin(), b_values.end());
    example.expect("output", {exact_row(times(scores, std::log(2.0)), values).output});
    example.expect("output", {whole.o * fa::normaliser(whole.state)}, kSlack);
}

void check_lse(Example& example) {
    const vector<double> state = example.numbers("state");
    example.expect("sum", {state[1] * std::exp2(state[0])});
    example.expect("lse", {std::log(example.number("sum"))});
    example.expect("lse", {fa::log_sum_exp({float(state[0]), float(state[1])})}, kSlack);
}

void check_merge(Example& example) {
    const vector<double> lses = example.numbers("lse parts"), outputs = example.numbers("o parts");
    double sum = 0, out = 0;
    Partial row;
    for (size_t p = 0; p < lses.size(); p++) {
        const RowState part = fa::from_lse(float(lses[p]));
        EXPECT_EQ(part.l == 0, std::isinf(lses[p]));
        if (part.l == 0) continue;  // its o is ignored
        sum += std::exp(lses[p]);
        out += std::exp(lses[p]) * outputs[p];
        const fa::Merged f = fa::merge(row.state, part);
        row = {f.state, row.o * f.scale_a + float(outputs[p]) * f.scale_b};
    }
    example.expect("lse", {std::log(sum)});
    example.expect("lse", {fa::log_sum_exp(row.state)}, kSlack);
    example.expect("output", {out / sum});
    example.expect("output", {row.o * fa::normaliser(row.state)}, kSlack);
}

void check_row(Example& example) {
    const vector<double> scores = example.numbers("scores"), values = example.numbers("values");
    const double sink = example.has("sink") ? example.number("sink") : -INFINITY;
    const bool broken = std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s) || s == INFINITY; });
    const Row exact = broken ? Row{NAN, NAN, {}} : exact_row(scores, values, sink);
    const Partial got = library_row(scores, values, sink);
    example.expect("output", {exact.output});
    example.expect("output", {got.o * fa::normaliser(got.state)}, kSlack);
    example.expect("lse", {exact.lse});
    example.expect("lse", {fa::log_sum_exp(got.state)}, kSlack);
}

fa::MaskRule rule_of(Example& example) {
    return {example.integer("off", 0), example.integer("left", -1), example.integer("right", -1), example.integer("chunk", 0)};
}

// Key by key, as the public header words the masks.
bool keeps(const fa::MaskRule& rule, int64_t i, int64_t j) {
    const double x = double(i + rule.off), c = double(rule.chunk);
    return (rule.left < 0 || double(j) >= x - double(rule.left)) && (rule.right < 0 || double(j) <= x + double(rule.right)) &&
           (rule.chunk == 0 || std::floor(x / c) == std::floor(double(j) / c));
}

void check_band(Example& example) {
    EXPECT_FALSE(example.text("mask").empty());
    const fa::MaskRule rule = rule_of(example);
    const int64_t leftpad = example.integer("leftpad", 0),
                  keys = example.has("slots") ? example.integer("slots") - leftpad : example.integer("keys");
    vector<string> by_rule, by_band;
    for (int64_t i = 0; i < example.integer("rows"); i++) {
        by_rule.push_back(string(size_t(leftpad), '.'));
        by_band.push_back(by_rule.back());
        const fa::KeyBand band = fa::key_band(rule, i, keys);
        for (int64_t j = 0; j < keys; j++) {
            by_rule.back() += keeps(rule, i, j) ? '1' : '0';
            by_band.back() += j >= band.begin && j < band.end ? '1' : '0';
        }
    }
    example.expect_words("kept", by_rule);
    example.expect_words("kept", by_band);
}

void check_ranges(Example& example) {
    const fa::MaskRule rule = rule_of(example);
    const int64_t keys = example.integer("keys");
    vector<string> by_rule, by_bits;
    for (const string& range : example.words("ranges")) {
        const size_t dash = range.find('-');
        const int64_t i = int64_t(by_rule.size()), begin = std::stoll(range.substr(0, dash)), end = std::stoll(range.substr(dash + 1));
        const fa::KeyBand band = fa::key_band(rule, i, keys);
        const uint64_t bits = fa::key_bits(band.begin, band.end, 0) & fa::key_bits(begin, end, 0);
        by_rule.emplace_back(), by_bits.emplace_back();
        for (int64_t j = 0; j < keys; j++) {
            by_rule.back() += keeps(rule, i, j) && j >= begin && j < end ? '1' : '0';
            by_bits.back() += bits >> j & 1 ? '1' : '0';
        }
    }
    EXPECT_EQ(int64_t(by_rule.size()), example.integer("rows"));
    example.expect_words("kept", by_rule);
    example.expect_words("kept", by_bits);
}

void check_tiles(Example& example) {
    const fa::MaskRule rule = rule_of(example);
    const int64_t rows = example.integer("rows"), keys = example.integer("keys"), br = example.integer("tile rows"),
                  bc = example.integer("tile keys");
    vector<string> by_count, by_class;
    for (int64_t i = 0; i < rows; i += br) {
        by_count.emplace_back();
        by_class.emplace_back();
        for (int64_t j = 0; j < keys; j += bc) {
            const int64_t r = fa::min_of(br, rows - i), c = fa::min_of(bc, keys - j);
            int64_t kept = 0;
            for (int64_t x = 0; x < r * c; x++) kept += keeps(rule, i + x / c, j + x % c);
            by_count.back() += kept == 0 ? 'E' : kept == r * c ? 'F' : 'P';
            by_class.back() += "EFP"[int(fa::tile_class(rule, i, r, j, c, keys))];
        }
    }
    example.expect_words("classes", by_count);
    example.expect_words("classes", by_class);
}

void check_splits(Example& example) {
    const int64_t keys = example.integer("keys"), num = example.integer("num_splits", 0), fixed = example.integer("split_size", 0);
    const double part = std::ceil(double(keys) / double(num));
    example.expect("size", {fixed ? double(fixed) : std::ceil(part / 64) * 64});
    example.expect("size", {double(fa::split_keys(keys, num, fixed))});
    vector<double> begins;
    for (int64_t s = 0; s < fa::split_count(keys, num, fixed); s++) begins.push_back(double(s * example.integer("size")));
    example.expect("begins", begins);
}

string hex(uint32_t x) {
    char text[16];
    snprintf(text, sizeof text, "%08x", x);
    return text;
}

void check_dropout(Example& example) {
    const float p = float(example.number("p"));
    const uint64_t seed = uint64_t(example.integer("seed")), offset = uint64_t(example.integer("offset"));
    const int64_t head = example.integer("batch head"), row = example.integer("row");
    const fa::Dropout d = fa::make_dropout(p, seed, offset);
    example.expect_words("key'", {hex(d.key0), hex(d.key1)});
    vector<string> words;
    vector<double> keep, keep_got;
    for (int64_t j = 0; j < 8; j++) {
        const fa::Philox4 r = fa::philox(d.key0, d.key1, uint32_t(j / 4), uint32_t(row), uint32_t(head), uint32_t(head >> 32));
        words.push_back(hex(r.word[j % 4]));
        keep.push_back(double(r.word[j % 4]) >= std::floor(double(p) * 4294967296.0));
        keep_got.push_back(fa::dropout_keeps(d, head, row, j));
    }
    example.expect_words("words", words);
    example.expect_words("threshold", {hex(d.threshold)});
    example.expect("keep", keep);
    example.expect("keep", keep_got);
    example.expect("factor", {1 / (1 - double(p))});
    example.expect("factor", {d.rescale}, kSlack);
}

// Nearest value with `mantissa` bits, from the definition; `least` is the exponent of the smallest normal number.
double nearest(double x, int mantissa, int least, double largest, bool saturates) {
    const double step = std::ldexp(1, std::max(x == 0 ? least : std::ilogb(x), least) - mantissa);
    const double rounded = std::nearbyint(x / step) * step;
    return rounded <= largest ? rounded : saturates ? largest : INFINITY;
}

void check_formats(Example& example) {
    vector<double> f16, bf16, e4m3, e5m2, got[4];
    for (double x : example.numbers("value")) {
        const float f = float(x);
        f16.push_back(nearest(f, 10, -14, 65504, false));
        bf16.push_back(nearest(f, 7, -126, 3.3895313892515355e38, false));
        e4m3.push_back(nearest(f, 3, -6, 448, true));
        e5m2.push_back(nearest(f, 2, -14, 57344, true));
        got[0].push_back(fa::f16_to_f32(fa::f32_to_f16(f)));
        got[1].push_back(fa::bf16_to_f32(fa::f32_to_bf16(f)));
        got[2].push_back(fa::e4m3_to_f32(fa::f32_to_e4m3(f)));
        got[3].push_back(fa::e5m2_to_f32(fa::f32_to_e5m2(f)));
    }
    EXPECT_EQ(got[0], f16);
    EXPECT_EQ(got[1], bf16);
    EXPECT_EQ(got[2], e4m3);
    EXPECT_EQ(got[3], e5m2);
    example.expect("f16", f16);
    example.expect("bf16", bf16);
    example.expect("e4m3", e4m3);
    example.expect("e5m2", e5m2);
}

void check_nibbles(Example& example) {
    std::vector<double> e2m1, i4, u4;
    for (const std::string& word : example.words("bytes")) {
        const uint32_t byte = uint32_t(std::stoul(word, nullptr, 16));
        for (const uint32_t code : {byte & 15, byte >> 4}) {
            e2m1.push_back(fa::e2m1_to_f32(code)), i4.push_back(fa::i4_to_f32(code)), u4.push_back(fa::u4_to_f32(code));
        }
    }
    example.expect("e2m1", e2m1);
    example.expect("i4", i4);
    example.expect("u4", u4);
}

void check_descale(Example& example) {
    vector<double> values;
    for (const string& byte : example.words("bytes"))
        values.push_back(fa::e4m3_to_f32(uint8_t(std::stoul(byte, nullptr, 16))) * example.number("descale"));
    example.expect("values", values);
}

// A block of 4 bits with an m.
void check_blocks(Example& example) {
    vector<uint8_t> bytes;
    for (const string& byte : example.words("bytes")) bytes.push_back(uint8_t(std::stoul(byte, nullptr, 16)));
    constexpr fa::BlockFormat q4_1 = {4, true};
    ASSERT_EQ(bytes.size(), size_t(fa::block_bytes(q4_1)));
    const double d = fa::f16_to_f32(uint16_t(bytes[0] | bytes[1] << 8)), m = fa::f16_to_f32(uint16_t(bytes[2] | bytes[3] << 8));
    example.expect("d", {d});
    example.expect("m", {m});
    vector<double> low, high, got_low, got_high;
    for (int i = 0; i < 8; i++) {
        low.push_back(d * (bytes[size_t(4 + i)] % 16) + m);
        high.push_back(d * (bytes[size_t(4 + i)] / 16) + m);
        got_low.push_back(fa::block_value(bytes.data(), q4_1, i));
        got_high.push_back(fa::block_value(bytes.data(), q4_1, 16 + i));
    }
    example.expect("low", low);
    example.expect("low", got_low);
    example.expect("high", high);
    example.expect("high", got_high);
    float values[fa::kBlockDims];
    for (int i = 0; i < fa::kBlockDims; i++) values[i] = fa::block_value(bytes.data(), q4_1, i);
    vector<uint8_t> again(bytes.size());
    fa::quantise_block(values, q4_1, again.data());
    EXPECT_EQ(again, bytes);
}

void check_quantise(Example& example) {
    const vector<double> row = example.numbers("row");
    double largest = 0;
    for (double x : row) largest = std::max(largest, std::fabs(x));
    example.expect("descale", {largest / fa::kMaxI8});
    vector<double> exact, got;
    for (double x : row) {
        exact.push_back(std::nearbyint(x / (largest / 127)));
        got.push_back(fa::f32_to_i8(float(x) / (float(largest) / fa::kMaxI8)));
    }
    example.expect("stored", exact);
    example.expect("stored", got);
}

struct Check {
    const char* kind;
    void (*run)(Example&);
    friend std::ostream& operator<<(std::ostream& out, const Check& check) { return out << check.kind; }
};
const Check kChecks[] = {
    {"scores", check_scores},
    {"attention", check_attention},
    {"softmax", check_softmax},
    {"online", check_online},
    {"merge_of_two", check_merge_of_two},
    {"lse", check_lse},
    {"merge", check_merge},
    {"row", check_row},
    {"band", check_band},
    {"tiles", check_tiles},
    {"ranges", check_ranges},
    {"splits", check_splits},
    {"dropout", check_dropout},
    {"nibbles", check_nibbles},
    {"formats", check_formats},
    {"descale", check_descale},
    {"quantise", check_quantise},
    {"blocks", check_blocks},
};

class SpecDocument : public testing::TestWithParam<Check> {};
INSTANTIATE_TEST_SUITE_P(Example, SpecDocument, testing::ValuesIn(kChecks), [](const auto& info) { return string(info.param.kind); });

TEST_P(SpecDocument, Holds) { check_examples(GetParam().kind, GetParam().run); }

TEST(SpecDocument, HasNoExampleThatNothingChecks) {
    for (const Example& example : document()) {
        bool known = example.kind == "cost" || example.kind == "gradient";  // in files of their own
        for (const Check& check : kChecks) known |= example.kind == check.kind;
        EXPECT_TRUE(known) << SPEC_DOCUMENT << ":" << example.line << ": example " << example.kind;
    }
}

}  // namespace
}  // namespace spec
