// flashattn study --ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "experiment.h"

namespace tool {

struct RanksOptions {
    std::vector<Shape> shapes;
    std::vector<int64_t> ranks;
    int64_t heads_kv = 0;                     // 0: as many as heads
    std::optional<float> speed;               // TFLOP/s
    std::optional<float> link_rate, latency;  // GB/s and microseconds of one link, instead of those that are known
    std::optional<float> memory;              // GB/s at which a rank packs and adds; none: that costs nothing
    std::string plot;
    bool any() const { return !ranks.empty() || heads_kv != 0 || speed || memory || link_rate || latency; }
};

void study_ranks(const RanksOptions& options);

}  // namespace tool
