#include "support/case.h"
#include <cstddef>
#include <cstring>
#include "support/handle.h"

namespace test {
namespace {

Buffer::Guard side(Rng& rng) { return rng.chance(0.5) ? Buffer::Guard::after : Buffer::Guard::before; }

// Of stored values that stand for ordinary ones: integers need room.
double size_of_values(int32_t dtype) { return dtype == FA_I8 ? 40 : dtype == FA_U4 ? 6 : dtype == FA_I4 ? 3 : dtype == FA_E2M1 ? 2 : 1; }

template <class Value>
std::vector<double> row_of(int64_t dim, Value value) {
    std::vector<double> row;
    for (int64_t c = 0; c < dim; c++) row.push_back(value(c));
    return row;
}

void point(fa_forward_args_t& args, size_t pointer, const Buffer& buffer) {
    void* const to = buffer.as();
    memcpy(reinterpret_cast<char*>(&args) + pointer, &to, sizeof to);
}

void poison(const Buffer& buffer) {
    if (buffer.bytes() > 0) memset(buffer.as(), kPoison, size_t(buffer.bytes()));
}

bool poisoned(const Buffer& buffer, int64_t index, int64_t size) {
    const unsigned char* at = buffer.as<unsigned char>() + index * size;
    for (int64_t byte = 0; byte < size; byte++)
        if (at[byte] != kPoison) return false;
    return true;
}

// First element that no mark covers and that has been written, or −1.
int64_t first_stray(const Buffer& buffer, const std::vector<bool>& owned, int64_t size) {
    for (size_t n = 0; n < owned.size(); n++)
        if (!owned[n] && !poisoned(buffer, int64_t(n), size)) return int64_t(n);
    return -1;
}

int64_t bytes_of_factors(const oracle::Reading::Factors& factors) { return factors.tensor.extent() * oracle::size_of(factors.dtype); }

}  // namespace

const std::vector<BufferOperand>& buffer_operands() {
    using Args = fa_forward_args_t;
    using R = const oracle::Reading&;
    constexpr int64_t kFloat = sizeof(float);
    const auto list_bytes = [](R r) { return r.list_tensor.extent() * int64_t(sizeof(int32_t)); };
    const auto count_bytes = [](R r) { return r.list_count_tensor.extent() * int64_t(sizeof(int32_t)); };
    static const std::vector<BufferOperand> all = {
        {FA_OPERAND_LSE, offsetof(Args, lse), &Case::lse, [](R r) { return r.lse_tensor.extent() * kFloat; }, true},
        {FA_OPERAND_BIAS, offsetof(Args, bias), &Case::bias, [](R r) { return r.bias_tensor.extent() * oracle::size_of(r.bias_dtype); },
         false},
        {FA_OPERAND_BIAS_SCALE, offsetof(Args, bias_scale), &Case::bias_scale, [](R r) { return r.d.heads_q * kFloat; }, false},
        {FA_OPERAND_MASK, offsetof(Args, mask), &Case::mask, [](R r) { return r.mask_tensor.extent(); }, false},
        {FA_OPERAND_KEY_RANGES, offsetof(Args, key_ranges), &Case::key_ranges,
         [](R r) { return r.key_range_tensor.extent() * int64_t(2 * sizeof(int32_t)); }, false},
        {FA_OPERAND_KEY_LIST, offsetof(Args, key_list), &Case::key_list, list_bytes, false},
        {FA_OPERAND_FULL_LIST, offsetof(Args, full_list), &Case::full_list, list_bytes, false},
        {FA_OPERAND_KEY_LIST_COUNT, offsetof(Args, key_list_count), &Case::key_list_count, count_bytes, false},
        {FA_OPERAND_FULL_LIST_COUNT, offsetof(Args, full_list_count), &Case::full_list_count, count_bytes, false},
        {FA_OPERAND_ALIBI, offsetof(Args, alibi_slopes), &Case::alibi,
         [](R r) { return (r.d.heads_q + (r.d.batch > 0 ? (r.d.batch - 1) * r.d.alibi_batch_stride : 0)) * kFloat; }, false},
        {FA_OPERAND_SINKS, offsetof(Args, sinks), &Case::sinks, [](R r) { return r.d.heads_q * kFloat; }, false},
        {FA_OPERAND_Q_TAIL, offsetof(Args, q_tail), &Case::q_tail,
         [](R r) { return r.q_tail_tensor.extent() * oracle::size_of(r.q_tail_dtype); }, false},
        {FA_OPERAND_K_TAIL, offsetof(Args, k_tail), &Case::k_tail,
         [](R r) { return r.k_tail_tensor.extent() * oracle::size_of(r.k_tail_dtype); }, false},
        {FA_OPERAND_Q_DESCALE, offsetof(Args, q_descale), &Case::q_descale, [](R r) { return bytes_of_factors(r.q_factors); }, false},
        {FA_OPERAND_K_DESCALE, offsetof(Args, k_descale), &Case::k_descale, [](R r) { return bytes_of_factors(r.k_factors); }, false},
        {FA_OPERAND_V_DESCALE, offsetof(Args, v_descale), &Case::v_descale, [](R r) { return bytes_of_factors(r.v_factors); }, false},
        {FA_OPERAND_K_SHIFT, offsetof(Args, k_shift), &Case::k_shift, [](R r) { return bytes_of_factors(r.k_factors); }, false},
        {FA_OPERAND_V_SHIFT, offsetof(Args, v_shift), &Case::v_shift, [](R r) { return bytes_of_factors(r.v_factors); }, false},
        {FA_OPERAND_O_SCALE, offsetof(Args, o_scale), &Case::o_scale, [](R) { return kFloat; }, false},
        {FA_OPERAND_SCORES, offsetof(Args, scores), &Case::scores, [](R r) { return r.scores_tensor.extent() * kFloat; }, true},
        {FA_OPERAND_RNG_STATE, offsetof(Args, rng_state), &Case::rng_state, [](R) { return int64_t(2 * sizeof(uint64_t)); }, false},
        {FA_OPERAND_DEVICE_STATUS, offsetof(Args, device_status), &Case::device_status, [](R) { return int64_t(sizeof(uint32_t)); }, true}};
    return all;
}

const std::vector<MetadataOperand>& metadata_operands() {
#define METADATA(BIT, field) \
    MetadataOperand { FA_OPERAND_##BIT, offsetof(fa_forward_args_t, field), &Metadata::field, #field }
    static const std::vector<MetadataOperand> all = {METADATA(CAUSAL_OFFSET, causal_offset), METADATA(CU_SEQLENS_Q, cu_seqlens_q),
                                                     METADATA(CU_SEQLENS_K, cu_seqlens_k),   METADATA(SEQUSED_Q, seqused_q),
                                                     METADATA(SEQUSED_K, seqused_k),         METADATA(LEFTPAD_K, leftpad_k),
                                                     METADATA(KV_BATCH_IDX, kv_batch_idx),   METADATA(PAGE_TABLE, page_table)};
#undef METADATA
    return all;
}

void Case::bind_metadata(Rng& rng) {
    for (const MetadataOperand& operand : metadata_operands()) {
        if (!(d.operands & operand.bit)) continue;
        const std::vector<int32_t>& values = metadata.*operand.values;
        metadata_buffers_.emplace_back(int64_t(values.size() * sizeof(int32_t)), side(rng));
        if (!values.empty()) memcpy(metadata_buffers_.back().as(), values.data(), values.size() * sizeof(int32_t));
        point(a, operand.pointer, metadata_buffers_.back());
    }
}

void Case::bind(Rng& rng) {
    bind_metadata(rng);
    const oracle::Reading r = reading();
    const auto give = [&](Buffer& buffer, bool wanted, int64_t bytes) {
        Buffer memory(bytes, side(rng));
        if (wanted) buffer = std::move(memory);
        return buffer.as();
    };
    a.q = give(q, true, r.q_tensor.extent() * oracle::size_of(r.q_dtype));
    a.k = give(k, true, r.k_tensor.extent() * oracle::size_of(r.k_dtype));
    a.v = give(v, !r.v_in_k(), r.v_tensor.extent() * oracle::size_of(r.v_dtype));
    a.o = give(o, true, r.o_tensor.extent() * oracle::size_of(r.o_dtype));
    for (const BufferOperand& operand : buffer_operands()) {
        const bool wanted = (d.operands & operand.bit) != 0;
        give(this->*operand.buffer, wanted, wanted ? operand.bytes(r) : 0);
        point(a, operand.pointer, this->*operand.buffer);
    }
    if (device_status.bytes() > 0) *device_status.as<uint32_t>() = 0;  // calls set bits in it
}

void Case::use_workspace(uint64_t bytes, Rng& rng) {
    constexpr uint64_t kAlignment = 256;
    workspace = Buffer(int64_t((bytes + kAlignment - 1) / kAlignment * kAlignment), side(rng));
    a.workspace = bytes > 0 ? workspace.as() : nullptr;
    a.workspace_size = bytes;
}

void Case::set_q(const Pick& value) {
    const oracle::Reading r = reading();
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t c = 0; c < d.dim_qk; c++) {
                    const bool own = c < r.own_q;
                    oracle::store(own ? q.as() : q_tail.as(), own ? r.q(b, h, i) + c : r.q_tail(b, h, i) + c - r.own_q,
                                  own ? r.q_dtype : r.q_tail_dtype, value(b, h, i, c));
                }
}

void Case::set_k(const Pick& value) {
    const oracle::Reading r = reading();
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < r.heads_k; h++)
            for (int64_t j = 0; j < r.keys(b); j++) {
                std::vector<double> row = row_of(d.dim_qk, [&](int64_t c) { return value(b, h, j, c); });
                if (r.own_k < d.dim_qk)
                    oracle::store_row(k_tail.as(), r.k_tail(b, h, j), r.k_tail_dtype, {row.begin() + r.own_k, row.end()});
                row.resize(size_t(r.own_k));
                oracle::store_row(k.as(), r.k(b, h, j), r.k_dtype, row);
            }
}

