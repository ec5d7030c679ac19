// flashattn study --ranks: what attention over several ranks costs by each method, on links of several speeds.
#include "study_ranks.h"
#include <cmath>
#include <iostream>
#include <optional>
#include "cp/cost.h"
#include "files.h"
#include "library.h"
#include "picture.h"
#include "plot.h"
#include "table.h"

namespace tool {
namespace {

using fa::cp::cost_of;
using fa::cp::kWays;
using fa::cp::Seconds;
using fa::cp::seconds_of;
using fa::cp::Sharded;
using fa::cp::Sharing;
using fa::cp::Way;

struct Link {
    std::string name;
    double rate, latency;
};
// NVLink: what NCCL 2.28 reaches in an all-to-all of four H100, and for a group without bytes (bench/results). Of the others the bandwidth
// that vendors state for one direction of one port, and the latency that message-passing libraries reach.
const std::vector<Link> kLinks = {{"nvlink", 160e9, 170e-6}, {"infiniband", 50e9, 5e-6}, {"ethernet", 12.5e9, 30e-6}};

const char* name_of(Way way) { return way == Way::ulysses ? "ulysses" : way == Way::all_gather ? "all-gather" : "ring"; }

// A rank's operations, and bytes that it packs and adds, a second.
struct Rates {
    double speed, memory;
};

double seconds_of_both(Way way, const Sharing& sharing, const Link& link, const Rates& rank) {
    const Seconds t = seconds_of(way, sharing, {rank.speed, link.rate, link.latency, rank.memory});
    return t.forward + t.backward;
}

constexpr int64_t kLongest = 100'000'000, kMostRanks = 1'000'000;
constexpr float kSpeed = 600;  // an H100's in bf16

std::vector<Sharing> problems_of(const RanksOptions& options) {
    std::vector<Sharing> found;
    if (options.ranks.empty()) misuse("--kv-heads, --speed, --memory, --link-rate and --latency are of --ranks; expected --ranks, too");
    for (const Shape& shape : options.shapes) {
        const int64_t heads_kv = options.heads_kv == 0 ? shape.heads : options.heads_kv;
        if (heads_kv < 1 || shape.heads % heads_kv != 0)
            misuse("--kv-heads is ", heads_kv, "; expected a divisor of the ", shape.heads, " heads of ", text_of_shape(shape));
        if (shape.n > kLongest) misuse("--shape has ", shape.n, " rows; expected at most ", kLongest);
        for (int64_t ranks : options.ranks) {
            if (ranks < 1 || ranks > kMostRanks) misuse("--ranks has ", ranks, "; expected 1 to ", kMostRanks);
            found.push_back({double(shape.batch), shape.heads, heads_kv, double(shape.n), double(shape.dim), ranks});
        }
    }
    return found;
}

std::vector<Link> links_of(const RanksOptions& options) {
    if (options.latency && !options.link_rate) misuse("--latency is given without --link-rate; expected both, or neither");
    if (options.latency && *options.latency < 0) misuse("--latency is ", *options.latency, "; expected 0 microseconds or more");
    if (!options.link_rate) return kLinks;
    if (!(*options.link_rate > 0)) misuse("--link-rate is ", *options.link_rate, "; expected more than 0 GB/s");
    return {{"link", 1e9 * double(*options.link_rate), 1e-6 * double(options.latency.value_or(0))}};
}

std::string percent(double share) { return text_of(std::llround(100 * share), " %"); }

// One panel for each link and length: how well ranks are used.
std::string drawing_of(const std::vector<Sharing>& problems, const std::vector<Link>& links, const Rates& rank) {
    std::vector<Panel> panels;
    for (const Link& link : links)
        for (size_t i = 0; i < problems.size(); ++i) {
            const Sharing& s = problems[i];
            if (i == 0 || s.n != problems[i - 1].n) {
                panels.push_back({text_of(link.name, ", ", int64_t(s.n), " rows"), "share of the ranks' speed", "", {}, {}});
                for (const Way way : kWays) panels.back().series.push_back({name_of(way), {}, {}});
            }
            Panel& panel = panels.back();
            panel.groups.push_back(text_of(s.ranks));
            for (size_t m = 0; m < std::size(kWays); ++m) {
                const Sharded c = cost_of(kWays[m], s);
                const double ideal = (c.forward.flops + c.backward.flops) / rank.speed;
                panel.series[m].bars.push_back(c.possible ? std::optional<double>(ideal / seconds_of_both(kWays[m], s, link, rank))
                                                          : std::nullopt);
            }
        }
    return bar_charts("Forward and backward over ranks, predicted", panels, "");
}

}  // namespace

void study_ranks(const RanksOptions& options) {
    const std::vector<Sharing> problems = problems_of(options);
    const std::vector<Link> links = links_of(options);
    const double tflops = double(options.speed.value_or(kSpeed));
    if (!(tflops > 0)) misuse("--speed is ", tflops, "; expected more than 0 TFLOP/s");
    if (options.memory && !(*options.memory > 0)) misuse("--memory is ", *options.memory, "; expected more than 0 GB/s");
    const Rates rank{1e12 * tflops, 1e9 * double(options.memory.value_or(0))};
    std::optional<Picture> plot;
    if (!options.plot.empty()) plot.emplace(options.plot);
    std::vector<std::string> titles = {"shape", "method", "ranks", "work", "forward sends", "messages", "backward", "messages"};
    for (const Link& link : links) titles.insert(titles.end(), {"time, " + link.name, "used"});
    Table table(titles, 2);
    for (const Sharing& s : problems)
        for (const Way way : kWays) {
            const Sharded c = cost_of(way, s);
            std::vector<std::string> row = {text_of_shape({int64_t(s.batch), s.heads_q, int64_t(s.n), int64_t(s.dim)}), name_of(way),
                                            text_of(s.ranks)};
            if (!c.possible) {
                row.push_back("–");
                table.add(row);
                continue;
            }
            const double work = c.forward.flops + c.backward.flops;
            row.insert(row.end(), {engineering(work, "FLOP"), engineering(c.forward.bytes, "B"), text_of(int64_t(c.forward.messages)),
                                   engineering(c.backward.bytes, "B"), text_of(int64_t(c.backward.messages))});
            for (const Link& link : links) {
                const double seconds = seconds_of_both(way, s, link, rank);
                row.insert(row.end(), {engineering(seconds, "s"), percent(work / rank.speed / seconds)});
            }
            table.add(row);
        }
    if (options.plot != kStandard) {
        table.print(std::cout);
        std::cout << "\n[batch,heads,n,d], causal, zigzag, 16-bit types, at " << tflops
                  << " TFLOP/s a rank. What one rank does, sends in a forward, and in a backward; the time of both, and the share "
                     "of the\n"
                     "ranks' speed that is used. –: the ranks do not divide the heads of k and v.\n";
    }
    if (plot) plot->draw(drawing_of(problems, links, rank));
}

}  // namespace tool
