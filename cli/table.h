// Text tables whose columns line up, also where a cell holds characters of several bytes.
#pragma once
#include <ostream>
#include <string>
#include <vector>

namespace tool {

class Table {
  public:
    // Columns from `numbers` on are set to the right.
    Table(std::vector<std::string> titles, size_t numbers) : widths_(titles.size()), numbers_(numbers) { add(std::move(titles)); }
    void add(std::vector<std::string> row);  // may be shorter than the titles
    void print(std::ostream& out) const;

    // For rows that are printed as they come: widen() the columns to what is to be expected, print() the titles, then each row.
    void widen(const std::vector<std::string>& row);
    void print_row(std::ostream& out, const std::vector<std::string>& row) const;

  private:
    std::vector<std::vector<std::string>> rows_;
    std::vector<size_t> widths_;
    size_t numbers_;
};

std::string engineering(double value, const char* unit);  // 12.3 ms, 1.53 GB
constexpr double kWidest = 1.23e-3;                       // as wide as any in engineering()
std::string scientific(double value);                     // 1.2e-07

}  // namespace tool