void Case::set_v(const Pick& value) {
    const oracle::Reading r = reading();
    if (r.v_in_k()) return;  // it is there
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < r.heads_v; h++)
            for (int64_t j = 0; j < r.keys(b); j++)
                oracle::store_row(v.as(), r.v(b, h, j), r.v_dtype, row_of(r.dim_v, [&](int64_t c) { return value(b, h, j, c); }));
}

void Case::set_bias(const Pick& value) {
    const oracle::Reading r = reading();
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t j = 0; j < r.keys(b); j++) oracle::store(bias.as(), r.bias(b, h, i, j), r.bias_dtype, value(b, h, i, j));
}

void Case::set_mask(const std::function<bool(int64_t, int64_t, int64_t, int64_t)>& attend) {
    const oracle::Reading r = reading();
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t j = 0; j < r.keys(b); j++) {
                    if (r.column(b, j) < 0) continue;
                    uint8_t& byte = mask.as<uint8_t>()[r.mask(b, h, i, j)];
                    const int bits = r.mask_bits(b, j), any = 1 + int(i + 3 * j) % 255;  // any nonzero byte means attend
                    byte = uint8_t((byte & ~bits) | (attend(b, h, i, j) ? d.mask_dtype == FA_BIT ? bits : any : 0));
                }
}

