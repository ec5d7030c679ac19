#include "example.h"
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace spec {
namespace {

std::string trimmed(const std::string& s) {
    const size_t a = s.find_first_not_of(" \t\r"), b = s.find_last_not_of(" \t\r");
    return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

// Half a unit of the last printed digit: 0.0005 for "2.150", 0.5 for "17", 5 · 10^3 for "1.23e6".
double half_digit(const std::string& token) {
    const size_t e = token.find('e'), point = token.find('.');
    const double scale = e == std::string::npos ? 0 : std::stod(token.substr(e + 1));
    const size_t end = e == std::string::npos ? token.size() : e;
    const double decimals = point == std::string::npos ? 0 : double(end - point - 1);
    return 0.5 * std::pow(10.0, scale - decimals);
}

std::vector<Example> read_document() {
    std::vector<Example> all;
    std::ifstream file(SPEC_DOCUMENT);
    if (!file) ADD_FAILURE() << "cannot read " << SPEC_DOCUMENT;
    const std::string fence = "```", mark = "```example ";
    bool inside = false;
    std::string line;
    for (int number = 1; std::getline(file, line); number++) {
        if (!inside && line.compare(0, mark.size(), mark) == 0) {
            inside = true;
            all.emplace_back();
            all.back().kind = trimmed(line.substr(mark.size()));
            all.back().line = number;
        } else if (inside && line.compare(0, fence.size(), fence) == 0) {
            inside = false;
        } else if (inside) {
            const size_t equals = line.find('=');
            const std::string name = trimmed(line.substr(0, equals));
            if (equals == std::string::npos || all.back().has(name)) ADD_FAILURE() << SPEC_DOCUMENT << ":" << number << ": " << line;
            else all.back().add(name, trimmed(line.substr(equals + 1)));
        }
    }
    if (inside) ADD_FAILURE() << SPEC_DOCUMENT << ": a fence is not closed";
    return all;
}

}  // namespace

std::string Example::text(const std::string& name) {
    used_.insert(name);
    if (!has(name)) ADD_FAILURE() << "no field '" << name << "'";
    return has(name) ? fields_[name] : "";
}

std::vector<std::string> Example::words(const std::string& name) {
    std::istringstream stream(text(name));
    std::vector<std::string> list;
    for (std::string word; stream >> word;)
        if (word != "/") list.push_back(word);  // a slash ends a row, for the reader's eye
    return list;
}

std::vector<double> Example::numbers(const std::string& name) {
    std::vector<double> list;
    for (const std::string& word : words(name)) {
        size_t end = 0;
        list.push_back(std::stod(word, &end));
        EXPECT_EQ(end, word.size()) << name << ": '" << word << "' is not a number";
    }
    return list;
}

double Example::number(const std::string& name) {
    const std::vector<double> list = numbers(name);
    EXPECT_EQ(list.size(), 1u) << name;
    return list.empty() ? NAN : list[0];
}

int64_t Example::integer(const std::string& name) { return int64_t(number(name)); }
int64_t Example::integer(const std::string& name, int64_t otherwise) { return has(name) ? integer(name) : otherwise; }

void Example::expect(const std::string& name, const std::vector<double>& computed, double slack) {
    const std::vector<std::string> printed = words(name);
    const std::vector<double> values = numbers(name);
    ASSERT_EQ(values.size(), computed.size()) << name;
    for (size_t i = 0; i < values.size(); i++) {
        const double want = computed[i];
        if (std::isfinite(want)) {
            const double tolerance = half_digit(printed[i]) * (1 + 1e-9) + slack * std::max(1.0, std::fabs(want));
            EXPECT_NEAR(values[i], want, tolerance) << name << ", number " << i + 1;
        } else {
            EXPECT_TRUE(std::isnan(want) ? std::isnan(values[i]) : values[i] == want) << name << ", number " << i + 1 << " is " << want;
        }
    }
}

void Example::expect_words(const std::string& name, const std::vector<std::string>& computed) { EXPECT_EQ(words(name), computed) << name; }

std::vector<std::string> Example::unused() const {
    std::vector<std::string> list;
    for (const auto& field : fields_)
        if (!used_.count(field.first)) list.push_back(field.first);
    return list;
}

std::vector<std::string> Example::names() const {
    std::vector<std::string> list;
    for (const auto& field : fields_) list.push_back(field.first);
    return list;
}

const std::vector<Example>& document() {
    static const std::vector<Example> all = read_document();
    return all;
}

void check_examples(const std::string& kind, void (*check)(Example&)) {
    int found = 0;
    for (Example example : document()) {
        if (example.kind != kind) continue;
        SCOPED_TRACE(testing::Message() << SPEC_DOCUMENT << ":" << example.line << ": example " << kind);
        found++;
        check(example);
        EXPECT_EQ(example.unused(), std::vector<std::string>()) << "numbers that no check looks at";
    }
    EXPECT_GT(found, 0) << "the document has no example of kind '" << kind << "'";
}

}  // namespace spec
