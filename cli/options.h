// Options whose values CLI11 would read too freely: numbers must be whole, decimal and finite, and a wrong one gets our sentence.
#pragma once
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "library.h"

namespace tool {

// What is wrong with a command line that CLI11 refuses.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error);

double parse_real(const std::string& option, const std::string& text);  // finite
int64_t parse_int(const std::string& option, const std::string& text);
std::vector<int64_t> parse_ints(const std::string& option, const std::string& text);  // "1,2,3"

CLI::Option* add_real(CLI::App& app, const std::string& option, std::optional<float>& value, const std::string& help);
// Not empty: an option that was given never counts as one that was not.
CLI::Option* add_text(CLI::App& app, const std::string& option, std::string& value, const std::string& form, const std::string& help);
CLI::Option* add_int(CLI::App& app, const std::string& option, int64_t& value, const std::string& help);
CLI::Option* add_ints(CLI::App& app, const std::string& option, std::vector<int64_t>& value, const std::string& form,
                      const std::string& help);
// One of the names; value keeps its default otherwise.
CLI::Option* add_choice(CLI::App& app, const std::string& option, std::string& value, const std::vector<std::string>& names,
                        const std::string& help);

}  // namespace tool
