#include "support/backward_case.h"
#include <cstring>

namespace test {
namespace {

Buffer::Guard side(Rng& rng) { return rng.chance(0.5) ? Buffer::Guard::after : Buffer::Guard::before; }

}  // namespace

fa_backward_args_t BackwardCase::args() const {
    fa_backward_args_t full = a;
    full.forward = &c.a;
    return full;
}

void BackwardCase::bind(Rng& rng) {
    const oracle::BackwardReading r = reading();
    const auto give = [&](Buffer& buffer, bool wanted, const oracle::Tensor& tensor, int32_t dtype) -> void* {
        if (wanted) buffer = Buffer(tensor.extent() * oracle::size_of(dtype), side(rng));
        return buffer.as();
    };
    const oracle::Tensor heads{{1, 1, 1, c.d.heads_q}, {0, 0, 0, 1}};
    a.dout = give(dout, true, r.dout_tensor, r.q_dtype);
    a.dlse = static_cast<float*>(give(dlse, gives_dlse, r.dlse_tensor, FA_F32));
    a.dq = give(dq, wants_dq, r.dq_tensor, r.dq_dtype());
    a.dk = give(dk, wants_dk, r.dk_tensor, r.dkv_dtype());
    a.dv = give(dv, wants_dv, r.dv_tensor, r.dkv_dtype());
    a.dbias = static_cast<float*>(give(dbias, wants_dbias && r.has(FA_OPERAND_BIAS), r.dbias_tensor, FA_F32));
    a.dsinks = static_cast<float*>(give(dsinks, wants_dsinks && r.has(FA_OPERAND_SINKS), heads, FA_F32));
    if (!r.accumulates()) return;
    for (Buffer* output : outputs())
        for (int64_t n = 0; n < output->bytes() / 4; n++) output->as<float>()[n] = float(rng.normal());
}

void BackwardCase::set_dout(const Case::Pick& value) {
    const oracle::BackwardReading r = reading();
    for (int64_t b = 0; b < r.d.batch; b++)
        for (int64_t h = 0; h < r.d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t e = 0; e < r.dim_v; e++) oracle::store(dout.as(), r.dout(b, h, i) + e, r.q_dtype, value(b, h, i, e));
}

void BackwardCase::set_dlse(const std::function<double(int64_t, int64_t, int64_t)>& value) {
    const oracle::BackwardReading r = reading();
    for (int64_t b = 0; b < r.d.batch; b++)
        for (int64_t h = 0; h < r.d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) dlse.as<float>()[r.dlse(b, h, i)] = float(value(b, h, i));
}

void BackwardCase::fill_normal(Rng& rng, double size) {
    set_dout([&](int64_t, int64_t, int64_t, int64_t) { return size * rng.normal(); });
    if (gives_dlse) set_dlse([&](int64_t, int64_t, int64_t) { return rng.normal(); });
}

void BackwardCase::use_workspace(uint64_t bytes, Rng& rng) {
    constexpr uint64_t kAlignment = 256;
    workspace = Buffer(int64_t((bytes + kAlignment - 1) / kAlignment * kAlignment), side(rng));
    a.workspace = bytes > 0 ? workspace.as() : nullptr;
    a.workspace_size = bytes;
}

void BackwardCase::reset_outputs() {
    before_.clear();
    for (Buffer* output : outputs()) {
        unsigned char* const bytes = output->as<unsigned char>();
        const size_t size = size_t(output->bytes());
        if (size > 0 && !(a.flags & FA_BACKWARD_ACCUMULATE)) memset(bytes, kPoison, size);
        before_.emplace_back(bytes, bytes + size);
    }
}

fa_status_t BackwardCase::run(fa_handle_t handle) {
    reset_outputs();
    if (workspace.bytes() > 0) memset(workspace.as(), kPoison, size_t(workspace.bytes()));
    on_fault_print(describe());
    std::vector<Buffer*> inputs = c.inputs();
    inputs.insert(inputs.end(), {&c.o, &c.lse, &dout, &dlse});
    for (Buffer* input : inputs) input->freeze(true);
    const fa_backward_args_t full = args();
    const fa_status_t status = fa_backward(handle, &c.d, &full);
    for (Buffer* input : inputs) input->freeze(false);
    return status;
}

std::vector<oracle::Target> BackwardCase::targets() const {
    const oracle::BackwardReading r = reading();
    return oracle::targets(r, oracle::backward(r, r.upstream()));
}

// Outputs are told apart by where they lie.
const Buffer& BackwardCase::output_of(const oracle::Target& target, size_t& index) const {
    const Buffer* const all[] = {&dq, &dk, &dv, &dbias, &dsinks};
    for (index = 0; all[index]->as() != target.base;) index++;
    return *all[index];
}

std::string BackwardCase::check(const oracle::Products& products) const {
    const std::vector<oracle::Target> all = targets();
    std::vector<std::vector<double>> olds;
    for (const oracle::Target& t : all) {
        size_t n;
        const Buffer& output = output_of(t, n);
        const std::vector<unsigned char>& before = before_[n];
        const unsigned char* const now = output.as<unsigned char>();
        const size_t size = size_t(oracle::size_of(t.dtype));
        std::vector<bool> owned(before.size() / size);
        olds.emplace_back();
        for (const oracle::Slot& slot : t.slots) {
            owned[size_t(slot.index)] = true;
            olds.back().push_back(a.flags & FA_BACKWARD_ACCUMULATE ? oracle::load(before.data(), slot.index, t.dtype) : 0);
        }
        for (size_t e = 0; e < owned.size(); e++)
            if (!owned[e] && memcmp(now + e * size, before.data() + e * size, size) != 0)
                return std::string(t.name) + " was written at element " + std::to_string(e) + ", which belongs to no row";
        if (!output.intact()) return std::string("bytes beside ") + t.name + " were written";
    }
    if (!workspace.intact()) return "bytes beside the workspace were written";
    return oracle::compare(reading(), all, products, olds).fault;
}

std::string BackwardCase::describe() const {
    std::string text = c.describe() + "; backward:";
    const struct {
        const char* name;
        bool given;
    } all[] = {{" dq", a.dq != nullptr},
               {" dk", a.dk != nullptr},
               {" dv", a.dv != nullptr},
               {" dbias", a.dbias != nullptr},
               {" dsinks", a.dsinks != nullptr},
               {" from dlse", a.dlse != nullptr},
               {" accumulated", (a.flags & FA_BACKWARD_ACCUMULATE) != 0}};
    for (const auto& one : all) text += one.given ? one.name : "";
    return text;
}

oracle::Products products_of(fa_handle_t handle, const BackwardCase& backward) {
    const int32_t stored = backward.c.reading().o_dtype, q = backward.c.d.q_dtype;
    const bool coarser = oracle::unit_roundoff(backward.c.p_dtype) > oracle::unit_roundoff(stored);
    char text[256] = "";
    // Only matrix units take operands of 16 bits, and do with all that fits them.
    const bool matrix = fa_explain(handle, &backward.c.d, FA_OP_BACKWARD, text, sizeof text) == FA_OK &&
                        (strstr(text, "cpu_backward_amx") || strstr(text, "cpu_backward_avx512_bf16"));
    return {coarser ? backward.c.p_dtype : stored, matrix || !testing_the_cpu() ? q : int32_t(FA_F32)};
}

std::string run_and_check(const Handle& handle, BackwardCase& backward) {
    if (backward.run(handle) != FA_OK) return "fa_backward: " + handle.error() + "\n" + backward.describe();
    const std::string fault = backward.check(products_of(handle, backward));
    return fault.empty() ? "" : fault + "\n" + backward.describe();
}

}  // namespace test
