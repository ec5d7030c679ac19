#include "experiment.h"
#include <algorithm>
#include <chrono>
#include <memory>
#include "library.h"
#include "machine.h"
#include "options.h"
#include "signals.h"
#include "table.h"

namespace tool {
namespace {

fa_attention_desc_t describe_forward(const Shape& shape, int32_t algorithm) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.batch = shape.batch;
    d.heads_q = shape.heads;
    d.seqlen_q = d.seqlen_k = shape.n;
    d.dim_qk = shape.dim;
    d.algorithm = algorithm;
    d.num_splits = 1;  // splits are no part of what is compared
    return d;
}

double tensor_bytes(const Shape& shape) { return 4.0 * double(shape.batch) * double(shape.heads) * double(shape.n) * double(shape.dim); }

// One backend with its tensors.
class Bench {
  public:
    Bench(int32_t backend, const Shape& shape)
        : backend_(backend), handle_(backend, FA_MEMORY_DEVICE), memory_(memory_of(backend)), shape_(shape) {}

    int32_t backend() const { return backend_; }
    Handle& handle() { return handle_; }

    // Why the algorithm cannot run here; "" when it can.
    std::string obstacle(int32_t algorithm) {
        const fa_attention_desc_t d = describe_forward(shape_, algorithm);
        uint64_t workspace = 0;
        const fa_status_t status = fa_workspace_size(handle_, &d, FA_OP_FORWARD, &workspace);
        if (status != FA_OK) return fa_last_error(handle_);
        const double needed = double(workspace) + 5 * tensor_bytes(shape_);  // q, k, v, o, and what fills them
        if (needed <= memory_) return "";
        return "needs " + engineering(needed, "B") + ", " + engineering(memory_, "B") + " are available";
    }

    double run(int32_t algorithm) {
        if (!tensors_) tensors_ = std::make_unique<Tensors>(handle_, uint64_t(tensor_bytes(shape_)));
        const fa_attention_desc_t d = describe_forward(shape_, algorithm);
        const auto start = std::chrono::steady_clock::now();
        handle_.check(fa_forward(handle_, &d, tensors_->q.get(), tensors_->k.get(), tensors_->v.get(), tensors_->o.get()));
        handle_.check(fa_synchronize(handle_));
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

  private:
    struct Tensors {
        Tensors(Handle& handle, uint64_t bytes) : q(handle, bytes), k(handle, bytes), v(handle, bytes), o(handle, bytes) {
            std::vector<float> values(bytes / sizeof(float));
            uint32_t state = 1;
            for (DeviceMemory* tensor : {&q, &k, &v}) {
                for (float& x : values) {
                    state = state * 1664525u + 1013904223u;
                    x = float(int32_t(state)) * 0x1p-31f;  // in [-1, 1)
                }
                handle.check(fa_copy(handle, tensor->get(), values.data(), bytes));
            }
        }
        DeviceMemory q, k, v, o;
    };

    int32_t backend_;
    Handle handle_;
    double memory_;
    Shape shape_;
    std::unique_ptr<Tensors> tensors_;
};

// One run with the counters on.
void count(Bench& bench, Finding& finding) {
    Handle& h = bench.handle();
    finding.tile_rows = h.get(FA_STAT_TILE_ROWS);
    finding.tile_keys = h.get(FA_STAT_TILE_KEYS);
    finding.formula = formula(finding.algorithm, finding.shape, finding.tile_rows, finding.tile_keys);
    finding.why = bench.obstacle(finding.algorithm);
    if (!finding.why.empty()) return;
    h.set(FA_PARAM_COUNT_WORK, 1);
    bench.run(finding.algorithm);
    h.set(FA_PARAM_COUNT_WORK, 0);
    finding.counted = Cost{double(h.get(FA_STAT_FLOPS)), double(h.get(FA_STAT_EXTRA_BYTES)), double(h.get(FA_STAT_BYTES_READ)),
                           double(h.get(FA_STAT_BYTES_WRITTEN))};
}

// False if interrupted() before the last turn.
bool time_in_turns(std::vector<std::unique_ptr<Bench>>& benches, std::vector<Finding>& findings, const Effort& effort) {
    struct Turn {
        Bench* bench;
        Finding* finding;
        size_t timing;
        std::vector<double> seconds;
    };
    std::vector<Turn> turns;
    for (Finding& f : findings)
        for (auto& bench : benches) {
            f.timings.push_back({bench->backend(), {}, 0, bench->obstacle(f.algorithm)});
            if (!f.timings.back().why.empty()) continue;
            if (bench->backend() != FA_BACKEND_CPU) bench->run(f.algorithm);  // warm up; the CPU did when it counted
            turns.push_back({bench.get(), &f, f.timings.size() - 1, {}});
        }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t round = 0; round < effort.rounds; ++round) {
        if (round > 0 && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= effort.seconds) break;
        for (Turn& t : turns) {
            if (interrupted()) return false;
            t.seconds.push_back(t.bench->run(t.finding->algorithm));
        }
    }
    for (const Turn& t : turns) {
        Timing& timing = t.finding->timings[t.timing];
        timing.seconds = median(t.seconds);
        timing.rounds = int64_t(t.seconds.size());
    }
    return true;
}

}  // namespace

