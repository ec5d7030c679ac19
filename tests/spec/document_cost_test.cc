// The costs in docs/SPEC.md, sections 14 and 16: its formulas, and the same numbers counted by walking loop nests block by block.
#include <gtest/gtest.h>
#include <sstream>
#include "example.h"
#include "spec/shape.h"

namespace spec {
namespace {

using fa::ceil_div;
using fa::min_of;

struct Shape {
    int64_t batch, heads, n, d;
};
struct Blocks {
    int64_t element, rows, keys;  // bytes, Br, Bc
};
struct Cost {
    int64_t flops = 0, extra = 0, read = 0, written = 0;
    std::vector<double> numbers() const { return {double(flops), double(extra), double(read), double(written)}; }
};

constexpr int64_t kStateBytes = 8;  // m and l of a row, or LSE and Δ
constexpr int64_t kFloat = 4;

// One head, by the formulas as the document gives them.
Cost by_formula(const std::string& algorithm, const Shape& shape, const Blocks& blocks) {
    const int64_t n = shape.n, d = shape.d, e = blocks.element, tr = ceil_div(n, blocks.rows), tc = ceil_div(n, blocks.keys),
                  flops = 4 * n * n * d;
    if (algorithm == "one-pass") {
        const int64_t rounding = e < kFloat ? 1 : 0;
        return {10 * n * n * d, 4 * n + rounding * 4 * n * d,
                e * (2 * n * d + 2 * n * d + tc * 2 * n * d) + tc * 8 * n + (tc - 1) * 4 * n * d + rounding * 4 * n * d,
                4 * n + tc * 4 * n * d + e * 2 * n * d + rounding * e * n * d};
    }
    if (algorithm == "two-passes")
        return {14 * n * n * d, 4 * n, e * (3 * n * d + tr * 2 * n * d) + 4 * n + e * (2 * n * d + tc * 2 * n * d) + tc * 8 * n,
                e * n * d + 4 * n + e * 2 * n * d};
    if (algorithm == "standard")
        return {flops, e * tr * blocks.rows * n, e * (n * d + tr * 2 * n * d + 2 * n * n), e * (n * d + 2 * n * n)};
    if (algorithm == "flash1")
        return {flops, 8 * tr * blocks.rows, e * (2 * n * d + tc * 2 * n * d + n * d) + 8 * tc * n, e * (tc * n * d + n * d) + 8 * tc * n};
    return {flops, 0, e * (n * d + tr * 2 * n * d), e * n * d};
}

// The loop nests, counting every block that crosses between main and fast memory.
struct Walk {
    Shape s;
    Blocks b;
    Cost cost;

    template <class Body>
    void each(int64_t step, Body body) {
        for (int64_t at = 0; at < s.n; at += step) body(min_of(step, s.n - at));
    }
    void read(int64_t elements) { cost.read += elements * b.element; }
    void write(int64_t elements) { cost.written += elements * b.element; }
    void multiply(int64_t rows, int64_t keys) { cost.flops += 2 * rows * keys * s.d; }
    void floats(int64_t read, int64_t written) { cost.read += read * kFloat, cost.written += written * kFloat; }
    int64_t padded_rows() const { return fa::round_up(s.n, b.rows); }

    void standard() {
        each(b.rows, [&](int64_t rows) {
            read(rows * s.d);
            each(b.keys, [&](int64_t keys) { read(keys * s.d), multiply(rows, keys), write(rows * keys); });
        });
        each(b.rows, [&](int64_t rows) { read(rows * s.n), write(rows * s.n); });  // softmax
        each(b.rows, [&](int64_t rows) {
            each(b.keys, [&](int64_t keys) { read(rows * keys + keys * s.d), multiply(rows, keys); });
            write(rows * s.d);
        });
        cost.extra = padded_rows() * s.n * b.element;
    }
    void flash1() {
        each(b.keys, [&](int64_t keys) {
            read(2 * keys * s.d);
            each(b.rows, [&](int64_t rows) {
                read(2 * rows * s.d);  // q, o
                cost.read += rows * kStateBytes;
                multiply(rows, 2 * keys);
                write(rows * s.d);
                cost.written += rows * kStateBytes;
            });
        });
        each(b.rows, [&](int64_t rows) { read(rows * s.d), write(rows * s.d); });  // divide by l
        cost.extra = padded_rows() * kStateBytes;
    }
    void flash() {
        each(b.rows, [&](int64_t rows) {
            read(rows * s.d);
            each(b.keys, [&](int64_t keys) { read(2 * keys * s.d), multiply(rows, 2 * keys); });
            write(rows * s.d);
        });
    }

