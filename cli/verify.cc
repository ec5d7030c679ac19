// flashattn verify: every kernel that this machine can run, against plain loops over doubles.
#include <fnmatch.h>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include "commands.h"
#include "json.h"
#include "library.h"
#include "progress.h"
#include "table.h"
#include "trial.h"

namespace tool {
namespace {

struct Checked {
    std::string trial;
    std::vector<Outcome> outcomes;  // one for each kernel
};

struct Machine {
    std::vector<std::unique_ptr<Handle>> handles;
    Kernels kernels;

    Machine() {
        for (int32_t isa : usable_isas()) {
            add("cpu " + name_of(kIsas, isa), FA_BACKEND_CPU);
            handles.back()->set(FA_PARAM_MAX_ISA, isa);
        }
        for (int32_t backend : usable_backends())
            if (backend != FA_BACKEND_CPU) add(name_of(kBackends, backend), backend);
    }

  private:
    void add(const std::string& name, int32_t backend) {
        handles.push_back(std::make_unique<Handle>(backend));
        kernels.push_back({name, *handles.back(), backend == FA_BACKEND_CPU});
    }
};

std::string cell_of(const Outcome& outcome) {
    if (!outcome.supported) return "–";
    const std::string number = outcome.norm ? scientific(*outcome.norm) : outcome.share ? scientific(*outcome.share) : "";
    return number + (outcome.passed() ? " ✓" : " FAIL");
}

std::string bound_of(const Checked& checked) {
    for (const Outcome& o : checked.outcomes)
        if (o.norm) return scientific(o.norm_bound);
        else if (o.share) return "share ≤ 1";
    return "rounding";
}

std::vector<std::string> row_of(const Checked& checked) {
    std::vector<std::string> row = {checked.trial, bound_of(checked)};
    for (const Outcome& o : checked.outcomes) row.push_back(cell_of(o));
    return row;
}

// A table whose rows are printed as they come.
Table table_of(const Machine& machine, const std::vector<Trial>& trials) {
    std::vector<std::string> titles = {"case", "bound"};
    for (const Kernel& k : machine.kernels) titles.push_back(k.name);
    Table table(titles, 1);
    for (const Trial& trial : trials) table.widen({trial.name});
    table.widen(std::vector<std::string>(titles.size(), scientific(kWidest) + " ✓"));
    table.print(std::cout);
    std::cout.flush();
    return table;
}

void print_faults(const Machine& machine, const std::vector<Checked>& results) {
    std::cout << "\nErrors against fp64: the relative norm of the error of o, or of all gradients; \"share\": the largest error of any "
                 "element\n"
                 "as a share of its own bound, which is checked in every row; \"rounding\": each element is the nearest value of its "
                 "type.\n";
    for (const Checked& r : results)
        for (size_t k = 0; k < r.outcomes.size(); ++k)
            if (!r.outcomes[k].fault.empty())
                std::cout << (r.outcomes[k].supported ? "FAIL " : "not supported: ") << r.trial << ", " << machine.kernels[k].name << ": "
                          << r.outcomes[k].fault << "\n";
}

Json json_of(const Machine& machine, const std::vector<Checked>& results) {
    Json cases = Json::array();
    for (const Checked& r : results) {
        Json list = Json::array();
        for (size_t k = 0; k < r.outcomes.size(); ++k) {
            const Outcome& o = r.outcomes[k];
            Json one = {{"kernel", machine.kernels[k].name}, {"status", o.passed() ? "passed" : o.supported ? "failed" : "unsupported"}};
            if (o.norm) one.update({{"norm", *o.norm}, {"norm_bound", o.norm_bound}});
            if (o.share) one["share_of_element_bound"] = *o.share;
            if (!o.fault.empty()) one["reason"] = o.fault;
            list.push_back(one);
        }
        cases.push_back({{"name", r.trial}, {"results", list}});
    }
    return cases;
}

// Cases whose names contain one of the patterns, in which * and ? stand for anything, as in a shell; without patterns all.
std::vector<Trial> trials_like(const std::vector<std::string>& patterns) {
    std::vector<Trial> trials;
    std::vector<bool> used(patterns.size());
    for (auto* const some : {forward_trials, backward_trials, cache_trials})
        for (Trial& t : some()) {
            bool wanted = patterns.empty();
            for (size_t i = 0; i < patterns.size(); ++i)
                if (fnmatch(("*" + patterns[i] + "*").c_str(), t.name.c_str(), 0) == 0) wanted = used[i] = true;
            if (wanted) trials.push_back(std::move(t));
        }
    for (size_t i = 0; i < patterns.size(); ++i)
        if (!used[i]) fail("--only ", patterns[i], ": no case has such a name");
    return trials;
}

void verify(bool json, const std::vector<std::string>& only) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Trial> trials = trials_like(only);
    Machine machine;
    std::vector<Checked> results;
    int64_t passed = 0, failed = 0, unsupported = 0;
    std::optional<Table> table;
    if (!json) table = table_of(machine, trials);
    {
        Progress progress(trials.size());
        for (const Trial& trial : trials) {
            progress.show(results.size() + 1, trial.name);
            results.push_back({trial.name, {}});
            trial.run(machine.kernels, [&](const Outcome& outcome) {
                ++(outcome.passed() ? passed : outcome.supported ? failed : unsupported);
                results.back().outcomes.push_back(outcome);
            });
            if (!table) continue;
            progress.clear();
            table->print_row(std::cout, row_of(results.back()));
            std::cout.flush();
        }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (json) {
        Json report = report_of("verify");
        report.update({{"devices", devices_of(usable_backends())},
                       {"passed", passed},
                       {"failed", failed},
                       {"unsupported", unsupported},
                       {"seconds", seconds},
                       {"cases", json_of(machine, results)}});
        print_json(report);
    } else {
        print_faults(machine, results);
        std::cout << "\n"
                  << passed << " passed, " << failed << " failed, " << unsupported << " not supported, in " << engineering(seconds, "s")
                  << "\n";
    }
    std::cout.flush();
    if (failed) fail(failed, " of ", passed + failed, " checks failed");
    if (passed == 0) fail("nothing could be checked");
}

}  // namespace

void add_verify(CLI::App& app) {
    struct Options {
        bool json = false;
        std::vector<std::string> only;
    };
    const auto o = std::make_shared<Options>();
    CLI::App& c = *app.add_subcommand("verify", "Compare every kernel that this machine can run with fp64; exit status 1 if one is wrong");
    c.add_option("--only", o->only, "Only calls with names that contain this shell pattern; may be given more than once")
        ->type_name("PATTERN")
        ->expected(1)
        ->take_all();
    c.add_flag("--json", o->json, "Print JSON");
    c.callback([o] { verify(o->json, o->only); });
}

}  // namespace tool