Shape parse_shape(const std::string& text) {
    const std::vector<int64_t> n = parse_ints("--shape", text);
    if (n.size() != 4 || *std::min_element(n.begin(), n.end()) < 1)
        misuse("--shape is '", text, "'; expected four numbers of at least 1: batch,heads,n,d");
    return {n[0], n[1], n[2], n[3]};
}

void check_shapes(const std::vector<Shape>& shapes) {
    const Handle cpu(FA_BACKEND_CPU);
    for (const Shape& shape : shapes)
        for (const Named& algorithm : kAlgorithms) {
            const fa_attention_desc_t d = describe_forward(shape, algorithm.value);
            cpu.check(fa_supports(cpu, &d, FA_OP_FORWARD));
        }
}

std::string text_of_shape(const Shape& shape) { return text_of("[", shape.batch, ",", shape.heads, ",", shape.n, ",", shape.dim, "]"); }

Cost formula(int32_t algorithm, const Shape& shape, int64_t rows, int64_t keys) {
    const double heads = double(shape.batch) * double(shape.heads), n = double(shape.n), d = double(shape.dim), f32 = 4;
    const double row_tiles = double((shape.n + rows - 1) / rows), key_tiles = double((shape.n + keys - 1) / keys);
    Cost c;  // of one head, in elements, until the end
    c.flops = 4 * n * n * d;
    switch (algorithm) {
        case FA_ALGORITHM_STANDARD:  // S written; S read and P written; P read. K and V come once for every tile of rows
            c.read = n * d + 2 * row_tiles * n * d + 2 * n * n;
            c.written = 2 * n * n + n * d;
            c.extra = row_tiles * double(rows) * n;
            break;
        case FA_ALGORITHM_FLASH1:  // K and V once; Q, O, m and l read and O, m and l written for every block of keys; O normalised
            c.read = 2 * n * d + key_tiles * n * (2 * d + 2) + n * d;
            c.written = key_tiles * n * (d + 2) + n * d;
            c.extra = 2 * row_tiles * double(rows);
            break;
        default:  // Q read and O written once; K and V once for every tile of rows
            c.read = n * d + 2 * row_tiles * n * d;
            c.written = n * d;
    }
    return {heads * c.flops, f32 * c.extra, f32 * heads * c.read, f32 * heads * c.written};
}

std::vector<Finding> study_shape(const Shape& shape, const std::vector<int32_t>& backends, const Effort& effort) {
    std::vector<std::unique_ptr<Bench>> benches;
    for (int32_t backend : backends) benches.push_back(std::make_unique<Bench>(backend, shape));
    const auto is_cpu = [](const std::unique_ptr<Bench>& bench) { return bench->backend() == FA_BACKEND_CPU; };
    const auto timed = std::find_if(benches.begin(), benches.end(), is_cpu);
    const auto apart = timed == benches.end() ? std::make_unique<Bench>(FA_BACKEND_CPU, shape) : nullptr;
    Bench& counting = apart ? *apart : **timed;  // whatever is timed, the CPU counts
    std::vector<Finding> findings;
    for (const Named& algorithm : kAlgorithms) {
        if (interrupted()) return {};
        findings.push_back({});
        findings.back().shape = shape;
        findings.back().algorithm = algorithm.value;
        count(counting, findings.back());
    }
    return time_in_turns(benches, findings, effort) ? findings : std::vector<Finding>();
}

}  // namespace tool