void Case::set_key_ranges(const std::function<std::vector<int32_t>(int64_t, int64_t, int64_t)>& intervals) {
    const oracle::Reading r = reading();
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) {
                const std::vector<int32_t> pairs = intervals(b, h, i);
                for (int64_t t = 0; t < int64_t(pairs.size()) / 2; t++)
                    memcpy(key_ranges.as<int32_t>() + r.key_range(b, h, i, t), &pairs[size_t(2 * t)], 2 * sizeof(int32_t));
            }
}

void Case::set_key_lists(const std::function<Lists(int64_t, int64_t, int64_t)>& lists) {
    const oracle::Reading r = reading();
    const auto write = [&](const std::vector<int32_t>& entries, const Buffer& list, const Buffer& count, bool counted, int64_t at,
                           int64_t count_at) {
        for (int64_t e = 0; e < d.list_max; e++)
            list.as<int32_t>()[at + e * r.list_tensor.stride[3]] = e < int64_t(entries.size()) ? entries[size_t(e)] : -1;
        if (counted) count.as<int32_t>()[count_at] = int32_t(entries.size());
    };
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) {
                const int64_t at = r.list(b, h, i), count_at = r.list_count(b, h, i);
                const bool again = i > 0 && at == r.list(b, h, i - 1) && count_at == r.list_count(b, h, i - 1);
                if (again) continue;
                const Lists of_row = lists(b, h, i);
                if (r.has(FA_OPERAND_KEY_LIST))
                    write(of_row.masked, key_list, key_list_count, r.has(FA_OPERAND_KEY_LIST_COUNT), at, count_at);
                if (r.has(FA_OPERAND_FULL_LIST))
                    write(of_row.full, full_list, full_list_count, r.has(FA_OPERAND_FULL_LIST_COUNT), at, count_at);
            }
}

