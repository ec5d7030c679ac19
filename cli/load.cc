#include "load.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include "oracle/oracle.h"

namespace tool {
namespace {

constexpr double kGpuCachesHold = 320e6, kCpuCachesHold = 1e9;  // bytes: a GPU's L2 has up to 60 MB, a server's L3 up to 500
constexpr uint64_t kSeed = 7;

struct Sizes {
    uint64_t q, k, v, o;  // bytes; of k and v in one set, rounded up so that each set is as well aligned as the first
    uint64_t lse = 0, gradients = 0;
    int64_t sets;
    Sizes(const Load& load, int32_t backend) {
        const oracle::Reading r(load.desc, fa_forward_args_t FA_FORWARD_ARGS_INIT);
        const auto bytes = [](const oracle::Tensor& tensor, int32_t dtype) { return uint64_t(tensor.extent() * oracle::size_of(dtype)); };
        q = bytes(r.q_tensor, r.q_dtype);
        k = aligned(bytes(r.k_tensor, r.k_dtype));
        v = aligned(bytes(r.v_tensor, r.v_dtype));
        o = bytes(r.o_tensor, r.o_dtype);
        const double caches = backend == FA_BACKEND_CPU ? kCpuCachesHold : kGpuCachesHold;
        if (load.backward) lse = bytes(r.lse_tensor, FA_F32), gradients = q + k + v + o;  // of dout, too
        sets = load.cold && k + v > 0 ? std::max<int64_t>(1, int64_t(std::ceil(caches / double(k + v)))) : 1;
    }
    static uint64_t aligned(uint64_t size) { return (size + 255) / 256 * 256; }
};

float unit_of(int32_t dtype) { return dtype == FA_I8 ? 40 : 1; }  // int8 holds normal numbers times this

}  // namespace

double flops_of(const Load& load) {
    const fa_attention_desc_t& d = load.desc;
    const bool windowed = d.flags & FA_WINDOW, causal = (d.flags & FA_CAUSAL) || load.triangle;
    const auto pairs = [&](int64_t rows, int64_t keys) {
        const int64_t off = d.alignment == FA_ALIGN_BOTTOM_RIGHT ? keys - rows : 0;
        const int64_t left = windowed ? d.window_left : -1, right = causal ? 0 : windowed ? d.window_right : -1;
        double sum = 0;
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t first = left < 0 ? 0 : std::max<int64_t>(0, i + off - left);
            const int64_t last = right < 0 ? keys - 1 : std::min(keys - 1, i + off + right);
            sum += double(std::max<int64_t>(0, last - first + 1));
        }
        return sum;
    };
    double all = 0;
    for (const int32_t length : load.lengths) all += pairs(length, length);
    if (load.lengths.empty()) all = double(d.batch) * pairs(d.seqlen_q, d.seqlen_k);
    const int64_t dim_v = d.dim_v ? d.dim_v : d.dim_qk;
    return 2 * all * double(d.heads_q) * double(load.backward ? 3 * d.dim_qk + 2 * dim_v : d.dim_qk + dim_v);
}

double cache_bytes_of(const Load& load) {
    const fa_attention_desc_t& d = load.desc;
    const oracle::Reading r(d, fa_forward_args_t FA_FORWARD_ARGS_INIT);
    const auto row = [](const oracle::Tensor& tensor, int32_t dtype) {
        return double(tensor.count[2] * tensor.count[3] * oracle::size_of(dtype));
    };
    const double keys = load.lengths.empty() ? double(d.batch) * double(d.seqlen_k) : double(d.total_k);
    return keys * (row(r.k_tensor, r.k_dtype) + row(r.v_tensor, r.v_dtype));
}

double bytes_of(const Load& load, int32_t backend) {
    const Sizes s(load, backend);
    return double(s.q) + double(s.o) + double(s.sets) * double(s.k + s.v) + double(s.lse) + double(s.gradients);
}

Tensors::Tensors(Handle& handle, const Load& load) : handle_(handle), load_(load), rng_(kSeed) {
    const oracle::Reading r(load.desc, args_);
    const Sizes sizes(load, handle.backend());
    k_bytes_ = sizes.k;
    v_bytes_ = sizes.v;
    args_.q = numbers(sizes.q, r.q_dtype);
    args_.o = room(sizes.o);
    std::byte* const k = numbers(sizes.k * uint64_t(sizes.sets), r.k_dtype);
    std::byte* const v = numbers(sizes.v * uint64_t(sizes.sets), r.v_dtype);
    for (int64_t set = 0; set < sizes.sets; ++set) sets_.push_back({k + sizes.k * uint64_t(set), v + sizes.v * uint64_t(set)});
    make_operands();
    if (load.backward) args_.lse = static_cast<float*>(room(sizes.lse));
    args_.workspace = workspace(FA_OP_FORWARD, &args_.workspace_size);
    if (load.backward) make_backward();
}

void* Tensors::workspace(int32_t op, uint64_t* size) {
    handle_.check(fa_workspace_size(handle_, &load_.desc, op, size));
    return room(*size);
}