    // Keys outside: dK and dV stay. q, dO, LSE, Δ pass by; products: the given number for each pair.
    void keys_outside(int64_t products, bool with_dq) {
        bool first = true;
        each(b.keys, [&](int64_t keys) {
            read(2 * keys * s.d);
            each(b.rows, [&](int64_t rows) {
                read(2 * rows * s.d);
                floats(2 * rows, 0);
                if (with_dq) floats(first ? 0 : rows * s.d, rows * s.d);
                multiply(rows, products * keys);
            });
            write(2 * keys * s.d);
            first = false;
        });
    }
    void one_pass() {
        each(b.rows, [&](int64_t rows) { read(2 * rows * s.d), floats(0, rows); });  // Δ = dO · o
        keys_outside(5, true);
        cost.extra = s.n * kFloat;
        if (b.element == kFloat) return;
        each(b.rows, [&](int64_t rows) { floats(rows * s.d, 0), write(rows * s.d); });  // round dQ
        cost.extra += s.n * s.d * kFloat;
    }
    void two_passes() {
        each(b.rows, [&](int64_t rows) {
            read(3 * rows * s.d);
            floats(rows, rows);  // LSE, Δ
            each(b.keys, [&](int64_t keys) { read(2 * keys * s.d), multiply(rows, 3 * keys); });
            write(rows * s.d);
        });
        keys_outside(4, false);
        cost.extra = s.n * kFloat;
    }
};

Cost by_counting(const std::string& algorithm, const Shape& shape, const Blocks& blocks) {
    Walk walk{shape, blocks, {}};
    if (algorithm == "standard") walk.standard();
    else if (algorithm == "flash1") walk.flash1();
    else if (algorithm == "flash") walk.flash();
    else if (algorithm == "one-pass") walk.one_pass();
    else if (algorithm == "two-passes") walk.two_passes();
    else ADD_FAILURE() << "unknown algorithm " << algorithm;
    return walk.cost;
}

// All heads; extra space is told for one.
Cost over_heads(Cost cost, const Shape& shape) {
    const int64_t heads = shape.batch * shape.heads;
    return {cost.flops * heads, cost.extra, cost.read * heads, cost.written * heads};
}

void check_cost(Example& example) {
    const Blocks blocks{example.integer("element bytes"), example.integer("block rows"), example.integer("block keys")};
    example.expect_words("columns", {"FLOPs", "extra-bytes", "bytes-read", "bytes-written"});
    int lines = 0;
    for (const std::string& name : example.names()) {
        Shape s;
        std::string algorithm;
        std::istringstream stream(name);
        if (!(stream >> s.batch >> s.heads >> s.n >> s.d >> algorithm)) continue;  // not a line of the table
        lines++;
        example.expect(name, over_heads(by_formula(algorithm, s, blocks), s).numbers());
        example.expect(name, over_heads(by_counting(algorithm, s, blocks), s).numbers());
    }
    EXPECT_GT(lines, 0);
}

TEST(SpecDocument, CostTables) { check_examples("cost", check_cost); }

// Formula and count agree where blocks do not divide the lengths, too.
TEST(SpecDocument, CostFormulasCountEveryBlock) {
    for (const char* algorithm : {"standard", "flash1", "flash", "one-pass", "two-passes"})
        for (int64_t n = 1; n < 200; n += 7)
            for (int64_t rows : {1, 5, 64, 300})
                for (int64_t keys : {1, 6, 64, 300})
                    for (int64_t element : {2, 4}) {
                        const Shape s{2, 3, n, 20};
                        const Blocks b{element, rows, keys};
                        ASSERT_EQ(by_formula(algorithm, s, b).numbers(), by_counting(algorithm, s, b).numbers())
                            << algorithm << " n " << n << " Br " << rows << " Bc " << keys << " bytes " << element;
                    }
}

// What the two sections say about which algorithm moves less, at the block sizes that they name.
TEST(SpecDocument, CostStatements) {
    const auto traffic = [](const char* algorithm, int64_t n, int64_t d, int64_t rows, int64_t keys, int64_t element = 4) {
        const Cost c = by_formula(algorithm, {1, 1, n, d}, {element, rows, keys});
        return double(c.read + c.written);
    };
    EXPECT_EQ(traffic("flash", 64, 64, 64, 64), 4 * 4 * 64 * 64) << "one block: every tensor once";
    EXPECT_LE(traffic("standard", 64, 64, 64, 64), 2 * traffic("flash", 64, 64, 64, 64));
    EXPECT_LE(traffic("flash1", 64, 64, 64, 64), 2 * traffic("flash", 64, 64, 64, 64));
    EXPECT_EQ(traffic("standard", 777, 40, 64, 32) - traffic("flash", 777, 40, 64, 32), 4 * 4 * 777 * 777);

    const int64_t n = 1 << 20, d = 64, m = 1 << 14, block = m / (4 * d);
    const double squares = 4.0 * double(n) * double(n), unit = squares * double(d) * double(d) / double(m);
    EXPECT_NEAR(traffic("flash1", n, d, block, block) / unit, 12, 0.3);
    EXPECT_NEAR(traffic("flash", n, d, block, block) / unit, 8, 0.1);
    EXPECT_NEAR(traffic("flash", n, d, 2 * block, block) / unit, 4, 0.1);
    const double textbook = 4 * (squares + 4.0 * double(n) * double(d));
    EXPECT_NEAR(textbook / traffic("flash", n, d, d / 2, 1), 1, 0.01);
    EXPECT_NEAR(textbook / traffic("flash1", n, d, 1, d * 3 / 4), 1, 0.05);
    EXPECT_NEAR(traffic("flash1", n, d, 1, 96) / traffic("flash", n, d, 64, 1), 1, 0.05) << "key blocks 3/2 as tall";

    const double steps = double(n) * double(d) * double(n / block);
    EXPECT_NEAR(traffic("one-pass", n, d, block, block) / steps, 16, 0.2);
    EXPECT_NEAR(traffic("two-passes", n, d, block, block) / steps, 16, 0.2);
    EXPECT_NEAR(traffic("one-pass", n, d, block, block, 2) / steps, 12, 0.2);
    EXPECT_NEAR(traffic("two-passes", n, d, block, block, 2) / steps, 8, 0.2);
}

}  // namespace
}  // namespace spec
