// What `study` finds out about one shape: the cost of each algorithm by formula, the cost as the library counts it while it runs, and
// the time that it takes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tool {

struct Shape {
    int64_t batch, heads, n, dim;  // n rows and n keys, f32, no mask
};
Shape parse_shape(const std::string& text);     // the --shape 16,12,64,64
std::string text_of_shape(const Shape& shape);  // [16,12,64,64]

struct Cost {
    double flops = 0;
    double extra = 0;              // bytes besides q, k, v, o and one thread's tiles; for one head at a time
    double read = 0, written = 0;  // bytes between memory and tiles
    double traffic() const { return read + written; }
};

// The counts of src/cpu's tiles, as a formula: tiles of `rows` query rows and `keys` keys.
Cost formula(int32_t algorithm, const Shape& shape, int64_t rows, int64_t keys);

struct Timing {
    int32_t backend = 0;
    std::optional<double> seconds;  // median
    int64_t rounds = 0;
    std::string why;  // it was not timed
};

struct Finding {
    Shape shape;
    int32_t algorithm = 0;
    int64_t tile_rows = 0, tile_keys = 0;
    Cost formula;
    std::optional<Cost> counted;
    std::string why;  // it was not counted
    std::vector<Timing> timings;
};

// Fails unless the CPU, which counts for all backends, can compute every shape, memory aside.
void check_shapes(const std::vector<Shape>& shapes);

struct Effort {
    int64_t rounds;
    double seconds;  // no new round begins after so long; the first is always run
};

// One finding for each algorithm, timed on each of the backends. Algorithms take turns, so that a busy moment of the machine hits all
// alike. Empty if interrupted() before all of it was found.
std::vector<Finding> study_shape(const Shape& shape, const std::vector<int32_t>& backends, const Effort& effort);

}  // namespace tool
