#include "table.h"
#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tool {
namespace {

std::string format(const char* form, double value) {
    char text[64];
    std::snprintf(text, sizeof text, form, value);
    return text;
}

size_t width_of(const std::string& text) {  // UTF-8: every byte but the continuations starts a character
    return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

void Table::add(std::vector<std::string> row) {
    widen(row);
    rows_.push_back(std::move(row));
}

void Table::widen(const std::vector<std::string>& row) {
    for (size_t c = 0; c < std::min(row.size(), widths_.size()); ++c) widths_[c] = std::max(widths_[c], width_of(row[c]));
}

void Table::print_row(std::ostream& out, const std::vector<std::string>& row) const {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
        const size_t width = c < widths_.size() ? widths_[c] : 0;
        const std::string pad(width - std::min(width, width_of(row[c])), ' ');
        line += (c ? "  " : "") + (c < numbers_ ? row[c] + pad : pad + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
}

void Table::print(std::ostream& out) const {
    for (const auto& row : rows_) print_row(out, row);
}

std::string engineering(double value, const char* unit) {
    constexpr const char* kPrefixes[] = {"n", "µ", "m", "", "k", "M", "G", "T", "P"};
    size_t step = 3;
    for (; std::fabs(value) >= 999.5 && step + 1 < std::size(kPrefixes); ++step) value /= 1000;
    for (; value != 0 && std::fabs(value) < 0.9995 && step > 0; --step) value *= 1000;
    return format("%.3g ", value) + kPrefixes[step] + unit;
}

std::string scientific(double value) { return format("%.1e", value); }

}  // namespace tool
