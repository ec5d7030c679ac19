// The subcommands. Each adds itself, its options and what it runs; a failure is an Error.
#pragma once
#include <CLI/App.hpp>

namespace tool {

void add_bench(CLI::App& app);
void add_completion(CLI::App& app);
void add_info(CLI::App& app);
void add_run(CLI::App& app);
void add_solve(CLI::App& app);
void add_study(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace tool
