// fa_rotary and fa_append_kv: what is written where.
#include <algorithm>
#include <cmath>
#include "oracle/oracle.h"

namespace oracle {
namespace {

struct Turned {
    double value, size;  // size: Σ of the magnitudes that were added
};

struct Rotation {
    const float* cos;
    const float* sin;
    int64_t begin, dims;
    bool interleaved;
};

// Element c of a head after its pairs have turned by the angle of `position`: (x, y) → (x cos − y sin, y cos + x sin). in_f32: with the
// roundings that this has in f32, for what is quantised.
Turned turn(const std::vector<double>& x, int64_t c, int64_t position, const Rotation& rotation, bool in_f32 = false) {
    if (rotation.cos == nullptr || c < rotation.begin || c >= rotation.begin + rotation.dims) return {x[size_t(c)], 0};
    const int64_t half = rotation.dims / 2, n = c - rotation.begin;
    const int64_t pair = rotation.interleaved ? n / 2 : n % half;
    const bool second = rotation.interleaved ? n % 2 == 1 : n >= half;
    const double first = x[size_t(rotation.begin + (rotation.interleaved ? 2 * pair : pair))];
    const double last = x[size_t(rotation.begin + (rotation.interleaved ? 2 * pair + 1 : pair + half))];
    const double cos = double(rotation.cos[position * half + pair]), sin = double(rotation.sin[position * half + pair]);
    const double a = (second ? last : first) * cos, b = (second ? first : -last) * sin;
    if (in_f32) return {double(float(double(float(a)) + double(float(b)))), 0};
    return {a + b, std::fabs(a) + std::fabs(b)};
}

std::vector<double> read_head(const void* base, int64_t offset, int64_t dim, int32_t dtype) {
    std::vector<double> x;
    for (int64_t c = 0; c < dim; c++) x.push_back(load(base, offset + c, dtype));
    return x;
}

constexpr double kUlp = 0x1p-23;

bool all_zero(const int64_t (&s)[4]) { return s[0] == 0 && s[1] == 0 && s[2] == 0 && s[3] == 0; }

}  // namespace

// What fa_rotary turns, as q has it: q itself, or k.
static fa_attention_desc_t turned_half(fa_attention_desc_t desc, const fa_rotary_args_t& args) {
    if (!(args.flags & FA_ROTARY_OF_K)) return desc;
    if (desc.heads_k != 0) desc.heads_q = desc.heads_k;
    if (desc.k_dtype != 0) desc.q_dtype = desc.k_dtype;
    desc.seqlen_q = desc.seqlen_k, desc.total_q = desc.total_k;
    std::copy(desc.k_stride, desc.k_stride + 4, desc.q_stride);
    desc.strided = desc.strided & FA_STRIDED_K ? FA_STRIDED_Q : 0;
    desc.operands = (desc.operands & FA_OPERAND_CU_SEQLENS_K ? FA_OPERAND_CU_SEQLENS_Q : 0) |
                    (desc.operands & FA_OPERAND_SEQUSED_K ? FA_OPERAND_SEQUSED_Q : 0);
    return desc;
}

std::vector<Write> rotary(const fa_attention_desc_t& given, const fa_rotary_args_t& args) {
    const fa_attention_desc_t desc = turned_half(given, args);
    fa_forward_args_t meta = FA_FORWARD_ARGS_INIT;
    meta.cu_seqlens_q = args.cu_seqlens;
    meta.seqused_q = args.seqused;
    const Reading r(desc, meta);
    Tensor to = r.q_tensor;
    if (!all_zero(args.out_stride)) to.stride = {args.out_stride[0], args.out_stride[1], args.out_stride[2], args.out_stride[3]};
    const bool packed = r.has(FA_OPERAND_CU_SEQLENS_Q);
    const Rotation rotation{args.cos, args.sin, args.rotary_begin, args.rotary_dim, (args.flags & FA_ROTARY_INTERLEAVED) != 0};

    std::vector<Write> out;
    for (int64_t b = 0; b < desc.batch; b++) {
        for (int64_t i = 0; i < r.rows(b); i++) {
            const int64_t row = packed ? args.cu_seqlens[b] + i : i;
            int64_t position = i + (args.position_offset ? args.position_offset[b] : 0);
            if (args.positions) position = args.positions[packed ? row : b * desc.seqlen_q + i];
            for (int64_t h = 0; h < desc.heads_q; h++) {
                const std::vector<double> x = read_head(args.x, r.q(b, h, i), desc.dim_qk, desc.q_dtype);
                for (int64_t c = 0; c < desc.dim_qk; c++) {
                    const Turned t = turn(x, c, position, rotation);
                    out.push_back({args.out, to.at(packed ? 0 : b, row, h) + c, desc.q_dtype, t.value, kUlp * t.size});
                }
            }
        }
    }
    return out;
}

namespace {

// The new tokens as memory, and where each goes.
struct NewTokens {
    const fa_attention_desc_t& d;
    const fa_append_kv_args_t& a;

