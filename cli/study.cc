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

Json json_of(const Finding& f) {
    Json times = Json::array();
    for (const Timing& t : f.timings) {
        Json time = {{"backend", name_of(kBackends, t.backend)}};
        if (t.seconds) time.update({{"seconds", *t.seconds}, {"rounds", t.rounds}});
        else time["skipped"] = t.why;
        times.push_back(time);
    }
    Json row = {{"shape", {f.shape.batch, f.shape.heads, f.shape.n, f.shape.dim}},
                {"algorithm", name_of(kAlgorithms, f.algorithm)},
                {"tile_rows", f.tile_rows},
                {"tile_keys", f.tile_keys},
                {"formula", json_of(f.formula)}};
    if (f.counted) row["counted"] = json_of(*f.counted);
    else row["skipped"] = f.why;
    row["times"] = times;
    return row;
}

std::vector<std::string> cells_of(const Finding& f) {
    const auto counted = [&](double Cost::* part, const char* unit) { return f.counted ? engineering((*f.counted).*part, unit) : "–"; };
    std::vector<std::string> row = {text_of_shape(f.shape),
                                    name_of(kAlgorithms, f.algorithm),
                                    engineering(f.formula.flops, "FLOP"),
                                    counted(&Cost::flops, "FLOP"),
                                    engineering(f.formula.extra, "B"),
                                    counted(&Cost::extra, "B"),
                                    engineering(f.formula.traffic(), "B"),
                                    f.counted ? engineering(f.counted->traffic(), "B") : "–"};
    for (const Timing& t : f.timings) {
        row.push_back(t.seconds ? engineering(*t.seconds, "s") : "–");
        row.push_back(t.seconds ? engineering(f.formula.flops / *t.seconds, "FLOP/s") : "–");
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
            title, "bytes", "B", findings, [=](const Finding& f) { return Number(part(f.formula)); },
            [=](const Finding& f) { return f.counted ? Number(part(*f.counted)) : Number(); });
    };
    std::vector<Panel> panels = {cost_panel("Memory traffic", [](const Cost& c) { return c.traffic(); }),
                                 cost_panel("Extra space", [](const Cost& c) { return c.extra; })};
    for (size_t b = 0; b < findings[0].timings.size(); ++b)
        panels.push_back(panel_of(
            "Time on " + name_of(kBackends, findings[0].timings[b].backend), "time of a call", "s", findings,
            [=](const Finding& f) { return f.timings[b].seconds; }, none));
    return bar_charts("Attention of [batch, heads, n, d] in float32", panels, "counted in a run; bars are formulas");
}

// Shape by shape, until a signal asks to stop; a table is printed as far as it goes.
std::vector<Finding> find_all(const StudyOptions& o, const std::vector<int32_t>& backends, const Effort& effort, bool print) {
    const Patience patience;
    const Table table = table_for(o.shapes, backends);
    Progress progress(o.shapes.size());
    std::vector<Finding> findings;
    for (size_t i = 0; i < o.shapes.size() && !interrupted(); ++i) {
        progress.show(i + 1, text_of_shape(o.shapes[i]));
        const std::vector<Finding> found = study_shape(o.shapes[i], backends, effort);
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

void study(StudyOptions o) {
    if (o.ranks.any()) {
        if (o.json) misuse("--json is given, and --ranks; expected one of them");
        o.ranks.shapes = o.shapes.empty() ? kLongShapes : o.shapes;
        o.ranks.plot = o.plot;
        return study_ranks(o.ranks);
    }
    if (o.shapes.empty()) o.shapes = kShapes;
    if (o.rounds < 1) misuse("--rounds is ", o.rounds, "; expected at least 1");
    const float seconds = o.seconds.value_or(10);
    if (seconds < 0) misuse("--seconds is ", seconds, "; expected 0 or more");
    if (o.json && o.plot == kStandard) misuse("--json is given, and --plot is -; standard output holds one of them");
    check_shapes(o.shapes);
    std::optional<Picture> plot;
    if (!o.plot.empty()) plot.emplace(o.plot);
    const bool tabular = !o.json && o.plot != kStandard;
    const std::vector<int32_t> backends =
        o.backend == kEvery ? usable_backends() : std::vector<int32_t>{Handle(value_of(kBackends, o.backend)).backend()};
    const std::vector<Finding> findings = find_all(o, backends, {o.rounds, seconds}, tabular);
    if (o.json) {
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
        throw Interrupted(text_of("interrupted: ", findings.size() / kAlgorithms.size(), " of ", o.shapes.size(), " shapes are done"));
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