// Of one set of k and v, with the forward that goes before it.
void Tensors::make_backward() {
    const Sizes sizes(load_, handle_.backend());
    const oracle::Reading r(load_.desc, args_);
    fa_backward_args_t& a = backward_args_;
    args_.k = sets_[0].k, args_.v = sets_[0].v;
    handle_.check(fa_forward_ex(handle_, &load_.desc, &args_));
    a.forward = &args_;
    a.dout = numbers(sizes.o, r.q_dtype);
    a.dq = room(sizes.q), a.dk = room(sizes.k), a.dv = room(sizes.v);
    a.workspace = workspace(FA_OP_BACKWARD, &a.workspace_size);
}

void Tensors::make_operands() {
    const fa_attention_desc_t& d = load_.desc;
    const oracle::Reading r(d, args_);
    if (r.has(FA_OPERAND_PAGE_TABLE)) args_.page_table = copied(shuffled_pages());
    if (r.has(FA_OPERAND_K_DESCALE)) args_.k_descale = copied(std::vector<float>{1 / unit_of(r.k_dtype)});
    if (r.has(FA_OPERAND_V_DESCALE)) args_.v_descale = args_.k_descale;
    if (r.has(FA_OPERAND_BIAS)) args_.bias = numbers(uint64_t(r.bias_tensor.extent()) * sizeof(float), FA_F32);
    if (r.has(FA_OPERAND_MASK)) args_.mask = copied(mask());
    if (r.has(FA_OPERAND_SINKS)) args_.sinks = reinterpret_cast<float*>(numbers(uint64_t(d.heads_q) * sizeof(float), FA_F32));
    if (r.has(FA_OPERAND_ALIBI)) {
        std::vector<float> slopes(size_t(d.heads_q));
        if (fa_alibi_slopes(d.heads_q, 0, slopes.data()) != FA_OK) fail(fa_last_error(nullptr));
        args_.alibi_slopes = copied(slopes);
    }
    if (r.has(FA_OPERAND_CU_SEQLENS_Q)) {
        std::vector<int32_t> offsets = {0};
        for (const int32_t length : load_.lengths) offsets.push_back(offsets.back() + length);
        args_.cu_seqlens_q = args_.cu_seqlens_k = copied(offsets);
    }
}

void Tensors::call() {
    if (load_.backward) return handle_.check(fa_backward(handle_, &load_.desc, &backward_args_));
    const Set& set = sets_[turn++ % sets_.size()];
    args_.k = set.k;
    args_.v = set.v;
    handle_.check(fa_forward_ex(handle_, &load_.desc, &args_));
}

std::vector<std::vector<Stretch>> Tensors::sets() const {
    std::vector<std::vector<Stretch>> sets;
    for (const Set& set : sets_) sets.push_back({{set.k, k_bytes_}, {set.v, v_bytes_}});
    return sets;
}

void* Tensors::room(uint64_t bytes) {
    memory_.push_back(std::make_unique<DeviceMemory>(handle_, bytes));
    return memory_.back()->get();
}

template <class T>
T* Tensors::copied(const std::vector<T>& values) {
    void* to = room(values.size() * sizeof(T));
    handle_.check(fa_copy(handle_, to, values.data(), values.size() * sizeof(T)));
    return static_cast<T*>(to);
}

// Normal numbers: what a processor draws depends on its data. They repeat, because drawing so many takes longer than all else.
std::byte* Tensors::numbers(uint64_t bytes, int32_t dtype) {
    constexpr int64_t kDrawn = 1 << 18;
    const uint64_t size = uint64_t(oracle::size_of(dtype));
    const int64_t elements = oracle::elements_of(dtype);
    std::vector<std::byte> values(std::min(bytes, kDrawn / uint64_t(elements) * size));
    std::vector<double> unit(static_cast<size_t>(elements));
    for (int64_t i = 0; i < int64_t(values.size() / size); ++i) {
        for (double& x : unit) x = unit_of(dtype) * rng_.normal();
        oracle::store_row(values.data(), i, dtype, unit);
    }
    std::byte* to = static_cast<std::byte*>(room(bytes));
    for (uint64_t done = 0; done < bytes; done += values.size())
        handle_.check(fa_copy(handle_, to + done, values.data(), std::min<uint64_t>(values.size(), bytes - done)));
    return to;
}

std::vector<int32_t> Tensors::shuffled_pages() {
    std::vector<int32_t> pages(size_t(load_.desc.num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t n = pages.size(); n > 1; --n) std::swap(pages[n - 1], pages[size_t(rng_.between(0, int64_t(n) - 1))]);
    return pages;
}

// [row][key], of every sequence and head.
std::vector<uint8_t> Tensors::mask() {
    const fa_attention_desc_t& d = load_.desc;
    std::vector<uint8_t> kept(size_t(d.seqlen_q * d.seqlen_k));
    for (int64_t i = 0; i < d.seqlen_q; ++i)
        for (int64_t j = 0; j < d.seqlen_k; ++j) kept[size_t(i * d.seqlen_k + j)] = load_.triangle ? j <= i : rng_.chance(0.7);
    return kept;
}

}  // namespace tool
