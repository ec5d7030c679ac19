// flashattn bench: how fast this library is here, by shape or by suite.
#include <algorithm>
#include <iostream>
#include <memory>
#include "commands.h"
#include "experiment.h"
#include "files.h"
#include "json.h"
#include "library.h"
#include "masks.h"
#include "options.h"
#include "plot.h"
#include "table.h"
#include "timing.h"

namespace tool {
namespace {

struct BenchOptions {
    std::vector<Shape> shapes;
    std::string suite, dtype, kv_dtype, backend = "auto", algorithm = "flash", plot;
    MaskOptions masks;
    std::optional<float> softcap, milliseconds;
    int64_t keys = 0, heads_kv = 0, dim_v = 0, page_size = 0, threads = 0, num_splits = 0, rounds = 7;
    bool cold = false, json = false;
};

struct Result {
    Load load;
    std::string kernel, skipped;
    Speed speed;
};

fa_attention_desc_t describe(const std::string& dtype, const Shape& shape, int64_t keys) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = value_of(kDtypes, dtype);
    d.batch = shape.batch;
    d.heads_q = shape.heads;
    d.seqlen_q = shape.n;
    d.seqlen_k = keys;
    d.dim_qk = shape.dim;
    return d;
}

// ---- suites

Load forward_load(const std::string& dtype, const Shape& shape, bool causal) {
    Load load{"forward", text_of_shape(shape) + (causal ? " causal" : ""), dtype, describe(dtype, shape, shape.n), false};
    load.desc.flags = causal ? FA_CAUSAL : 0;
    load.desc.alignment = causal ? FA_ALIGN_BOTTOM_RIGHT : FA_ALIGN_UNSET;
    return load;
}

Load decode_load(const std::string& dtype, int64_t batch, int64_t heads, int64_t heads_kv, int64_t keys) {
    Load load{"decode", text_of("B", batch, " ", heads, "/", heads_kv, " ", keys, " keys"), dtype,
              describe(dtype, {batch, heads, 1, 128}, keys), true};
    load.desc.heads_kv = heads_kv;
    return load;
}

const std::vector<std::string> kSuites = {"forward", "decode", "small"};

void add_suite(std::vector<Load>& loads, const std::string& suite, const std::string& dtype) {
    if (suite == "forward") {
        for (int64_t dim : {64, 128})
            for (bool causal : {false, true}) loads.push_back(forward_load(dtype, {2, 16, 2048, dim}, causal));
    } else if (suite == "decode") {
        loads.push_back(decode_load(dtype, 1, 32, 8, 16384));
        loads.push_back(decode_load(dtype, 16, 32, 8, 4096));
        loads.push_back(decode_load(dtype, 1, 8, 1, 65536));
    } else {
        for (const Shape& shape : {Shape{16, 12, 64, 64}, Shape{8, 12, 64, 64}, Shape{16, 12, 256, 64}}) {
            loads.push_back(forward_load(dtype, shape, false));
            loads.back().suite = "small";
        }
    }
}

// ---- shapes of one's own

void set_cache(fa_attention_desc_t& d, const BenchOptions& o) {
    d.heads_kv = o.heads_kv;
    d.dim_v = o.dim_v;
    if (!o.kv_dtype.empty()) d.kv_dtype = value_of(kDtypes, o.kv_dtype);
    if (d.kv_dtype == FA_I8) d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;  // one factor for all: strides of 0
    if (o.page_size == 0) return;
    d.operands |= FA_OPERAND_PAGE_TABLE;
    d.page_size = o.page_size;
    d.num_pages = d.batch * ((d.seqlen_k + o.page_size - 1) / o.page_size);
}

Load own_load(const std::string& dtype, const Shape& shape, const BenchOptions& o) {
    Load load{"shapes", text_of_shape(shape), dtype, describe(dtype, shape, o.keys ? o.keys : shape.n), o.cold};
    set_masks(load.desc, o.masks);
    if (o.softcap && *o.softcap <= 0) fail("--softcap is ", *o.softcap, "; expected a number above 0");
    load.desc.softcap = o.softcap.value_or(0);
    set_cache(load.desc, o);
    load.desc.algorithm = value_of(kAlgorithms, o.algorithm);
    load.desc.num_splits = int32_t(o.num_splits);
    return load;
}

bool about_shapes(const BenchOptions& o) {
    return o.keys || o.heads_kv || o.dim_v || o.page_size || o.num_splits || o.cold || o.softcap || o.masks.any() ||
           !o.kv_dtype.empty() || o.algorithm != "flash";
}

std::vector<Load> loads_of(const BenchOptions& o) {
    if (!o.shapes.empty() && !o.suite.empty()) fail("--shape and --suite are both given; expected one of them");
    if (o.shapes.empty() && about_shapes(o)) fail("options of a shape are given without --shape; a suite has its own");
    for (const auto& [name, value] : {std::pair{"--keys", o.keys},
                                      {"--heads-kv", o.heads_kv},
                                      {"--dim-v", o.dim_v},
                                      {"--page-size", o.page_size},
                                      {"--num-splits", o.num_splits}})
        if (value < 0 || value > INT32_MAX) fail(name, " is ", value, "; expected 0 (the default) … ", INT32_MAX);
    const std::vector<std::string> dtypes =
        o.dtype.empty() ? std::vector<std::string>{"f32", "bf16"} : std::vector<std::string>{o.dtype};
    std::vector<Load> loads;
    for (const Shape& shape : o.shapes)
        for (const std::string& dtype : dtypes) loads.push_back(own_load(dtype, shape, o));
    if (!loads.empty()) return loads;
    for (const std::string& suite : kSuites)
        if (o.suite.empty() || o.suite == suite || o.suite == "all")
            for (const std::string& dtype : dtypes) add_suite(loads, suite, dtype);
    return loads;
}

// ---- reports

Json json_of(const Result& r) {
    const fa_attention_desc_t& d = r.load.desc;
    Json row = {{"suite", r.load.suite},
                {"name", r.load.shape},
                {"dtype", r.load.series},
                {"cold", r.load.cold},
                {"shape", {d.batch, d.heads_q, d.seqlen_q, d.dim_qk}},
                {"keys", d.seqlen_k}};
    if (!r.skipped.empty()) return row["skipped"] = r.skipped, row;
    const Speed& s = r.speed;
    row.update({{"seconds", s.median},
                {"best", s.best},
                {"worst", s.worst},
                {"enqueue_seconds", s.enqueue},
                {"calls", s.calls},
                {"flops_per_second", flops_of(d) / s.median},
                {"kv_bytes_per_second", cache_bytes_of(d) / s.median},
                {"kernel", r.kernel}});
    return row;
}

void print(const std::vector<Result>& results, bool gpu, const BenchOptions& o) {
    std::vector<std::string> titles = {"suite", "shape", "type", "median", "best", "spread", "speed", "k and v"};
    if (gpu) titles.push_back("CPU time");
    Table table(titles, 3);
    for (const Result& r : results) {
        std::vector<std::string> row = {r.load.suite, r.load.shape, r.load.series};
        if (r.skipped.empty()) {
            const Speed& s = r.speed;
            row.insert(row.end(), {engineering(s.median, "s"), engineering(s.best, "s"),
                                   text_of(int64_t(100 * (s.worst - s.best) / s.median + 0.5), " %"),
                                   engineering(flops_of(r.load.desc) / s.median, "FLOP/s"),
                                   engineering(cache_bytes_of(r.load.desc) / s.median, "B/s")});
            if (gpu) row.push_back(engineering(s.enqueue, "s"));
        }
        table.add(row);
    }
    table.print(std::cout);
    for (const Result& r : results)
        if (!r.skipped.empty()) std::cout << r.load.shape << " " << r.load.series << " skipped: " << r.skipped << "\n";
    std::cout << "\n[batch,heads,n,d]. Median of " << o.rounds << " rounds of calls; spread: worst less best, of the median."
              << (gpu ? " CPU time: until a call returns.\n" : "\n");
}

std::string drawing_of(const std::vector<Result>& results, const std::string& device) {
    std::vector<std::string> suites, series;
    const auto note = [](std::vector<std::string>& list, const std::string& name) {
        if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
    };
    for (const Result& r : results) note(suites, r.load.suite), note(series, r.load.series);
    std::vector<Panel> panels;
    for (const std::string& suite : suites) {
        const bool memory = suite == "decode";
        Panel panel{suite, memory ? "k and v read" : "speed", memory ? "B/s" : "FLOP/s", {}, {}};
        for (const Result& r : results)
            if (r.load.suite == suite) note(panel.groups, r.load.shape);
        for (const std::string& name : series)
            panel.series.push_back({name, std::vector<std::optional<double>>(panel.groups.size()), {}});
        for (const Result& r : results) {
            if (r.load.suite != suite || !r.skipped.empty()) continue;
            const auto group = std::find(panel.groups.begin(), panel.groups.end(), r.load.shape) - panel.groups.begin();
            const auto which = std::find(series.begin(), series.end(), r.load.series) - series.begin();
            panel.series[size_t(which)].bars[size_t(group)] = (memory ? cache_bytes_of : flops_of)(r.load.desc) / r.speed.median;
        }
        panels.push_back(panel);
    }
    return bar_charts("flashattn bench on " + device, panels, "");
}

std::string device_of(const Handle& handle) {
    fa_device_info_t info{};
    info.struct_size = sizeof info;
    if (fa_device_info(handle.backend(), 0, &info) != FA_OK) fail(fa_last_error(nullptr));
    return info.name;
}

void bench(const BenchOptions& o) {
    if (o.rounds < 1) fail("--rounds is ", o.rounds, "; expected at least 1");
    const float milliseconds = o.milliseconds.value_or(100);
    if (milliseconds < 0) fail("--milliseconds is ", milliseconds, "; expected 0 or more");
    const std::vector<Load> loads = loads_of(o);
    std::optional<OutputFile> plot;
    if (!o.plot.empty()) plot.emplace(o.plot);
    Handle handle(value_of(kBackends, o.backend), FA_MEMORY_DEVICE);
    if (o.threads) handle.set(FA_PARAM_THREADS, o.threads);
    const std::string device = device_of(handle);
    std::vector<Result> results;
    for (const Load& load : loads) {
        results.push_back({load, "", obstacle(handle, load), {}});
        if (!results.back().skipped.empty()) continue;
        results.back().kernel = handle.explain(&load.desc);
        results.back().speed = measure(handle, load, {o.rounds, milliseconds / 1e3});
    }
    if (o.json) {
        Json rows = Json::array();
        for (const Result& r : results) rows.push_back(json_of(r));
        print_json({{"backend", name_of(kBackends, handle.backend())}, {"device", device}, {"rounds", o.rounds}, {"rows", rows}});
    } else {
        std::cout << name_of(kBackends, handle.backend()) << ": " << device << "\n";
        print(results, handle.backend() != FA_BACKEND_CPU, o);
    }
    if (!plot) return;
    plot->write(drawing_of(results, device));
    plot->commit();
}

}  // namespace

