// fa_merge: parts are averages over disjoint sets of keys; their weights are exp(LSE).
#include <cmath>
#include <limits>
#include "oracle/oracle.h"

namespace oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFaint = 0x1p-110;  // a weight that may be lost

// What all parts (and the state already there) say about one row: LSE and o of those that saw a key.
struct Part {
    double lse;
    const float* o;
};

struct Places {
    std::array<int64_t, 5> o;    // (part, batch, row, head, element)
    std::array<int64_t, 4> lse;  // (part, batch, head, row)
};

Places places_of(const fa_merge_args_t& args, int64_t outer, int64_t rows, int64_t heads, int64_t dim) {
    Places p{};
    bool o_given = false, lse_given = false;
    for (size_t axis = 0; axis < 5; axis++) o_given |= (p.o[axis] = args.o_parts_stride[axis]) != 0;
    for (size_t axis = 0; axis < 4; axis++) lse_given |= (p.lse[axis] = args.lse_parts_stride[axis]) != 0;
    if (!o_given) p.o = {outer * rows * heads * dim, rows * heads * dim, heads * dim, dim, 1};
    if (!lse_given) p.lse = {outer * heads * rows, heads * rows, rows, 1};
    return p;
}

bool empty(double lse) { return std::isinf(lse); }

void merge_row(const std::vector<Part>& parts, const double* sink, double o_scale, const Write& o, int64_t dim, const Write* lse,
               std::vector<Write>& out) {
    double top = sink ? *sink : -kInfinity, sum = 0, kappa = sink && std::isfinite(*sink) ? std::fabs(*sink) : 0;
    bool broken = false;
    for (const Part& part : parts) {
        broken |= std::isnan(part.lse);
        if (empty(part.lse) || broken) continue;
        top = std::fmax(top, part.lse);
        kappa = std::fmax(kappa, std::fabs(part.lse));
    }
    if (sink && top != -kInfinity) sum += std::exp(*sink - top);
    for (const Part& part : parts)
        if (!empty(part.lse)) sum += broken ? NAN : std::exp(part.lse - top);
    const double noise = std::ldexp(8 + 4 * kappa + double(parts.size()), -24);

    for (int64_t c = 0; c < dim; c++) {
        double value = 0, spread = 0, reach = 1;
        for (const Part& part : parts) {
            if (empty(part.lse)) continue;
            const double weight = broken ? NAN : std::exp(part.lse - top) / sum;
            value += weight * double(part.o[c]);
            spread += std::fabs(weight * double(part.o[c]));
            if (std::isfinite(part.o[c])) reach = std::fmax(reach, std::fabs(double(part.o[c])));
        }
        out.push_back({o.base, o.index + c, o.dtype, value * o_scale,
                       parts.empty() ? 0 : (noise * spread + double(parts.size()) * kFaint * reach) * std::fabs(o_scale)});
    }
    const double whole = broken ? NAN : sum == 0 ? -kInfinity : top + std::log(sum);
    if (lse) out.push_back({lse->base, lse->index, FA_F32, whole, std::isfinite(whole) ? noise * (1 + std::fabs(whole)) : 0});
}

}  // namespace

std::vector<Write> merge(const fa_attention_desc_t& desc, const fa_merge_args_t& args) {
    fa_forward_args_t meta = FA_FORWARD_ARGS_INIT;
    meta.cu_seqlens_q = args.cu_seqlens_q;
    meta.seqused_q = args.seqused_q;
    const Reading r(desc, meta);
    const Places at = places_of(args, r.o_tensor.count[0], r.o_tensor.count[1], desc.heads_q, r.dim_v);
    const bool packed = r.has(FA_OPERAND_CU_SEQLENS_Q), accumulate = (args.flags & FA_MERGE_ACCUMULATE) != 0;
    const double o_scale = r.has(FA_OPERAND_O_SCALE) ? double(*args.o_scale) : 1.0;

    std::vector<Write> out;
    for (int64_t b = 0; b < desc.batch; b++) {
        for (int64_t h = 0; h < desc.heads_q; h++) {
            for (int64_t i = 0; i < r.padded_rows(b); i++) {
                const int64_t outer = packed ? 0 : b, row = packed ? args.cu_seqlens_q[b] + i : i;
                const Write o{args.o, r.o(b, h, i), r.o_dtype, 0, 0}, lse{args.lse, r.lse(b, h, i), FA_F32, 0, 0};
                const bool valid = i < r.rows(b);
                std::vector<Part> parts;
                if (accumulate && valid) parts.push_back({double(args.lse[lse.index]), static_cast<const float*>(args.o) + o.index});
                for (int64_t p = 0; p < args.parts && valid; p++) {
                    const int64_t o_at = p * at.o[0] + outer * at.o[1] + row * at.o[2] + h * at.o[3];
                    const int64_t lse_at = p * at.lse[0] + outer * at.lse[1] + h * at.lse[2] + row * at.lse[3];
                    parts.push_back({double(args.lse_parts[lse_at]), args.o_parts + o_at});
                }
                const double sink = r.has(FA_OPERAND_SINKS) ? double(args.sinks[h]) : 0;
                merge_row(parts, valid && r.has(FA_OPERAND_SINKS) ? &sink : nullptr, o_scale, o, r.dim_v,
                          r.has(FA_OPERAND_LSE) ? &lse : nullptr, out);
            }
        }
    }
    return out;
}

}  // namespace oracle
