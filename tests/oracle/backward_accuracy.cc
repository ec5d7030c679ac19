#include "oracle/backward_accuracy.h"
#include <algorithm>
#include <cmath>
#include <map>

namespace oracle {
namespace {

constexpr double kOfRows = 5, kOfKeys = 6, kOfValues = 4, kOfScores = 5;  // C

class Lister {
  public:
    Lister(const BackwardReading& reading, const Gradients& want) : r(reading), want(want) {}

    std::vector<Target> run() {
        if (r.g.dq) rows();
        if (r.g.dk) keys("dk", r.g.dk, r.dk_tensor, want.k, kOfKeys, true, &BackwardReading::dk);
        if (r.g.dv) keys("dv", r.g.dv, r.dv_tensor, want.v, kOfValues, false, &BackwardReading::dv);
        if (r.g.dbias) pairs_of_bias();
        if (r.g.dsinks) sinks();
        return std::move(all);
    }

  private:
    const BackwardReading& r;
    const Gradients& want;
    std::vector<Target> all;

    static void add(Slot& slot, const Gradient& gradient, size_t n) {
        slot.value += gradient.value[n], slot.spread += gradient.spread[n], slot.heat += gradient.heat[n], slot.reach += gradient.reach[n],
            slot.drift += gradient.drift[n];
    }

    void put(Target& target, const Element& where, int64_t index, const Gradient& gradient, int64_t n) {
        target.slots.push_back({where, index, 0, 0, 0, 0, 0, 1});
        if (n >= 0) add(target.slots.back(), gradient, size_t(n));
    }

    void rows() {
        Target t{"dq", r.g.dq, r.dq_dtype(), r.dq_tensor, kOfRows, true, {}};
        for (int64_t b = 0; b < r.d.batch; b++)
            for (int64_t h = 0; h < r.d.heads_q; h++)
                for (int64_t i = 0; i < r.padded_rows(b); i++)
                    for (int64_t c = 0; c < r.d.dim_qk; c++)
                        put(t, {t.name, b, h, i, c}, r.dq(b, h, i) + c, want.q, i < r.rows(b) ? want.row(b, h, i) * r.d.dim_qk + c : -1);
        all.push_back(std::move(t));
    }

    // A padded tensor has all its slots written, a packed one those of its keys.
    void keys(const char* name, void* base, const Tensor& tensor, const Gradient& gradient, double factor, bool uses_o,
              int64_t (BackwardReading::*place)(int64_t, int64_t, int64_t) const) {
        Target t{name, base, r.dkv_dtype(), tensor, factor, uses_o, {}};
        const int64_t dim = tensor.count[3];
        const bool packed = r.has(FA_OPERAND_CU_SEQLENS_K);
        for (int64_t b = 0; b < r.d.batch; b++)
            for (int64_t h = 0; h < r.heads_k; h++)
                for (int64_t slot = 0; slot < (packed ? r.leftpad(b) + r.keys(b) : r.d.seqlen_k); slot++) {
                    const int64_t j = slot - r.leftpad(b);
                    const bool valid = j >= 0 && j < r.keys(b);
                    for (int64_t c = 0; c < dim && (valid || !packed); c++)
                        put(t, {name, b, h, j, c}, (r.*place)(b, h, slot) + c, gradient, valid ? want.key(b, h, j) * dim + c : -1);
                }
        all.push_back(std::move(t));
    }

    void pairs_of_bias() {
        Target t{"dbias", r.g.dbias, FA_F32, r.dbias_tensor, kOfScores, true, {}};
        std::map<int64_t, size_t> slot_at;
        for (int64_t b = 0; b < r.d.batch; b++)
            for (int64_t h = 0; h < r.d.heads_q; h++)
                for (int64_t i = 0; i < r.d.seqlen_q; i++)
                    for (int64_t j = 0; j < r.d.seqlen_k; j++) {
                        const int64_t index = r.dbias(b, h, i, j);
                        const auto [at, fresh] = slot_at.emplace(index, t.slots.size());
                        if (fresh) put(t, {t.name, b, h, i, j}, index, want.bias, -1);
                        Slot& slot = t.slots[at->second];
                        add(slot, want.bias, size_t(want.row(b, h, i) * want.keys + j));
                        if (!fresh) slot.terms++;
                    }
        all.push_back(std::move(t));
    }

    void sinks() {
        Target t{"dsinks", r.g.dsinks, FA_F32, {{1, 1, 1, r.d.heads_q}, {0, 0, 0, 1}}, kOfScores, true, {}};
        for (int64_t h = 0; h < r.d.heads_q; h++) put(t, {t.name, 0, h, 0, 0}, h, want.sink, h);
        all.push_back(std::move(t));
    }
};

// The most terms that any sum of the call has, in one row's products or across the rows of a group.
double terms(const BackwardReading& reading) {
    const int64_t rows = reading.d.seqlen_q * (reading.d.heads_q / reading.heads_k);
    return double(std::max({rows, reading.d.seqlen_k, reading.d.dim_qk, reading.dim_v}));
}

}  // namespace

std::vector<Target> targets(const BackwardReading& reading, const Gradients& want) { return Lister(reading, want).run(); }

Verdict compare(const BackwardReading& reading, const std::vector<Target>& targets, const Products& products,
                const std::vector<std::vector<double>>& before) {
    Verdict verdict;
    for (size_t n = 0; n < targets.size(); n++) {
        const Target& t = targets[n];
        double u = std::fmax(unit_roundoff(t.dtype), unit_roundoff(products.p_dtype));
        if (t.uses_o) u = std::fmax(u, unit_roundoff(products.o_dtype));
        const double c = u > 0x1p-24 ? t.factor : std::fmax(8, 4 * std::sqrt(terms(reading) / 64));
        for (size_t s = 0; s < t.slots.size(); s++) {
            const Slot& slot = t.slots[s];
            const double old = before.empty() ? 0 : before[n][s], value = slot.value + old;
            const double reach = std::isfinite(slot.reach) ? slot.reach : 0;
            const double lost = faint_weight(products.p_dtype) * reach + smallest_step(reading.o_dtype) * slot.drift;
            const double own = c * (u * slot.spread + 0x1p-24 * slot.heat) + lost;
            const double limit = slot.spread == 0 ? 0 : own + 0x1p-24 * double(1 + slot.terms) * std::fabs(old) + smallest_step(t.dtype);
            judge(verdict, slot.where, forgive_overflow(load(t.base, slot.index, t.dtype), value, limit, t.dtype), value, limit);
        }
    }
    return verdict;
}

Pairs pairs(const Target& target) {
    Pairs all;
    for (const Slot& slot : target.slots) {
        all.got.push_back(load(target.base, slot.index, target.dtype));
        all.want.push_back(slot.value);
    }
    return all;
}

}  // namespace oracle