void add_bench(CLI::App& app) {
    const auto o = std::make_shared<BenchOptions>();
    CLI::App& c = *app.add_subcommand("bench", "How fast attention is on this machine");
    const auto shapes = [o](const std::vector<std::string>& texts) {
        o->shapes.clear();
        for (const std::string& text : texts) o->shapes.push_back(parse_shape(text));
    };
    std::vector<std::string> suites = kSuites;
    suites.push_back("all");
    add_choice(c, "--suite", o->suite, suites, "Shapes that are often asked for; default all");
    c.add_option_function<std::vector<std::string>>("--shape", shapes, "A shape of yours; may be given again for more")
        ->type_name("BATCH,HEADS,N,D")
        ->expected(1)
        ->take_all();
    add_int(c, "--keys", o->keys, "Keys of a sequence; default N");
    add_int(c, "--heads-kv", o->heads_kv, "Heads of k and v; default HEADS");
    add_int(c, "--dim-v", o->dim_v, "Elements of a head of v; default D");
    add_int(c, "--page-size", o->page_size, "Keep k and v in shuffled pages of so many keys");
    c.add_flag("--cold", o->cold, "Sets of k and v take turns, so that they come from memory");
    add_choice(c, "--dtype", o->dtype, {"f32", "f16", "bf16", "e4m3", "e5m2"}, "Type of q, k and v; default f32 and bf16");
    add_choice(c, "--kv-dtype", o->kv_dtype, names_of(kDtypes), "Type of k and v; default that of q");
    add_mask_options(c, o->masks);
    add_real(c, "--softcap", o->softcap, "Cap scores softly to ± this");
    add_choice(c, "--backend", o->backend, names_of(kBackends), "Where to compute; default auto");
    add_choice(c, "--algorithm", o->algorithm, names_of(kAlgorithms), "Default flash; the others are baselines for study");
    add_int(c, "--threads", o->threads, "CPU threads; default all");
    add_int(c, "--num-splits", o->num_splits, "Parts that the keys are cut into; default chosen");
    add_int(c, "--rounds", o->rounds, "Timed rounds; default 7");
    add_real(c, "--milliseconds", o->milliseconds, "Length of a round; default 100, and at least one call");
    c.add_flag("--json", o->json, "Print JSON");
    add_text(c, "--plot", o->plot, "FILE", "Draw bar charts into an SVG file");
    c.callback([o] { bench(*o); });
}

}  // namespace tool
