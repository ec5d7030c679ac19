// A case in words, so that a failure can be understood from the log alone.
#include <algorithm>
#include <cstdio>
#include "support/case.h"

namespace test {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A field that is not 0. Those that are bits, or the same in all cases, are told otherwise or not at all.
void add(std::string& text, const std::string& name, double value) {
    char number[32];
    snprintf(number, sizeof number, "%.9g", value);
    if (value != 0) text += name + "=" + number + " ";
}
void add(std::string& text, const std::string& name, int64_t value) {
    if (value != 0) text += name + "=" + std::to_string(value) + " ";
}
void add(std::string& text, const std::string& name, int32_t value) {
    if (value != 0 && ends_with(name, "_dtype")) text += name + "=" + oracle::name_of(value) + " ";
    else add(text, name, int64_t(value));
}
void add(std::string& text, const std::string& name, uint32_t value) {
    if (name != "struct_size" && name != "flags") add(text, name, int64_t(value));
}
void add(std::string&, const std::string&, uint64_t) {}

template <typename Number>
void add_list(std::string& text, const std::string& name, const Number* values, size_t count) {
    if (std::all_of(values, values + count, [](Number value) { return value == 0; })) return;
    text += name + "={";
    for (size_t n = 0; n < count && n < 64; n++) text += (n ? "," : "") + std::to_string(values[n]);
    text += "} ";
}
template <size_t count>
void add(std::string& text, const std::string& name, const int64_t (&values)[count]) {
    add_list(text, name, values, count);
}

const char* const kOperands[] = {
#define FA_OPERAND(name, field) #name,
#include "backend/operands.def"
};

}  // namespace

std::string describe(const fa_attention_desc_t& d) {
    std::string text;
#define FA_FLAG(name) \
    if (d.flags & FA_##name) text += #name " ";
#include "backend/flags.def"
    for (size_t bit = 0; bit < sizeof kOperands / sizeof *kOperands; bit++)
        if (d.operands >> bit & 1) text += std::string("+") + kOperands[bit] + " ";
#define FA_FIELD(field) add(text, #field, d.field);
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
    return text;
}

std::string Case::describe() const {
    std::string text = test::describe(d);
    for (const MetadataOperand& operand : metadata_operands()) {
        const std::vector<int32_t>& values = metadata.*operand.values;
        add_list(text, operand.name, values.data(), values.size());
    }
    if (seed != 0) text = "case " + std::to_string(seed) + ": " + text;
    return text;
}

}  // namespace test
