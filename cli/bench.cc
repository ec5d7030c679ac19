// flashattn bench: how fast this library is here, by shape or by suite.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include "commands.h"
#include "experiment.h"
#include "json.h"
#include "library.h"
#include "masks.h"
#include "options.h"
#include "picture.h"
#include "plot.h"
#include "progress.h"
#include "signals.h"
#include "suites.h"
#include "table.h"
#include "timing.h"

namespace tool {
namespace {

struct BenchOptions {
    std::vector<Shape> shapes;
    std::string suite, dtype, k_dtype, backend = "auto", algorithm = "flash", precision = "default", plot;
    MaskOptions masks;
    std::optional<float> softcap, milliseconds;
    int64_t keys = 0, heads_k = 0, dim_v = 0, page_size = 0, threads = 0, num_splits = 0, rounds = 7;
    bool v_in_k = false, backward = false, deterministic = false, cold = false, list = false, json = false;
};

struct Result {
    Load load;
    std::string skipped;
    Json kernel;
    Speed speed;
    bool held() const { return skipped.empty() && !speed.ceilings.empty(); }
};

// ---- shapes of one's own

void set_cache(fa_attention_desc_t& desc, const BenchOptions& options) {
    desc.heads_k = options.heads_k;
    desc.dim_v = options.dim_v;
    if (options.v_in_k) desc.flags |= FA_V_IN_K;
    if (!options.k_dtype.empty()) desc.k_dtype = value_of(cache_types(), options.k_dtype);
    if (desc.k_dtype == FA_I8)
        desc.operands |= FA_OPERAND_K_DESCALE | (options.v_in_k ? 0 : FA_OPERAND_V_DESCALE);  // one factor for all: strides of 0
    if (options.page_size == 0) return;
    desc.operands |= FA_OPERAND_PAGE_TABLE;
    desc.page_size = options.page_size;
    desc.num_pages = desc.batch * ((desc.seqlen_k + options.page_size - 1) / options.page_size);
}

Load own_load(const std::string& dtype, const Shape& shape, const BenchOptions& options) {
    Load load{"shapes", text_of_shape(shape) + (options.backward ? " backward" : ""), dtype,
              describe(dtype, shape, options.keys ? options.keys : shape.n), options.cold};
    set_masks(load.desc, options.masks);
    if (options.softcap && *options.softcap <= 0) misuse("--softcap is ", *options.softcap, "; expected a number above 0");
    load.desc.softcap = options.softcap.value_or(0);
    set_cache(load.desc, options);
    load.desc.algorithm = value_of(kAlgorithms, options.algorithm);
    load.desc.precision = value_of(kPrecisions, options.precision);
    load.desc.num_splits = int32_t(options.num_splits);
    if (options.deterministic) load.desc.flags |= FA_DETERMINISTIC;
    return options.backward ? gradients(load) : load;
}

bool about_shapes(const BenchOptions& options) {
    return options.keys || options.heads_k || options.dim_v || options.v_in_k || options.page_size || options.num_splits ||
           options.backward || options.deterministic || options.cold || options.softcap || options.masks.any() ||
           !options.k_dtype.empty() || options.algorithm != "flash" || options.precision != "default";
}

void check(const BenchOptions& options) {
    if (!options.shapes.empty() && !options.suite.empty()) misuse("--shape and --suite are both given; expected one of them");
    if (options.shapes.empty() && about_shapes(options)) misuse("options of a shape are given without --shape; a suite has its own");
    for (const auto& [name, value] : {std::pair{"--keys", options.keys},
                                      {"--heads-kv", options.heads_k},
                                      {"--dim-v", options.dim_v},
                                      {"--page-size", options.page_size},
                                      {"--num-splits", options.num_splits}})
        if (value < 0 || value > INT32_MAX) misuse(name, " is ", value, "; expected 0 (the default) … ", INT32_MAX);
    if (options.backward && options.cold)
        misuse("--backward and --cold are both given; a backward has its k and v where the forward left them");
    if (options.list && !options.plot.empty()) misuse("--list and --plot are both given; nothing is timed, and there is nothing to draw");
    if (options.json && options.plot == kStandard) misuse("--json is given, and --plot is -; standard output holds one of them");
    if (options.rounds < 1) misuse("--rounds is ", options.rounds, "; expected at least 1");
    if (options.milliseconds.value_or(0) < 0) misuse("--milliseconds is ", *options.milliseconds, "; expected 0 or more");
}

std::vector<Group> wanted_groups(const BenchOptions& options, bool gpu) {
    const std::vector<std::string> dtypes =
        options.dtype.empty() ? std::vector<std::string>{"f32", "bf16"} : std::vector<std::string>{options.dtype};
    std::vector<Group> groups;
    for (const Shape& shape : options.shapes)
        for (const std::string& dtype : dtypes) groups.push_back({own_load(dtype, shape, options)});
    if (!groups.empty()) return groups;
    for (const std::string& suite : kSuites) {
        if (!options.suite.empty() && options.suite != suite && options.suite != "all") continue;
        for (Group& group : groups_of(suite, options.dtype, gpu)) groups.push_back(std::move(group));
    }
    return groups;
}

// ---- reports

std::string percent(double share) { return text_of(int64_t(100 * share + 0.5), " %"); }
double rounded(double ratio) { return std::round(ratio * 100) / 100; }

Json json_of(const Result& result) {
    const fa_attention_desc_t& d = result.load.desc;
    Json row = {{"suite", result.load.suite},
                {"name", result.load.shape},
                {"dtype", result.load.series},
                {"pass", result.load.backward ? "backward" : "forward"},
                {"cold", result.load.cold},
                {"shape", {d.batch, d.heads_q, d.seqlen_q, d.dim_qk}},
                {"keys", d.seqlen_k},
                {"flops", flops_of(result.load)},
                {"kv_bytes", cache_bytes_of(result.load)}};
    if (!result.skipped.empty()) return row["skipped"] = result.skipped, row;
    row["kernel"] = result.kernel;
    if (result.speed.calls == 0) return row;
    const Speed& s = result.speed;
    row.update({{"seconds", s.median},
                {"best", s.best},
                {"worst", s.worst},
                {"enqueue_seconds", s.enqueue},
                {"calls", s.calls},
                {"flops_per_second", flops_of(result.load) / s.median},
                {"kv_bytes_per_second", cache_bytes_of(result.load) / s.median}});
    if (s.cost) row["cost"] = *s.cost;
    for (const Ceiling& c : s.ceilings)
        row["ceilings"].push_back(
            {{"name", c.name}, {"unit", c.unit}, {"rate", c.rate}, {"share", c.share}, {"low", c.low}, {"high", c.high}});
    return row;
}

Table table_for(const std::vector<Result>& planned, bool gpu) {
    std::vector<std::string> titles = {"suite", "shape", "type", "median", "best", "spread", "speed", "k and v", "÷ first"};
    const std::string time = engineering(kWidest, "s");
    const std::string speed = engineering(kWidest, "FLOP/s"), bytes = engineering(kWidest, "B/s");
    if (gpu) titles.push_back("CPU time");
    else titles.insert(titles.end(), {"share", "of what the machine can do"});
    Table table(titles, 3);
    table.widen({"", "", "", time, time, percent(1), speed, bytes});
    for (const Result& r : planned) table.widen({r.load.suite, r.load.shape, r.load.series});
    return table;
}

std::vector<std::string> cells_of(const Result& result, bool gpu) {
    std::vector<std::string> row = {result.load.suite, result.load.shape, result.load.series};
    if (!result.skipped.empty()) return row;
    const Speed& s = result.speed;
    row.insert(row.end(), {engineering(s.median, "s"), engineering(s.best, "s"), percent((s.worst - s.best) / s.median),
                           engineering(flops_of(result.load) / s.median, "FLOP/s"),
                           engineering(cache_bytes_of(result.load) / s.median, "B/s"), s.cost ? text_of(rounded(*s.cost)) : ""});
    if (gpu) row.push_back(engineering(s.enqueue, "s"));
    else if (result.held()) {
        const Ceiling& c = s.ceilings[0];
        row.insert(row.end(), {percent(c.share), engineering(c.rate, c.unit) + " " + c.name});
    }
    return row;
}

void print_notes(const std::vector<Result>& results, bool gpu, const BenchOptions& options) {
    for (const Result& r : results)
        if (!r.skipped.empty()) std::cout << r.load.shape << " " << r.load.series << " skipped: " << r.skipped << "\n";
    std::cout << "\n[batch,heads,n,d], or batch, heads of q / of k and v, and keys. Median of " << options.rounds
              << " rounds of calls; spread: worst less best, of the median.\n÷ first: a variant's time, for equal work, of that of "
                 "the row "
                 "that its group begins with.\n"
              << (gpu ? "CPU time: until a call returns.\n"
                      : "Share: of the ceiling that the call is nearest to, measured by turns with it.\n");
}

std::string drawing_of(const std::vector<Result>& results, const std::string& device) {
    std::vector<std::string> suites;
    const auto note = [](std::vector<std::string>& list, const std::string& name) {
        if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
        return size_t(std::find(list.begin(), list.end(), name) - list.begin());
    };
    for (const Result& r : results) note(suites, r.load.suite);
    std::vector<Panel> panels;
    bool marks = false;
    for (const std::string& suite : suites) {
        const bool memory = suite == "decode";
        Panel panel{suite, memory ? "k and v read" : "speed", memory ? "B/s" : "FLOP/s", {}, {}};
        std::vector<std::string> series;
        for (const Result& r : results)
            if (r.load.suite == suite) note(panel.groups, r.load.shape), note(series, r.load.series);
        const std::vector<std::optional<double>> nothing(panel.groups.size());
        for (const std::string& name : series) panel.series.push_back({name, nothing, nothing});
        for (const Result& r : results) {
            if (r.load.suite != suite || !r.skipped.empty()) continue;
            const size_t group = note(panel.groups, r.load.shape);
            Series& bars = panel.series[note(series, r.load.series)];
            const double rate = (memory ? cache_bytes_of : flops_of)(r.load) / r.speed.median;
            bars.bars[group] = rate;
            if (r.held()) bars.marks[group] = rate / r.speed.ceilings[0].share, marks = true;
        }
        panels.push_back(panel);
    }
    return bar_charts("flashattn bench on " + device, panels, marks ? "the machine's ceiling" : "");
}

std::string device_of(const Handle& handle) { return devices_of({handle.backend()})[0]["name"]; }

void print_list(const std::vector<Result>& results) {
    Table table({"suite", "shape", "type", "flops", "k and v", "kernel"}, 3);
    for (const Result& r : results)
        table.add({r.load.suite, r.load.shape, r.load.series, engineering(flops_of(r.load), ""), engineering(cache_bytes_of(r.load), "B"),
                   r.skipped.empty() ? r.kernel["explanation"].get<std::string>() : "skipped: " + r.skipped});
    table.print(std::cout);
}

// ---- timing

using Results = std::vector<Result>;

// Which calls can be made, and how they are computed, settled before the first of them is timed.
Results plan(Handle& handle, const Group& group) {
    Results results;
    for (const Load& load : group) {
        results.push_back({load, obstacle(handle, load), nullptr, {}});
        if (results.back().skipped.empty()) results.back().kernel = kernel_of(handle, load.desc, load.op());
    }
    return results;
}

// False if interrupted() before it is done.
bool time_group(Handle& handle, Results& group, const Rounds& rounds) {
    Group fitting;
    for (const Result& r : group)
        if (r.skipped.empty()) fitting.push_back(r.load);
    if (fitting.empty()) return true;
    const std::vector<Speed> speeds = measure(handle, fitting, rounds);
    if (speeds.empty()) return false;
    size_t next = 0;
    for (Result& r : group)
        if (r.skipped.empty()) r.speed = speeds[next++];
    return true;
}

// Group by group, until a signal asks to stop; a table's rows are printed as they come.
Results time_all(Handle& handle, std::vector<Results> groups, size_t count, const Rounds& rounds, const Table* table, bool gpu) {
    const Patience patience;
    Progress progress(count);
    Results done;
    for (Results& group : groups) {
        progress.show(done.size() + 1, text_of(group[0].load.suite, " ", group[0].load.shape, " ", group[0].load.series));
        if (interrupted() || !time_group(handle, group, rounds)) break;
        done.insert(done.end(), group.begin(), group.end());
        if (!table) continue;
        progress.clear();
        for (const Result& r : group) table->print_row(std::cout, cells_of(r, gpu));
        std::cout.flush();
    }
    return done;
}

void print_report(const Results& results, const Handle& handle, const BenchOptions& options) {
    Json report = report_of("bench");
    report.update({{"device", devices_of({handle.backend()})[0]}, {"rounds", options.rounds}});
    if (handle.backend() == FA_BACKEND_CPU) report["threads"] = threads_of(options.threads);
    if (interrupted()) report["interrupted"] = true;
    report["rows"] = Json::array();
    for (const Result& r : results) report["rows"].push_back(json_of(r));
    print_json(report);
}

void print_heading(const Handle& handle, const BenchOptions& options) {
    const int threads = threads_of(options.threads);
    std::cout << name_of(kBackends, handle.backend()) << ": " << device_of(handle);
    if (handle.backend() == FA_BACKEND_CPU) std::cout << ", " << threads << (threads == 1 ? " thread" : " threads");
    std::cout << "\n";
}

void bench(const BenchOptions& options) {
    check(options);
    Handle handle(value_of(kBackends, options.backend), FA_MEMORY_DEVICE);
    if (options.threads) handle.set(FA_PARAM_THREADS, options.threads);
    const bool gpu = handle.backend() != FA_BACKEND_CPU, tabular = !options.json && options.plot != kStandard;
    std::optional<Picture> plot;
    if (!options.plot.empty()) plot.emplace(options.plot);
    std::vector<Results> groups;
    Results planned;
    for (const Group& group : wanted_groups(options, gpu)) {
        groups.push_back(plan(handle, group));
        planned.insert(planned.end(), groups.back().begin(), groups.back().end());
    }
    if (tabular) print_heading(handle, options);
    if (options.list) return options.json ? print_report(planned, handle, options) : print_list(planned);

    const Table table = table_for(planned, gpu);
    if (tabular) table.print(std::cout);
    const Rounds rounds = {options.rounds, options.milliseconds.value_or(100) / 1e3};
    const Results results = time_all(handle, std::move(groups), planned.size(), rounds, tabular ? &table : nullptr, gpu);
    if (options.json) print_report(results, handle, options);
    if (tabular) print_notes(results, gpu, options);
    std::cout.flush();
    if (interrupted()) throw Interrupted(text_of("interrupted: ", results.size(), " of ", planned.size(), " rows are done"));
    if (std::none_of(results.begin(), results.end(), [](const Result& result) { return result.skipped.empty(); }))
        fail("every row is skipped: nothing was timed");
    if (plot) plot->draw(drawing_of(results, device_of(handle)));
}

}  // namespace

void add_bench(CLI::App& app) {
    const auto o = std::make_shared<BenchOptions>();
    CLI::App& c = *app.add_subcommand("bench", "Time attention on this machine");
    const auto shapes = [o](const std::vector<std::string>& texts) {
        o->shapes.clear();
        for (const std::string& text : texts) o->shapes.push_back(parse_shape(text));
    };
    std::vector<std::string> suites = kSuites;
    suites.push_back("all");
    add_choice(c, "--suite", o->suite, suites, "Common shapes; default all");
    c.add_option_function<std::vector<std::string>>("--shape", shapes, "A shape; may be given more than once")
        ->type_name("BATCH,HEADS,N,D")
        ->expected(1)
        ->take_all();
    add_int(c, "--keys", o->keys, "Keys of a sequence; default N");
    add_int(c, "--heads-kv", o->heads_k, "Heads of k and v; default HEADS");
    add_int(c, "--dim-v", o->dim_v, "Elements of a head of v; default D");
    c.add_flag("--v-in-k", o->v_in_k, "v is the first elements of k, as latent attention has it");
    add_int(c, "--page-size", o->page_size, "Keep k and v in pages of this many keys, in a shuffled order");
    c.add_flag("--backward", o->backward, "Time the gradients of q, k and v instead of the forward");
    c.add_flag("--deterministic", o->deterministic, "Request the same bits every time, which gradients on a GPU do not have otherwise");
    c.add_flag("--cold", o->cold, "Alternate between sets of k and v, so that they are read from memory");
    add_choice(c, "--dtype", o->dtype, {"f32", "f16", "bf16", "e4m3", "e5m2"},
               "Type of q, k and v; default f32 and bf16, or the suite's own");
    add_choice(c, "--kv-dtype", o->k_dtype, names_of(cache_types()), "Type of k and v; default that of q");
    add_mask_options(c, o->masks);
    add_real(c, "--softcap", o->softcap, "Replace each score s by c tanh(s/c)");
    add_choice(c, "--backend", o->backend, names_of(kBackends), "Where to compute; default auto");
    add_choice(c, "--algorithm", o->algorithm, names_of(kAlgorithms), "Default flash; the others are baselines for study");
    add_choice(c, "--precision", o->precision, names_of(kPrecisions),
               "native: permits rounding q to the type of k, P to that of v, and both to bfloat16");
    add_int(c, "--threads", o->threads, "CPU threads; default all");
    add_int(c, "--num-splits", o->num_splits, "Parts into which the keys are cut; by default the library chooses");
    add_int(c, "--rounds", o->rounds, "Timed rounds; default 7");
    add_real(c, "--milliseconds", o->milliseconds, "Length of a round; default 100, and at least one call");
    c.add_flag("--list", o->list, "Print the calls and their kernels, without timing them");
    c.add_flag("--json", o->json, "Print JSON");
    add_text(c, "--plot", o->plot, "FILE", "Draw bar charts into an .svg, .png or .pdf file; -: print SVG instead of the table");
    c.callback([o] { bench(*o); });
}

}  // namespace tool