void Case::set_descales(Rng& rng, double typical) {
    const oracle::Reading r = reading();
    const auto draw = [&](const Buffer& factors, const Buffer& shifts, const oracle::Reading::Factors& f, int64_t dims, auto index) {
        for (int64_t c = 0; c < dims; c += f.dims) {
            oracle::store(factors.as(), index(c), f.dtype, typical * rng.uniform(0.5, 2));
            if (shifts.bytes() > 0) oracle::store(shifts.as(), index(c), f.dtype, 4 * typical * rng.normal());
        }
    };
    const Buffer none;
    for (int64_t b = 0; b < d.batch; b++) {
        for (int64_t h = 0; h < d.heads_q && r.has(FA_OPERAND_Q_DESCALE); h++)
            for (int64_t i = 0; i < r.rows(b); i++)
                draw(q_descale, none, r.q_factors, r.own_q, [&](int64_t c) { return r.q_descale(b, h, i, c); });
        for (int64_t j = 0; j < r.keys(b); j++) {
            for (int64_t h = 0; h < r.heads_k && r.has(FA_OPERAND_K_DESCALE); h++)
                draw(k_descale, k_shift, r.k_factors, r.own_k, [&](int64_t c) { return r.k_descale(b, h, j, c); });
            for (int64_t h = 0; h < r.heads_v && r.has(FA_OPERAND_V_DESCALE); h++)
                draw(v_descale, v_shift, r.v_factors, r.dim_v, [&](int64_t c) { return r.v_descale(b, h, j, c); });
        }
    }
}

void Case::fill_normal(Rng& rng, double q_size, double k_size, double v_size) {
    const oracle::Reading r = reading();
    k_size *= size_of_values(r.k_dtype), v_size *= size_of_values(r.v_dtype);
    set_q([&](int64_t, int64_t, int64_t, int64_t) { return q_size * rng.normal(); });
    set_k([&](int64_t, int64_t, int64_t, int64_t) { return k_size * rng.normal(); });
    set_v([&](int64_t, int64_t, int64_t, int64_t) { return v_size * rng.normal(); });
}

std::vector<Buffer*> Case::inputs() {
    std::vector<Buffer*> all = {&q, &k, &v};
    for (const BufferOperand& operand : buffer_operands())
        if (!operand.output) all.push_back(&(this->*operand.buffer));
    for (Buffer& buffer : metadata_buffers_) all.push_back(&buffer);
    return all;
}

