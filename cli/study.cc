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
#include "table.h"

namespace tool {
namespace {

constexpr char kEvery[] = "all";

struct StudyOptions {
    std::vector<Shape> shapes = {{16, 12, 64, 64}, {16, 12, 256, 64}, {16, 12, 2048, 64}, {8, 12, 64, 64}};
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
    const auto counted = [&](double Cost::*part, const char* unit) {
        return f.counted ? engineering((*f.counted).*part, unit) : "–";
    };
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
        for (double Cost::*part : {&Cost::flops, &Cost::extra, &Cost::read, &Cost::written})
            if (f.counted && f.formula.*part > 0) worst = std::max(worst, std::fabs((*f.counted).*part / f.formula.*part - 1));
    return worst;
}

void print(const std::vector<Finding>& findings) {
    std::vector<std::string> titles = {"shape", "algorithm", "work", "counted", "extra space", "counted", "traffic", "counted"};
    for (const Timing& t : findings[0].timings) {
        titles.push_back("time, " + name_of(kBackends, t.backend));
        titles.push_back("speed");
    }
    Table table(titles, 2);
    for (const Finding& f : findings) table.add(cells_of(f));
    table.print(std::cout);
    for (const Finding& f : findings)
        for (const Timing& t : f.timings)
            if (!t.seconds)
                std::cout << text_of_shape(f.shape) << " " << name_of(kAlgorithms, f.algorithm) << " skipped on "
                          << name_of(kBackends, t.backend) << ": " << t.why << "\n";
    std::cout << "\n[batch,heads,n,d], float32, no mask. Traffic and space: between memory and tiles of " << findings[0].tile_rows
              << " rows and " << findings[0].tile_keys
              << " keys; space for one head at a time.\nCounts differ from formulas by at most " << 100 * deviation(findings)
              << " %. Times: median of up to " << findings[0].timings[0].rounds << " rounds in which the algorithms take turns.\n";
}

// One panel: a value of each finding, grouped by shape, coloured by algorithm. Findings come shape by shape, algorithms in order.
template <class Value, class Mark>
Panel panel_of(const std::string& title, const char* axis, const char* unit, const std::vector<Finding>& findings, Value value,
               Mark mark) {
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

void study(const StudyOptions& o) {
    if (o.rounds < 1) misuse("--rounds is ", o.rounds, "; expected at least 1");
    const float seconds = o.seconds.value_or(10);
    if (seconds < 0) misuse("--seconds is ", seconds, "; expected 0 or more");
    std::optional<Picture> plot;
    if (!o.plot.empty()) plot.emplace(o.plot);
    const std::vector<int32_t> backends =
        o.backend == kEvery ? usable_backends() : std::vector<int32_t>{Handle(value_of(kBackends, o.backend)).backend()};
    std::vector<Finding> findings;
    for (const Shape& shape : o.shapes)
        for (Finding& f : study_shape(shape, backends, {o.rounds, seconds})) findings.push_back(std::move(f));
    if (o.json) {
        Json rows = Json::array();
        for (const Finding& f : findings) rows.push_back(json_of(f));
        print_json({{"dtype", "f32"}, {"rows", rows}});
    } else {
        print(findings);
    }
    if (plot) plot->draw(drawing_of(findings));
}

}  // namespace

void add_study(CLI::App& app) {
    const auto o = std::make_shared<StudyOptions>();
    CLI::App& c =
        *app.add_subcommand("study", "Work, space, memory traffic and time of standard attention, FlashAttention-1 and -2");
    const auto shapes = [o](const std::vector<std::string>& texts) {
        o->shapes.clear();
        for (const std::string& text : texts) o->shapes.push_back(parse_shape(text));
    };
    c.add_option_function<std::vector<std::string>>("--shape", shapes, "A shape of yours; may be given again for more")
        ->type_name("BATCH,HEADS,N,D")
        ->expected(1)
        ->take_all();
    std::vector<std::string> names = names_of(kBackends);
    names.emplace_back(kEvery);
    add_choice(c, "--backend", o->backend, names, "Where to take times; default all that are usable");
    add_int(c, "--rounds", o->rounds, "Timed runs of each algorithm; default 5");
    add_real(c, "--seconds", o->seconds, "Begin no further round of a shape after so long; default 10");
    c.add_flag("--json", o->json, "Print JSON");
    add_text(c, "--plot", o->plot, "FILE", "Draw bar charts into an SVG or PNG file");
    c.callback([o] { study(*o); });
}

}  // namespace tool
