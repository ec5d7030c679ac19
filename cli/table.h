// Text tables whose columns line up, also where a cell holds characters of several bytes.
#pragma once
#include <ostream>
#include <string>
#include <vector>

namespace tool {

class Table {
  public:
    // Columns from `numbers` on are set to the right.
    Table(std::vector<std::string> titles, size_t numbers) : rows_{std::move(titles)}, numbers_(numbers) {}
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }  // may be shorter than the titles
    void print(std::ostream& out) const;

  private:
    std::vector<std::vector<std::string>> rows_;
    size_t numbers_;
};

std::string engineering(double value, const char* unit);  // 12.3 ms, 1.53 GB
std::string scientific(double value);                     // 1.2e-07

}  // namespace tool
