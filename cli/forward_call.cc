#include "forward_call.h"
#include <algorithm>

namespace tool {
namespace {

constexpr uint64_t kCaseSeed = 0x5eed;
constexpr double kIntegerUnit = 40;  // int8 holds normal numbers times this; the de-scale factors are about its inverse

const int32_t* data_of(const std::vector<int32_t>& list) { return list.empty() ? nullptr : list.data(); }

}  // namespace

// Memory whose bytes are 0xff: NaN in every float type.
template <class T>
T* ForwardCall::room(int64_t elements, int64_t element_bytes) {
    memory_.emplace_back(size_t(std::max<int64_t>(elements, 1) * element_bytes), static_cast<unsigned char>(0xff));
    return reinterpret_cast<T*>(memory_.back().data());
}

const float* ForwardCall::floats(int64_t count, double low, double high) {
    float* values = room<float>(count);
    for (int64_t i = 0; i < count; ++i) values[i] = float(rng_.uniform(low, high));
    return values;
}

const void* ForwardCall::factors(const oracle::Reading::Factors& factors, double low, double high) {
    const int64_t count = factors.tensor.extent();
    char* values = room<char>(count, oracle::size_of(factors.dtype));
    for (int64_t i = 0; i < count; ++i) oracle::store(values, i, factors.dtype, rng_.uniform(low, high));
    return values;
}

ForwardCall::ForwardCall(const ForwardCase& test_case) : case_(test_case), rng_(kCaseSeed) {
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.cu_seqlens_q = data_of(test_case.cu_q);
    a.cu_seqlens_k = data_of(test_case.cu_k);
    a.seqused_q = data_of(test_case.used_q);
    a.seqused_k = data_of(test_case.used_k);
    a.leftpad_k = data_of(test_case.leftpad);
    a.kv_batch_idx = data_of(test_case.kv_index);
    a.page_table = data_of(test_case.pages);
    a.causal_offset = data_of(test_case.offsets);
    if (test_case.d.dropout_p > 0) {
        a.dropout_seed = kCaseSeed;
        a.dropout_offset = 7;
    }
    const oracle::Reading shape(test_case.d, a);
    a.q = room<char>(shape.q_tensor.extent(), oracle::size_of(shape.q_dtype));
    a.k = room<char>(shape.k_tensor.extent(), oracle::size_of(shape.k_dtype));
    if (!shape.v_in_k()) a.v = room<char>(shape.v_tensor.extent(), oracle::size_of(shape.v_dtype));
    a.o = room<char>(shape.o_tensor.extent(), oracle::size_of(shape.o_dtype));
    make_operands(shape, a);
    reading_ = std::make_unique<oracle::Reading>(test_case.d, a);
    fill_tensors();
}

void ForwardCall::make_operands(const oracle::Reading& shape, fa_forward_args_t& args) {
    const fa_attention_desc_t& d = shape.d;
    if (shape.has(FA_OPERAND_LSE)) args.lse = room<float>(shape.lse_tensor.extent());
    if (shape.has(FA_OPERAND_SCORES)) args.scores = room<float>(shape.scores_tensor.extent());
    if (shape.has(FA_OPERAND_BIAS)) {
        const int64_t count = shape.bias_tensor.extent();
        char* bias = room<char>(count, oracle::size_of(shape.bias_dtype));
        for (int64_t i = 0; i < count; ++i) oracle::store(bias, i, shape.bias_dtype, rng_.chance(0.1) ? -INFINITY : rng_.normal());
        args.bias = bias;
    }
    if (shape.has(FA_OPERAND_BIAS_SCALE)) {
        float* scale = room<float>(d.heads_q);
        if (fa_alibi_slopes(d.heads_q, 0, scale) != FA_OK) fail(fa_last_error(nullptr));
        args.bias_scale = scale;
    }
    if (shape.has(FA_OPERAND_MASK)) {
        const int64_t count = shape.mask_tensor.extent();
        uint8_t* mask = room<uint8_t>(count);
        for (int64_t i = 0; i < count; ++i) mask[i] = rng_.chance(0.7);
        args.mask = mask;
    }
    if (shape.has(FA_OPERAND_ALIBI)) {
        float* slopes = room<float>(d.heads_q);
        if (fa_alibi_slopes(d.heads_q, 0, slopes) != FA_OK) fail(fa_last_error(nullptr));
        args.alibi_slopes = slopes;
    }
    if (shape.has(FA_OPERAND_SINKS)) args.sinks = floats(d.heads_q, -1, 3);
    if (shape.has(FA_OPERAND_O_SCALE)) args.o_scale = floats(1, 2, 3);
    const double unit = shape.k_dtype == FA_I8 ? kIntegerUnit : 1;
    if (shape.has(FA_OPERAND_Q_DESCALE)) args.q_descale = factors(shape.q_factors, 0.5, 1.5);
    if (shape.has(FA_OPERAND_K_DESCALE)) args.k_descale = factors(shape.k_factors, 0.5 / unit, 1.5 / unit);
    if (shape.has(FA_OPERAND_V_DESCALE)) args.v_descale = factors(shape.v_factors, 0.5 / unit, 1.5 / unit);
    if (shape.has(FA_OPERAND_K_SHIFT)) args.k_shift = factors(shape.k_factors, -1, 1);
    if (shape.has(FA_OPERAND_V_SHIFT)) args.v_shift = factors(shape.v_factors, -1, 1);
}

double ForwardCall::key_value(int64_t j) {
    switch (case_.data) {
        case Data::ascending: return 0.1 * double(j);  // q is 1
        case Data::one_huge: return j == 3 ? 100 : rng_.normal();
        case Data::steep: return 100 * rng_.normal();
        default: return rng_.normal();
    }
}

double ForwardCall::value_value(int64_t j, int64_t c) {
    switch (case_.data) {
        case Data::counting: return c == j % reading_->dim_v ? 1 : 0;
        case Data::limit: return (rng_.chance(0.5) ? 0.9 : -0.9) * oracle::largest(reading_->v_dtype);
        default: return rng_.normal();
    }
}

// Only rows and keys within the valid lengths get numbers.
void ForwardCall::fill_tensors() {
    const oracle::Reading& r = *reading_;
    const auto unit = [](int32_t dtype) { return dtype == FA_I8 ? kIntegerUnit : 1; };
    std::vector<double> row_k(size_t(r.d.dim_qk)), row_v(size_t(r.dim_v));
    void* const q = const_cast<void*>(r.a.q);
    void* const k = const_cast<void*>(r.a.k);
    void* const v = const_cast<void*>(r.a.v);
    for (int64_t b = 0; b < r.d.batch; ++b) {
        for (int64_t h = 0; h < r.d.heads_q; ++h)
            for (int64_t i = 0; i < r.rows(b); ++i)
                for (int64_t c = 0; c < r.d.dim_qk; ++c) {
                    const double x = case_.data == Data::counting ? 0 : case_.data == Data::ascending ? 1 : rng_.normal();
                    oracle::store(q, r.q(b, h, i) + c, r.q_dtype, case_.data == Data::steep ? 100 * x : x);
                }
        for (int64_t j = 0; j < r.keys(b); ++j) {
            for (int64_t h = 0; h < r.heads_k; ++h) {
                for (double& x : row_k) x = unit(r.k_dtype) * key_value(j);
                oracle::store_row(k, r.k(b, h, j), r.k_dtype, row_k);
            }
            for (int64_t h = 0; h < r.heads_v && v; ++h) {
                for (int64_t c = 0; c < r.dim_v; ++c) row_v[size_t(c)] = unit(r.v_dtype) * value_value(j, c);
                oracle::store_row(v, r.v(b, h, j), r.v_dtype, row_v);
            }
        }
    }
}

void ForwardCall::spoil_outputs() {
    const oracle::Reading& r = *reading_;
    const auto spoil = [](void* data, int64_t elements, int64_t size) {
        if (data) std::fill_n(static_cast<unsigned char*>(data), elements * size, static_cast<unsigned char>(0xff));
    };
    spoil(r.a.o, r.o_tensor.extent(), oracle::size_of(r.o_dtype));
    spoil(r.a.lse, r.lse_tensor.extent(), sizeof(float));
    spoil(r.a.scores, r.scores_tensor.extent(), sizeof(float));
}

}  // namespace tool