fa_status_t Case::run(fa_handle_t handle) {
    for (Buffer* output : {&o, &lse, &scores, &workspace}) poison(*output);
    if (device_status.bytes() > 0) *device_status.as<uint32_t>() = 0;
    on_fault_print(describe());
    for (Buffer* input : inputs()) input->freeze(true);
    const fa_status_t status = fa_forward_ex(handle, &d, &a);
    for (Buffer* input : inputs()) input->freeze(false);
    if (status != FA_OK) return status;
    p_dtype = probability_dtype(handle, d);
    short_products = sums_short_products(handle, d);
    p_of_8_bits = rounds_p_to_8_bits(handle, d);
    rounded_q = rounds_q_to_bf16(handle, d);
    rounded_to_bytes = rounds_to_bytes(handle, d);
    return status;
}

std::string Case::check_untouched() const {
    const oracle::Reading r = reading();
    for (const Buffer* buffer : {&q, &k, &v, &o, &lse, &scores, &device_status, &workspace})
        if (!buffer->intact()) return "bytes beside a buffer were written";
    if (device_status.bytes() > 0 && *device_status.as<uint32_t>() != 0) return "arrays are right, and device_status says they are wrong";
    std::vector<bool> o_owned(size_t(r.o_tensor.extent())), lse_owned(r.has(FA_OPERAND_LSE) ? size_t(r.lse_tensor.extent()) : 0);
    std::vector<bool> scores_owned(r.has(FA_OPERAND_SCORES) ? size_t(r.scores_tensor.extent()) : 0);
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++) {
            for (int64_t i = 0; i < r.padded_rows(b); i++) {
                for (int64_t c = 0; c < r.dim_v; c++) o_owned[size_t(r.o(b, h, i) + c)] = true;
                if (!lse_owned.empty()) lse_owned[size_t(r.lse(b, h, i))] = true;
            }
            for (int64_t i = 0; i < d.seqlen_q && !scores_owned.empty(); i++)
                for (int64_t j = 0; j < d.seqlen_k; j++) scores_owned[size_t(r.scores(b, h, i, j))] = true;
        }
    struct Output {
        const char* name;
        const Buffer& buffer;
        const std::vector<bool>& owned;
        int64_t size;
    };
    for (const Output& out : {Output{"o", o, o_owned, oracle::size_of(r.o_dtype)}, Output{"lse", lse, lse_owned, 4},
                              Output{"scores", scores, scores_owned, 4}}) {
        const int64_t stray = first_stray(out.buffer, out.owned, out.size);
        if (stray >= 0) return std::string(out.name) + " was written at element " + std::to_string(stray) + ", which belongs to no row";
    }
    return "";
}

std::string check_against_oracle(const Case& test_case, int32_t p_dtype, int64_t row_step) {
    const oracle::Reading r = test_case.reading();
    const oracle::Attention want = oracle::attention(r, {r.has(FA_OPERAND_SCORES), row_step, test_case.rounded_to_bytes});
    const double qk_roundoff = test_case.short_products     ? oracle::short_qk_roundoff(r.d.dim_qk)
                               : test_case.rounded_to_bytes ? oracle::bytes_qk_roundoff()
                               : test_case.rounded_q
                                   ? oracle::rounded_qk_roundoff(oracle::is_block(r.k_dtype) || r.has(FA_OPERAND_K_DESCALE))
                                   : oracle::kQkRoundoff;
    std::string fault = oracle::compare_o(r, want, p_dtype, qk_roundoff).fault;
    if (fault.empty() && r.has(FA_OPERAND_LSE)) fault = oracle::compare_lse(r, want, qk_roundoff).fault;
    if (fault.empty() && r.has(FA_OPERAND_SCORES)) fault = oracle::compare_scores(r, want).fault;
    return fault.empty() ? test_case.check_untouched() : fault;
}

}  // namespace test
