#include "plot.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include "library.h"
#include "table.h"

namespace tool {
namespace {

constexpr double kLeastPanel = 380, kLeastGroup = 26, kLeastBar = 9, kRowWidth = 1300;
constexpr double kPanelHeight = 300, kLeft = 92, kRight = 20, kHead = 66, kTop = 30, kFoot = 26;
constexpr double kSlant = 30, kCharacter = 2.9;  // degrees of a group's name, and how deep a character of it reaches
constexpr double kBarPart = 0.8;                 // of a group's width; the rest lies between the groups
constexpr double kLogFrom = 20;                  // largest over smallest value from which a linear axis would hide the small bars
constexpr std::array<const char*, 6> kColours = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"};

std::string escaped(const std::string& text) {
    std::string out;
    for (char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : std::string(1, c);
    return out;
}

struct Axis {
    bool logarithmic = false;
    double low = 0, high = 1;
    std::vector<double> ticks;

    // Share of the axis's height; what lies below a logarithmic axis (0) sits on its foot.
    double at(double value) const {
        if (!logarithmic) return (value - low) / (high - low);
        return value <= low ? 0 : std::log10(value / low) / std::log10(high / low);
    }
};

Axis axis_for(const Panel& panel) {
    double smallest = 0, largest = 0;
    const auto see = [&](const std::vector<std::optional<double>>& values) {
        for (const auto& v : values) {
            if (!v || *v <= 0) continue;
            smallest = smallest == 0 ? *v : std::min(smallest, *v);
            largest = std::max(largest, *v);
        }
    };
    for (const Series& s : panel.series) {
        see(s.bars);
        see(s.marks);
    }
    Axis axis;
    if (largest == 0) return axis;
    axis.logarithmic = largest / smallest > kLogFrom;
    if (axis.logarithmic) {
        const int first = int(std::floor(std::log10(smallest * 0.99))), last = int(std::ceil(std::log10(largest)));
        for (int e = first; e <= last; ++e) axis.ticks.push_back(std::pow(10, e));
        axis.low = axis.ticks.front();
        axis.high = axis.ticks.back();
        return axis;
    }
    const double power = std::pow(10, std::floor(std::log10(largest))), lead = largest / power;
    const double step = power * (lead <= 2 ? 0.5 : lead <= 5 ? 1 : 2);
    axis.high = step * std::ceil(largest / step);
    for (double tick = 0; tick <= axis.high * 1.001; tick += step) axis.ticks.push_back(tick);
    return axis;
}

class Drawing {
  public:
    void rectangle(double x, double y, double width, double height, const std::string& fill) {
        svg_ << "<rect x='" << x << "' y='" << y << "' width='" << width << "' height='" << height << "' fill='" << fill << "'/>\n";
    }
    void line(double x1, double y1, double x2, double y2, const char* colour) {
        svg_ << "<line x1='" << x1 << "' y1='" << y1 << "' x2='" << x2 << "' y2='" << y2 << "' stroke='" << colour << "'/>\n";
    }
    void diamond(double x, double y) {
        svg_ << "<path d='M" << x << " " << y - 5 << "l5 5l-5 5l-5-5z' fill='white' stroke='black' stroke-width='1.5'/>\n";
    }
    void text(double x, double y, const std::string& text, const char* anchor, double size, const std::string& more = "") {
        svg_ << "<text x='" << x << "' y='" << y << "' text-anchor='" << anchor << "' font-size='" << size << "'" << more << ">"
             << escaped(text) << "</text>\n";
    }
    void slanted(double x, double y, const std::string& what, double degrees, const char* anchor, double size) {
        text(x, y, what, anchor, size, text_of(" transform='rotate(", degrees, " ", x, " ", y, ")'"));
    }
    std::string finish(double width, double height) const {
        return text_of("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", width, " ", height, "' width='", width, "' height='",
                       height, "' font-family='sans-serif'>\n<rect width='100%' height='100%' fill='white'/>\n", svg_.str(), "</svg>\n");
    }

  private:
    std::ostringstream svg_;
};

double width_of(const Panel& panel) {
    const double group = std::max(kLeastGroup, kLeastBar / kBarPart * double(panel.series.size()));
    return std::max(kLeastPanel, kLeft + kRight + group * double(panel.groups.size()));
}

void draw_axes(Drawing& draw, const Panel& panel, const Axis& axis, double x, double y) {
    const double width = width_of(panel) - kLeft - kRight;
    draw.text(x + width / 2, y - 14, panel.title, "middle", 14, " font-weight='bold'");
    for (double tick : axis.ticks) {
        const double at = y + kPanelHeight * (1 - axis.at(tick));
        draw.line(x, at, x + width, at, "#dddddd");
        draw.text(x - 5, at + 4, engineering(tick, panel.unit), "end", 11);
    }
    draw.line(x, y, x, y + kPanelHeight, "black");
    draw.line(x, y + kPanelHeight, x + width, y + kPanelHeight, "black");
    const double middle = y + kPanelHeight / 2, left = x - 78;
    draw.slanted(left, middle, panel.axis + (axis.logarithmic ? " (log scale)" : ""), -90, "middle", 12);
}

void draw_panel(Drawing& draw, const Panel& panel, const std::vector<std::string>& legend, double x, double y) {
    const Axis axis = axis_for(panel);
    draw_axes(draw, panel, axis, x, y);
    const double foot = y + kPanelHeight, group_width = (width_of(panel) - kLeft - kRight) / double(panel.groups.size());
    const double bar_width = group_width * kBarPart / double(panel.series.size());
    for (size_t g = 0; g < panel.groups.size(); ++g) {
        const double group_x = x + group_width * double(g);
        draw.slanted(group_x + group_width / 2 + 8, foot + 16, panel.groups[g], -kSlant, "end", 11);
        for (size_t s = 0; s < panel.series.size(); ++s) {
            const Series& series = panel.series[s];
            const size_t colour = size_t(std::find(legend.begin(), legend.end(), series.name) - legend.begin()) % kColours.size();
            const double bar_x = group_x + group_width * 0.1 + bar_width * double(s), middle = bar_x + bar_width / 2;
            if (!series.bars[g]) {
                draw.text(middle, foot - 4, "–", "middle", 11);
                continue;
            }
            const double height = kPanelHeight * axis.at(*series.bars[g]);
            draw.rectangle(bar_x, foot - height, bar_width * 0.92, height, kColours[colour]);
            if (*series.bars[g] == 0) draw.text(middle, foot - 4, "0", "middle", 11);
            else if (!series.marks.empty() && series.marks[g]) draw.diamond(middle, foot - kPanelHeight * axis.at(*series.marks[g]));
        }
    }
}

}  // namespace

std::string bar_charts(const std::string& title, const std::vector<Panel>& panels, const std::string& mark_name) {
    Drawing draw;
    draw.text(20, 28, title, "start", 17, " font-weight='bold'");
    std::vector<std::string> legend;
    size_t longest = 0;
    for (const Panel& panel : panels) {
        for (const Series& s : panel.series)
            if (std::find(legend.begin(), legend.end(), s.name) == legend.end()) legend.push_back(s.name);
        for (const std::string& group : panel.groups) longest = std::max(longest, group.size());
    }
    double x = 24;
    for (size_t s = 0; s < legend.size(); ++s) {
        draw.rectangle(x, 44, 14, 14, kColours[s % kColours.size()]);
        draw.text(x + 20, 56, legend[s], "start", 13);
        x += 44 + 8 * double(legend[s].size());
    }
    if (!mark_name.empty()) {
        draw.diamond(x + 7, 51);
        draw.text(x + 20, 56, mark_name, "start", 13);
    }
    const double row_height = kTop + kPanelHeight + kFoot + kCharacter * double(longest);
    double left = 0, top = kHead, width = 0;
    for (const Panel& panel : panels) {
        if (left > 0 && left + width_of(panel) > kRowWidth) left = 0, top += row_height;
        draw_panel(draw, panel, legend, left + kLeft, top + kTop);
        left += width_of(panel);
        width = std::max(width, left);
    }
    return draw.finish(width, top + row_height);
}

}  // namespace tool