    int64_t count(int64_t b) const {
        if (a.seqused_new) return a.seqused_new[b];
        return a.cu_seqlens_new ? a.cu_seqlens_new[b + 1] - a.cu_seqlens_new[b] : a.seqlen_new;
    }
    int64_t left_padding(int64_t b) const { return d.operands & FA_OPERAND_LEFTPAD_K ? a.leftpad_k[b] : 0; }
    int64_t slot(int64_t b, int64_t t) const {  // −1: skip
        if (a.positions) return a.positions[a.cu_seqlens_new ? a.cu_seqlens_new[b] + t : b * a.seqlen_new + t];
        return (d.operands & FA_OPERAND_SEQUSED_K ? a.seqused_k[b] : left_padding(b)) + t;
    }
    int64_t at(const int64_t (&given)[4], int64_t b, int64_t t, int64_t head, int64_t heads, int64_t dim) const {
        Tensor tensor{{}, {a.seqlen_new * heads * dim, heads * dim, dim, 1}};
        if (!all_zero(given)) tensor.stride = {given[0], given[1], given[2], given[3]};
        return a.cu_seqlens_new ? tensor.at(0, a.cu_seqlens_new[b] + t, head) : tensor.at(b, t, head);
    }
};

// One head of one token, as it must arrive in the cache: its own dims, and the tail behind them.
struct Arrival {
    void* cache;
    int64_t index;  // of the first value; of blocks, of the first of these
    int32_t dtype;
    void *descale, *shift;  // NULL: none
    int32_t factor_dtype;
    int64_t factor, factor_step, block;  // the first one's index, from one to the next, and dims that share one
    bool dynamic;
};

// Blocks must be what ggml's quantiser writes, to the byte.
void write_blocks(const std::vector<Turned>& x, const Arrival& to, std::vector<Write>& out) {
    std::vector<double> values;
    for (const Turned& t : x) values.push_back(t.value);
    const int64_t count = elements_of(to.dtype);
    for (int64_t c = 0; c < int64_t(values.size()); c += count) {
        const std::vector<unsigned char> bytes = quantised(values.data() + c, to.dtype);
        const int64_t first = (to.index + c / count) * size_of(to.dtype);
        for (size_t n = 0; n < bytes.size(); n++) out.push_back({to.cache, first + int64_t(n), FA_BIT, double(bytes[n]), 0});
    }
}

double f32(double value) { return double(static_cast<float>(value)); }

// A factor or a shift in its type, which has a number for each: no positive factor becomes 0, none becomes infinite.
double as_factor(double value, int32_t dtype, bool is_shift) {
    const double most = dtype == FA_BF16 ? 0x1.fep127 : largest(dtype), least = dtype == FA_F16    ? 0x1p-24
                                                                                : dtype == FA_E4M3 ? 0x1p-9
                                                                                                   : 0x1p-126;
    if (dtype == FA_E8M0) return value <= least ? least : std::fmin(std::exp2(std::ceil(std::log2(value))), most);
    const double nearest = rounded(std::fmin(std::fmax(value, -most), most), dtype);
    return !is_shift && nearest < least ? least : nearest;
}

// Values that share a factor, from the c-th on.
struct Scaling {
    double factor, shift, noise;  // noise: what the factor may be off by in f32, as a part of itself
};
Scaling scale(const std::vector<Turned>& x, size_t c, size_t end, const Arrival& to, std::vector<Write>& out) {
    const int64_t index = to.factor + int64_t(c) / to.block * to.factor_step;
    if (!to.descale) return {1, 0, 0};
    if (!to.dynamic) return {load(to.descale, index, to.factor_dtype), to.shift ? load(to.shift, index, to.factor_dtype) : 0, 0};
    double low = x[c].value, high = low, peak = 0, noise = 0;
    for (size_t n = c; n < end; n++) {
        low = std::fmin(low, x[n].value), high = std::fmax(high, x[n].value);
        peak = std::fmax(peak, std::fabs(x[n].value)), noise = std::fmax(noise, kUlp * x[n].size);
    }
    const double range = to.shift ? f32(high - low) : peak;
    double factor = range == 0 ? 1 : std::fmin(std::fmax(range / largest(to.dtype), 0x1p-126), 0x1.fffffep+127);
    const bool in_f32 = to.factor_dtype != FA_F32 || is_nibble(to.dtype);
    if (in_f32) factor = as_factor(f32(factor), to.factor_dtype, false);
    out.push_back({to.descale, index, to.factor_dtype, factor, in_f32 ? 0 : 2 * kUlp * factor + noise / largest(to.dtype)});
    if (!to.shift) return {factor, 0, peak > 0 ? noise / peak : 0};
    const double shift = as_factor(low, to.factor_dtype, true);
    out.push_back({to.shift, index, to.factor_dtype, shift, 0});
    return {factor, shift, 0};
}

void write_head(const std::vector<Turned>& x, const Arrival& to, std::vector<Write>& out) {
    if (is_block(to.dtype)) return write_blocks(x, to, out);
    const bool narrow = size_of(to.dtype) == 1;
    for (size_t c = 0, end; c < x.size(); c = end) {
        end = std::min(x.size(), c + size_t(to.block));
        const Scaling s = scale(x, c, end, to, out);
        for (size_t n = c; n < end; n++) {
            const double value = (x[n].value - s.shift) / s.factor;
            const double division = narrow || to.descale ? 4 * kUlp * (std::fabs(value) + std::fabs(s.shift / s.factor)) : 0;
            const double turned = kUlp * x[n].size / std::fabs(s.factor) + s.noise * std::fabs(value);
            out.push_back({to.cache, to.index + int64_t(n), to.dtype, value, division + turned});
        }
    }
}

}  // namespace

std::vector<Write> append_kv(const fa_attention_desc_t& desc, const fa_append_kv_args_t& args) {
    fa_forward_args_t meta = FA_FORWARD_ARGS_INIT;
    meta.kv_batch_idx = args.kv_batch_idx;
    meta.page_table = args.page_table;
    fa_attention_desc_t plain = desc;  // places are asked for by slot, so left padding must not be added again
    plain.operands &= ~uint32_t(FA_OPERAND_LEFTPAD_K | FA_OPERAND_CU_SEQLENS_K);
    const Reading r(plain, meta);
    const NewTokens tokens{desc, args};
    const Rotation rotation{args.cos, args.sin, args.rotary_begin, args.rotary_dim, (args.flags & FA_ROTARY_INTERLEAVED) != 0};
    const Rotation none{};

    std::vector<Write> out;
    for (int64_t b = 0; b < desc.batch; b++) {
        for (int64_t t = 0; t < tokens.count(b); t++) {
            const int64_t slot = tokens.slot(b, t);
            if (slot < 0) continue;
            for (const bool is_k : {true, false}) {
                if (!is_k && r.v_in_k()) continue;
                const int64_t dim = is_k ? desc.dim_qk : r.dim_v, heads = is_k ? r.heads_k : r.heads_v;
                const int32_t dtype = is_k ? r.k_dtype : r.v_dtype;
                const Reading::Factors& factors = is_k ? r.k_factors : r.v_factors;
                const bool dynamic = args.flags & FA_APPEND_DYNAMIC_SCALE && size_of(dtype) == 1;
                const bool exact = elements_of(dtype) > 1 || (dynamic && factors.dtype != FA_F32);  // what decides is the f32
                for (int64_t head = 0; head < heads; head++) {
                    const int64_t from = tokens.at(is_k ? args.k_new_stride : args.v_new_stride, b, t, head, heads, dim);
                    const std::vector<double> x = read_head(is_k ? args.k_new : args.v_new, from, dim, desc.q_dtype);
                    std::vector<Turned> own, tail;
                    for (int64_t c = 0; c < dim; c++) {
                        const bool behind = is_k && c >= r.own_k;
                        (behind ? tail : own)
                            .push_back(turn(x, c, slot - tokens.left_padding(b), is_k ? rotation : none, !behind && exact));
                    }
                    Arrival to{};
                    to.cache = is_k ? args.k : args.v;
                    to.index = is_k ? r.k(b, head, slot) : r.v(b, head, slot);
                    if (is_nibble(dtype)) to.index *= 2;
                    to.dtype = dtype;
                    to.descale = !(desc.operands & (is_k ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE)) ? nullptr
                                 : is_k                                                                  ? args.k_descale
                                                                                                         : args.v_descale;
                    to.shift = !(desc.operands & (is_k ? FA_OPERAND_K_SHIFT : FA_OPERAND_V_SHIFT)) ? nullptr
                               : is_k                                                              ? args.k_shift
                                                                                                   : args.v_shift;
                    to.factor_dtype = factors.dtype;
                    to.factor = is_k ? r.k_descale(b, head, slot) : r.v_descale(b, head, slot);
                    to.factor_step = factors.tensor.stride[3];
                    to.block = factors.dims;
                    to.dynamic = dynamic;
                    write_head(own, to, out);
                    if (tail.empty()) continue;
                    Arrival behind{};
                    behind.cache = args.k_tail, behind.index = r.k_tail(b, head, slot), behind.dtype = r.k_tail_dtype,
                    behind.block = desc.dim_tail;
                    write_head(tail, behind, out);
                }
            }
        }
    }
    return out;
}

}  // namespace oracle
