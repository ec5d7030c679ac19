// Bar charts as SVG: panels in rows, groups of bars, one colour for each series, and optional marks that are to meet the bars.
// Written here so that the tool draws on the machine that it measures, which may have neither Python nor a plotting library.
// Published pictures are drawn by matplotlib (bench/publish.py).
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tool {

struct Series {
    std::string name;
    std::vector<std::optional<double>> bars;   // one for each group; none: nothing was measured
    std::vector<std::optional<double>> marks;  // empty, or one for each group
};

// All values are at least 0. The axis is logarithmic where the values need it, and then says so.
struct Panel {
    std::string title;
    std::string axis;  // what is measured
    const char* unit;
    std::vector<std::string> groups;
    std::vector<Series> series;
};

// A series has one colour in all panels. mark_name: what the marks are; empty when there are none.
std::string bar_charts(const std::string& title, const std::vector<Panel>& panels, const std::string& mark_name);

}  // namespace tool
