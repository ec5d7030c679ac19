// The worked examples of docs/SPEC.md: fenced blocks "```example KIND" of lines "name = tokens".
#pragma once
#include <stdint.h>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace spec {

// One block. Reading a field as a given, or checking it against a computed result, marks it as used: a block must not hold a number
// that nothing looks at.
class Example {
  public:
    std::string kind;
    int line = 0;

    void add(const std::string& name, const std::string& text) { fields_[name] = text; }
    bool has(const std::string& name) const { return fields_.count(name) != 0; }

    // Givens. A field that is absent and has no default is a failure.
    std::string text(const std::string& name);
    std::vector<std::string> words(const std::string& name);
    std::vector<double> numbers(const std::string& name);
    double number(const std::string& name);
    int64_t integer(const std::string& name, int64_t otherwise);
    int64_t integer(const std::string& name);

    // Results: right to the last printed digit. slack is relative and covers f32 rounding of what the library computed.
    void expect(const std::string& name, const std::vector<double>& computed, double slack = 0);
    void expect_words(const std::string& name, const std::vector<std::string>& computed);

    std::vector<std::string> unused() const;
    std::vector<std::string> names() const;

  private:
    std::map<std::string, std::string> fields_;
    std::set<std::string> used_;
};

// All blocks of the document, in order.
const std::vector<Example>& document();

// Runs check on every example of one kind, and fails if there is none, or if one holds a field that the check left alone.
void check_examples(const std::string& kind, void (*check)(Example&));

}  // namespace spec
