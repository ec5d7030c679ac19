// flashattn study: what standard attention, FlashAttention-1 and FlashAttention-2 cost, by formula, by count and by the clock.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include "commands.h"
#include "experiment.h"
#include "json.h"
#include "library.h"
#include "options.h"
#include "picture.h"
#include "plot.h"
#include "progress.h"
#include "signals.h"
#include "study_ranks.h"
#include "table.h"

namespace tool {
namespace {

constexpr char kEvery[] = "all";

const std::vector<Shape> kShapes = {{16, 12, 64, 64}, {16, 12, 256, 64}, {16, 12, 2048, 64}, {8, 12, 64, 64}};
const std::vector<Shape> kLongShapes = {{1, 64, 8192, 128}, {1, 64, 131072, 128}, {1, 64, 1048576, 128}, {1, 64, 10485760, 128}};

struct StudyOptions {
    std::vector<Shape> shapes;  // empty: the above
    RanksOptions ranks;
    std::string backend = kEvery, plot;
    int64_t rounds = 5;
    std::optional<float> seconds;
    bool json = false;
};

Json json_of(const Cost& cost) {
    return {{"flops", cost.flops}, {"extra_bytes", cost.extra}, {"bytes_read", cost.read}, {"bytes_written", cost.written}};
}

Json json_of(const Finding& finding) {
    Json times = Json::array();
    for (const Timing& t : finding.timings) {
        Json time = {{"backend", name_of(kBackends, t.backend)}};
        if (t.seconds) time.update({{"seconds", *t.seconds}, {"rounds", t.rounds}});
        else time["skipped"] = t.why;
        times.push_back(time);
    }
    Json row = {{"shape", {finding.shape.batch, finding.shape.heads, finding.shape.n, finding.shape.dim}},
                {"algorithm", name_of(kAlgorithms, finding.algorithm)},
                {"tile_rows", finding.tile_rows},
                {"tile_keys", finding.tile_keys},
                {"formula", json_of(finding.formula)}};
    if (finding.counted) row["counted"] = json_of(*finding.counted);
    else row["skipped"] = finding.why;
    row["times"] = times;
    return row;
}

std::vector<std::string> cells_of(const Finding& finding) {
    const auto counted = [&](double Cost::* part, const char* unit) {
        return finding.counted ? engineering((*finding.counted).*part, unit) : "–";
    };
    std::vector<std::string> row = {text_of_shape(finding.shape),
                                    name_of(kAlgorithms, finding.algorithm),
                                    engineering(finding.formula.flops, "FLOP"),
                                    counted(&Cost::flops, "FLOP"),
                                    engineering(finding.formula.extra, "B"),
                                    counted(&Cost::extra, "B"),
                                    engineering(finding.formula.traffic(), "B"),
                                    finding.counted ? engineering(finding.counted->traffic(), "B") : "–"};
    for (const Timing& t : finding.timings) {
        row.push_back(t.seconds ? engineering(*t.seconds, "s") : "–");
        row.push_back(t.seconds ? engineering(finding.formula.flops / *t.seconds, "FLOP/s") : "–");
    }
    return row;
}

// How far the counts are from the formulas, as a share of these.
double deviation(const std::vector<Finding>& findings) {
    double worst = 0;
    for (const Finding& f : findings)
        for (double Cost::* part : {&Cost::flops, &Cost::extra, &Cost::read, &Cost::written})
            if (f.counted && f.formula.*part > 0) worst = std::max(worst, std::fabs((*f.counted).*part / f.formula.*part - 1));
    return worst;
}

Table table_for(const std::vector<Shape>& shapes, const std::vector<int32_t>& backends) {
    std::vector<std::string> titles = {"shape", "algorithm", "work", "counted", "extra space", "counted", "traffic", "counted"};
    const std::string work = engineering(kWidest, "FLOP"), bytes = engineering(kWidest, "B");
    std::vector<std::string> widest = {"", "", work, work, bytes, bytes, bytes, bytes};
    for (int32_t backend : backends) {
        titles.insert(titles.end(), {"time, " + name_of(kBackends, backend), "speed"});
        widest.insert(widest.end(), {engineering(kWidest, "s"), engineering(kWidest, "FLOP/s")});
    }
    Table table(titles, 2);
    table.widen(widest);
    for (const Shape& shape : shapes) table.widen({text_of_shape(shape)});
    for (const Named& algorithm : kAlgorithms) table.widen({"", algorithm.name});
    return table;
}

void print_notes(const std::vector<Finding>& findings) {
    for (const Finding& f : findings)
        for (const Timing& t : f.timings)
            if (!t.seconds)
                std::cout << text_of_shape(f.shape) << " " << name_of(kAlgorithms, f.algorithm) << " skipped on "
                          << name_of(kBackends, t.backend) << ": " << t.why << "\n";
    std::cout << "\n[batch,heads,n,d], float32, no mask. Traffic and space: between memory and tiles of " << findings[0].tile_rows
              << " rows and " << findings[0].tile_keys << " keys; space for one head at a time.\nCounts differ from formulas by at most "
              << 100 * deviation(findings) << " %. Times: median of up to " << findings[0].timings[0].rounds
              << " rounds in which the algorithms take turns.\n";
}

// One panel: a value of each finding, grouped by shape, coloured by algorithm. Findings come shape by shape, algorithms in order.
template <class Value, class Mark>
Panel panel_of(const std::string& title, const char* axis, const char* unit, const std::vector<Finding>& findings, Value value, Mark mark) {
    Panel panel{title, axis, unit, {}, {}};
    for (const Named& algorithm : kAlgorithms) panel.series.push_back({algorithm.name, {}, {}});
    for (size_t i = 0; i < findings.size(); ++i) {
        if (i % kAlgorithms.size() == 0) panel.groups.push_back(text_of_shape(findings[i].shape));
        Series& series = panel.series[i % kAlgorithms.size()];
        series.bars.push_back(value(findings[i]));
        series.marks.push_back(mark(findings[i]));
    }
    return panel;
}

std::string drawing_of(const std::vector<Finding>& findings) {
    using Number = std::optional<double>;
    const auto none = [](const Finding&) { return Number(); };
    const auto cost_panel = [&](const std::string& title, auto part) {
        return panel_of(
            title, "bytes", "B", findings, [=](const Finding& finding) { return Number(part(finding.formula)); },
            [=](const Finding& finding) { return finding.counted ? Number(part(*finding.counted)) : Number(); });
    };
    std::vector<Panel> panels = {cost_panel("Memory traffic", [](const Cost& cost) { return cost.traffic(); }),
                                 cost_panel("Extra space", [](const Cost& cost) { return cost.extra; })};
    for (size_t b = 0; b < findings[0].timings.size(); ++b)
        panels.push_back(panel_of(
            "Time on " + name_of(kBackends, findings[0].timings[b].backend), "time of a call", "s", findings,
            [=](const Finding& finding) { return finding.timings[b].seconds; }, none));
    return bar_charts("Attention of [batch, heads, n, d] in float32", panels, "counted in a run; bars are formulas");
}

// Shape by shape, until a signal asks to stop; a table is printed as far as it goes.
std::vector<Finding> find_all(const StudyOptions& options, const std::vector<int32_t>& backends, const Effort& effort, bool print) {
    const Patience patience;
    const Table table = table_for(options.shapes, backends);
    Progress progress(options.shapes.size());
    std::vector<Finding> findings;
    for (size_t i = 0; i < options.shapes.size() && !interrupted(); ++i) {
        progress.show(i + 1, text_of_shape(options.shapes[i]));
        const std::vector<Finding> found = study_shape(options.shapes[i], backends, effort);
        if (print) {
            progress.clear();
            if (findings.empty() && !found.empty()) table.print(std::cout);
            for (const Finding& f : found) table.print_row(std::cout, cells_of(f));
            std::cout.flush();
        }
        findings.insert(findings.end(), found.begin(), found.end());
    }
    return findings;
}

void study(StudyOptions options) {
    if (options.ranks.any()) {
        if (options.json) misuse("--json is given, and --ranks; expected one of them");
        options.ranks.shapes = options.shapes.empty() ? kLongShapes : options.shapes;
        options.ranks.plot = options.plot;
        return study_ranks(options.ranks);
    }
    if (options.shapes.empty()) options.shapes = kShapes;
    if (options.rounds < 1) misuse("--rounds is ", options.rounds, "; expected at least 1");
    const float seconds = options.seconds.value_or(10);
    if (seconds < 0) misuse("--seconds is ", seconds, "; expected 0 or more");
    if (options.json && options.plot == kStandard) misuse("--json is given, and --plot is -; standard output holds one of them");
    check_shapes(options.shapes);
    std::optional<Picture> plot;
    if (!options.plot.empty()) plot.emplace(options.plot);
    const bool tabular = !options.json && options.plot != kStandard;
    const std::vector<int32_t> backends =
        options.backend == kEvery ? usable_backends() : std::vector<int32_t>{Handle(value_of(kBackends, options.backend)).backend()};
    const std::vector<Finding> findings = find_all(options, backends, {options.rounds, seconds}, tabular);
    if (options.json) {
        Json report = report_of("study");
        report["devices"] = devices_of(backends);
        report["dtype"] = "f32";
        if (interrupted()) report["interrupted"] = true;
        report["rows"] = Json::array();
        for (const Finding& f : findings) report["rows"].push_back(json_of(f));
        print_json(report);
    } else if (tabular && !findings.empty()) {
        print_notes(findings);
    }
    std::cout.flush();
    if (interrupted())
        throw Interrupted(
            text_of("interrupted: ", findings.size() / kAlgorithms.size(), " of ", options.shapes.size(), " shapes are done"));
    if (plot) plot->draw(drawing_of(findings));
}

}  // namespace

void add_study(CLI::App& app) {
    const auto o = std::make_shared<StudyOptions>();
    CLI::App& c =
        *app.add_subcommand("study", "Compare operations, space, memory traffic and time of standard attention, FlashAttention-1 and -2");
    const auto shapes = [o](const std::vector<std::string>& texts) {
        o->shapes.clear();
        for (const std::string& text : texts) o->shapes.push_back(parse_shape(text));
    };
    c.add_option_function<std::vector<std::string>>("--shape", shapes, "A shape; may be given more than once")
        ->type_name("BATCH,HEADS,N,D")
        ->expected(1)
        ->take_all();
    std::vector<std::string> names = names_of(kBackends);
    names.emplace_back(kEvery);
    add_choice(c, "--backend", o->backend, names, "Where to compute; default all usable backends");
    add_int(c, "--rounds", o->rounds, "Timed runs of each algorithm; default 5");
    add_real(c, "--seconds", o->seconds, "Begin no round of a shape after this many seconds; default 10");
    c.add_flag("--json", o->json, "Print JSON");
    add_ints(c, "--ranks", o->ranks.ranks, "R,...", "Print instead the cost of one causal attention over this many ranks, by formula");
    add_int(c, "--kv-heads", o->ranks.heads_kv, "With --ranks: heads of k and v; default as many as HEADS");
    add_real(c, "--speed", o->ranks.speed, "With --ranks: TFLOP/s of a rank; default 600");
    add_real(c, "--memory", o->ranks.memory, "With --ranks: GB/s at which a rank packs and adds; by default, these take no time");
    add_real(c, "--link-rate", o->ranks.link_rate, "With --ranks: GB/s of a link, instead of NVLink, InfiniBand and Ethernet");
    add_real(c, "--latency", o->ranks.latency, "With --link-rate: microseconds of a message; default 0");
    add_text(c, "--plot", o->plot, "FILE", "Draw bar charts into an .svg, .png or .pdf file; -: print SVG instead of the table");
    c.callback([o] { study(*o); });
}

}  // namespace tool
