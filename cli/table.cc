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

void Table::print(std::ostream& out) const {
    std::vector<size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_)
        for (size_t c = 0; c < std::min(row.size(), widths.size()); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
    for (const auto& row : rows_) {
        std::string line;
        for (size_t c = 0; c < row.size(); ++c) {
            const std::string pad(c < widths.size() ? widths[c] - width_of(row[c]) : 0, ' ');
            line += (c ? "  " : "") + (c < numbers_ ? row[c] + pad : pad + row[c]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << "\n";
    }
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
