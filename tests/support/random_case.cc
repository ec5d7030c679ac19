#include "support/random_case.h"
#include <algorithm>
#include <limits>
#include <numeric>

namespace test {
namespace {

struct Family {
    bool differentiable, all_f32;
    int64_t most_products, most_elements;  // of one case
};

// So that tens of thousands fit into a minute.
constexpr Family kForward = {false, false, 300'000, 30'000}, kDifferentiable = {true, false, 150'000, 15'000};
constexpr Family kTiny = {true, true, 1'500, 600};

class Generator {
  public:
    Generator(uint64_t seed, const Family& family) : rng(seed), family(family) { c.seed = seed; }

    Case make() {
        types();
        sizes();
        rows();
        keys();
        positions();
        scores();
        schedule();
        lists();
        layouts();
        c.bind(rng);
        data();
        precision();
        return std::move(c);
    }

  private:
    Rng rng;
    const Family& family;
    Case c;
    fa_attention_desc_t& d = c.d;
    Metadata& m = c.metadata;
    int32_t k_dtype = 0, v_dtype = 0;
    bool narrow_o = false;

    bool has(uint64_t operand) const { return (d.operands & operand) != 0; }
    bool v_in_k() const { return (d.flags & FA_V_IN_K) != 0; }
    bool of_slots() const { return d.list_space == FA_LIST_SLOTS; }
    void want(double p, uint64_t operand) { d.operands |= rng.chance(p) ? operand : 0; }

    int32_t o_type() {
        return family.all_f32          ? int32_t(FA_F32)
               : family.differentiable ? rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16})
                                       : rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2});
    }

    int32_t kv_type() {
        const double which = family.differentiable ? 1 : rng.uniform();
        if (which < 0.3) return rng.pick<int32_t>({FA_Q4_0, FA_Q4_1, FA_Q5_0, FA_Q5_1, FA_Q8_0});
        if (which < 0.42) return rng.pick<int32_t>({FA_E2M1, FA_I4, FA_U4});
        return which < 0.55 ? int32_t(FA_I8) : o_type();
    }

    void types() {
        d.q_dtype = rng.chance(0.3) ? int32_t(FA_F32) : o_type();
        if (rng.chance(0.4)) d.k_dtype = kv_type();
        if (!family.differentiable && rng.chance(0.08)) d.flags |= FA_V_IN_K;
        else if (!family.differentiable && rng.chance(0.25)) d.v_dtype = kv_type();
        if (rng.chance(0.5)) d.o_dtype = o_type();
        k_dtype = d.k_dtype ? d.k_dtype : d.q_dtype, v_dtype = d.v_dtype ? d.v_dtype : k_dtype;
        narrow_o = d.o_dtype == FA_E4M3 || d.o_dtype == FA_E5M2;
        if (family.differentiable) return;
        want(oracle::size_of(d.q_dtype) == 1 ? 0.5 : 0.05, FA_OPERAND_Q_DESCALE);
        want(factor_chance(k_dtype), FA_OPERAND_K_DESCALE);
        if (!v_in_k()) want(factor_chance(v_dtype), FA_OPERAND_V_DESCALE);
        want(narrow_o ? 0.5 : 0.1, FA_OPERAND_O_SCALE);
    }

    static double factor_chance(int32_t dtype) {
        if (oracle::is_block(dtype)) return 0;
        return dtype == FA_I8 ? 1 : oracle::is_nibble(dtype) ? 0.8 : oracle::size_of(dtype) == 1 ? 0.5 : 0.06;
    }

    // Types and blocks of factors, and shifts: often those of one f32 a row, which more kernels know.
    void factors(uint64_t factor, uint64_t shift, int32_t& dtype, int64_t (&block)[2]) {
        if (!has(factor) || rng.chance(0.4)) return;
        dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E8M0, 0});
        if (rng.chance(0.4)) block[0] = rng.pick<int64_t>({1, 2, 7, 32, 128, std::numeric_limits<int64_t>::max()});
        if (rng.chance(0.6)) block[1] = rng.pick<int64_t>({1, 3, 8, 16, 32, 64, 128, std::numeric_limits<int64_t>::max()});
        if (shift && dtype != FA_E8M0) want(0.4, shift);
    }

    void tails() {
        if (family.differentiable || d.dim_qk < 2 || !rng.chance(0.12)) return;
        d.operands |= rng.pick<uint64_t>({FA_OPERAND_Q_TAIL, FA_OPERAND_K_TAIL, FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL});
        d.dim_tail = rng.between(1, d.dim_qk - 1);
        const int64_t own = d.dim_qk - d.dim_tail;
        if (has(FA_OPERAND_K_TAIL)) d.dim_tail = d.dim_qk - whole_blocks(own, k_dtype);
        if (d.dim_tail == 0) d.dim_tail = 1, d.dim_qk++;  // one block, and a dim
        if (has(FA_OPERAND_Q_TAIL)) d.q_tail_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
        if (has(FA_OPERAND_K_TAIL)) d.k_tail_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
    }

    int64_t dimension() {
        const double which = rng.uniform();
        if (which < 0.55) return rng.between(1, 40);
        if (which < 0.8) return rng.pick<int64_t>({8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256});
        return which < 0.985 ? rng.between(1, 320) : rng.between(320, 1024);
    }

    static int64_t whole_blocks(int64_t dim, int32_t dtype) {
        const int64_t elements = oracle::elements_of(dtype);
        return (dim + elements - 1) / elements * elements;
    }

    // Units of k, or all of them and dims of its tail.
    int64_t dims_within_k() {
        const int64_t own = d.dim_qk - (has(FA_OPERAND_K_TAIL) ? d.dim_tail : 0), dims = rng.between(1, d.dim_qk);
        return dims < own ? whole_blocks(dims, k_dtype) : dims;
    }

    void sizes() {
        d.dim_qk = whole_blocks(dimension(), k_dtype);
        tails();
        if (rng.chance(0.3) || d.dim_qk % oracle::elements_of(v_dtype) != 0)
            d.dim_v = v_in_k() ? dims_within_k() : whole_blocks(dimension(), v_dtype);
        factors(FA_OPERAND_Q_DESCALE, 0, d.q_descale_dtype, d.q_descale_block);
        factors(FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT, d.k_descale_dtype, d.k_descale_block);
        factors(FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT, d.v_descale_dtype, d.v_descale_block);
        const int64_t heads_k = rng.between(1, 3), group = rng.chance(0.5) ? 1 : rng.between(2, 5);
        const int64_t heads_v = !family.differentiable && !v_in_k() && rng.chance(0.15) ? rng.between(1, 3) : heads_k;
        d.heads_q = std::lcm(heads_k, heads_v) * group;
        if (d.heads_q != heads_k || rng.chance(0.3)) d.heads_k = heads_k;
        if (heads_v != heads_k || (!v_in_k() && rng.chance(0.1))) d.heads_v = heads_v;
        d.batch = rng.chance(0.01) ? 0 : rng.between(1, 4);
        switch (rng.between(0, 4)) {
            case 0: d.seqlen_q = rng.between(0, 4), d.seqlen_k = rng.between(0, 400); break;    // decoding
            case 1: d.seqlen_q = rng.between(0, 150), d.seqlen_k = rng.between(0, 150); break;  // across tiles
            case 2: d.seqlen_q = rng.between(0, 90), d.seqlen_k = rng.between(0, 8); break;     // few keys
            default: d.seqlen_q = rng.between(0, 24), d.seqlen_k = rng.between(0, 40); break;
        }
        const int64_t dims = d.dim_qk + (d.dim_v ? d.dim_v : d.dim_qk);
        auto too_big = [&] {
            const int64_t elements = d.batch * (d.heads_q * d.seqlen_q + std::max(heads_k, heads_v) * d.seqlen_k) * dims;
            return d.batch * d.heads_q * d.seqlen_q * d.seqlen_k * dims > family.most_products || elements > family.most_elements;
        };
        while (too_big() && d.batch > 1) d.batch--;
        while (too_big()) d.seqlen_q = d.seqlen_q * 3 / 4, d.seqlen_k = d.seqlen_k * 3 / 4;
    }

    std::vector<int32_t> lengths(int64_t longest) {
        std::vector<int32_t> values;
        for (int64_t b = 0; b < d.batch; b++)
            values.push_back(int32_t(rng.chance(0.1) ? 0 : rng.chance(0.3) ? longest : rng.between(0, longest)));
        return values;
    }

    // Packed lengths: begins anywhere, ends before the total.
    int64_t pack(const std::vector<int32_t>& lengths, std::vector<int32_t>& cu) {
        cu = {int32_t(rng.chance(0.5) ? 0 : rng.between(1, 4))};
        for (const int32_t length : lengths) cu.push_back(cu.back() + length);
        return cu.back() + (rng.chance(0.5) ? 0 : rng.between(1, 4));
    }

    std::vector<int32_t> within(const std::vector<int32_t>& limits) {
        std::vector<int32_t> values;
        for (const int32_t limit : limits) values.push_back(int32_t(rng.chance(0.2) ? limit : rng.between(0, limit)));
        return values;
    }

    void rows() {
        want(0.3, FA_OPERAND_CU_SEQLENS_Q);
        want(0.25, FA_OPERAND_SEQUSED_Q);
        std::vector<int32_t> room(size_t(d.batch), int32_t(d.seqlen_q));
        if (has(FA_OPERAND_CU_SEQLENS_Q)) {
            room = lengths(d.seqlen_q);
            d.total_q = pack(room, m.cu_seqlens_q);
        }
        if (has(FA_OPERAND_SEQUSED_Q)) m.seqused_q = within(room);
    }

    // Lists of slots of a cache of no more than the keys, which they are in place of.
    void slots() {
        d.list_space = FA_LIST_SLOTS;
        d.operands |= FA_OPERAND_KEY_LIST;
        d.page_size = rng.pick<int64_t>({1, 2, 5, 16, 64}), d.num_pages = d.seqlen_k / d.page_size;
        if (rng.chance(0.5)) d.seqlen_k = rng.between(0, 99);  // not read
        if (rng.chance(0.3)) d.list_keys = 1;
    }
    int64_t entries_to_choose_from() const {
        const int64_t keys = d.list_keys ? d.list_keys : 1;
        return of_slots() ? d.num_pages * d.page_size : (d.seqlen_k + keys - 1) / keys;
    }

    void keys() {
        if (!family.differentiable && rng.chance(0.06)) return slots();
        const double kind = rng.uniform();
        if (kind < 0.25) d.operands |= FA_OPERAND_CU_SEQLENS_K;
        else if (kind < 0.55 && !family.differentiable) d.operands |= FA_OPERAND_PAGE_TABLE;
        if (!has(FA_OPERAND_CU_SEQLENS_K)) want(family.differentiable ? 0 : 0.25, FA_OPERAND_KV_BATCH_IDX);
        want(has(FA_OPERAND_PAGE_TABLE) ? 0.7 : 0.35, FA_OPERAND_SEQUSED_K);
        want(0.2, FA_OPERAND_LEFTPAD_K);

        std::vector<int32_t> room(size_t(d.batch), int32_t(d.seqlen_k));
        if (has(FA_OPERAND_CU_SEQLENS_K)) {
            room = lengths(d.seqlen_k);
            d.total_k = pack(room, m.cu_seqlens_k);
        }
        if (has(FA_OPERAND_SEQUSED_K)) m.seqused_k = room = within(room);
        if (has(FA_OPERAND_LEFTPAD_K)) m.leftpad_k = within(room);
        if (has(FA_OPERAND_KV_BATCH_IDX)) {
            d.kv_batch = d.batch + rng.between(0, 2);
            for (int64_t b = 0; b < d.batch; b++) m.kv_batch_idx.push_back(int32_t(rng.between(0, d.kv_batch - 1)));
        }
        if (has(FA_OPERAND_PAGE_TABLE)) pages(room);
    }

    // Shuffled pages; entries without a valid key hold nonsense.
    void pages(const std::vector<int32_t>& used) {
        d.page_size = rng.pick<int64_t>({1, 2, 3, 5, 8, 13, 16, 32, 64});
        const int64_t columns = (d.seqlen_k + d.page_size - 1) / d.page_size;
        if (rng.chance(0.4)) d.page_table_stride = columns + rng.between(columns == 0 ? 1 : 0, 3);
        const int64_t stride = d.page_table_stride ? d.page_table_stride : columns;
        const int64_t owners = has(FA_OPERAND_KV_BATCH_IDX) ? d.kv_batch : d.batch;

        d.num_pages = owners * columns + rng.between(1, 3);
        std::vector<int32_t> ids(static_cast<size_t>(d.num_pages));
        std::iota(ids.begin(), ids.end(), 0);
        for (size_t n = ids.size(); n > 1; n--) std::swap(ids[n - 1], ids[size_t(rng.between(0, int64_t(n) - 1))]);

        m.page_table.resize(size_t(owners * stride));
        for (int32_t& entry : m.page_table)
            entry = rng.pick<int32_t>({-1, 1 << 30, std::numeric_limits<int32_t>::min(), int32_t(d.num_pages)});
        size_t next = 0;
        for (int64_t b = 0; b < d.batch; b++) {
            const int64_t owner = has(FA_OPERAND_KV_BATCH_IDX) ? m.kv_batch_idx[size_t(b)] : b;
            const int64_t first = has(FA_OPERAND_LEFTPAD_K) ? m.leftpad_k[size_t(b)] : 0;
            for (int64_t page = first / d.page_size; first < used[size_t(b)] && page * d.page_size < used[size_t(b)]; page++) {
                int32_t& entry = m.page_table[size_t(owner * stride + page)];
                if (entry < 0 || entry >= d.num_pages) entry = ids[next++];
            }
        }
    }

    void positions() {
        if (of_slots()) return;
        if (rng.chance(0.35)) d.flags |= FA_CAUSAL;
        if (rng.chance(0.25)) {
            d.flags |= FA_WINDOW;
            d.window_left = rng.chance(0.25) ? -1 : rng.between(0, d.seqlen_k / 2 + 2);
            d.window_right = rng.chance(0.25) ? -1 : rng.between(0, d.seqlen_k / 2 + 2);
        }
        if (rng.chance(0.12)) d.chunk = rng.between(1, d.seqlen_k + 3);
        want(0.15, FA_OPERAND_ALIBI);
        const bool needed = d.flags & (FA_CAUSAL | FA_WINDOW) || d.chunk > 0 || has(FA_OPERAND_ALIBI);
        if (!needed && rng.chance(0.8)) return;
        d.alignment = rng.pick<int32_t>({FA_ALIGN_TOP_LEFT, FA_ALIGN_BOTTOM_RIGHT, FA_ALIGN_EXPLICIT});
        if (d.alignment != FA_ALIGN_EXPLICIT) return;
        d.operands |= FA_OPERAND_CAUSAL_OFFSET;
        for (int64_t b = 0; b < d.batch; b++) m.causal_offset.push_back(int32_t(rng.between(-d.seqlen_q - 2, d.seqlen_k + 2)));
    }

    // A bias or mask of fewer sequences or heads, now and then.
    void repeat(int64_t (&period)[2]) {
        if (rng.chance(0.25)) period[0] = rng.between(1, 4);
        if (rng.chance(0.25)) period[1] = rng.between(1, d.heads_q + 1);
    }

    void scores() {
        if (rng.chance(0.35)) {
            d.flags |= FA_SCALE_EXPLICIT;
            d.scale = rng.chance(0.1) ? 0.f : float(rng.uniform(-2, 2) / std::sqrt(double(d.dim_qk)));
        }
        if (rng.chance(0.2)) d.softcap = float(rng.uniform(0.3, 40));
        want(0.15, FA_OPERAND_SINKS);
        want(family.differentiable ? 1 : 0.6, FA_OPERAND_LSE);
        if (of_slots()) return;
        want(0.2, FA_OPERAND_BIAS);
        if (has(FA_OPERAND_BIAS) && rng.chance(0.6))
            d.bias_dtype = family.all_f32 ? int32_t(FA_F32) : rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
        if (has(FA_OPERAND_BIAS)) want(0.4, FA_OPERAND_BIAS_SCALE), repeat(d.bias_period);
        want(0.2, FA_OPERAND_MASK);
        if (has(FA_OPERAND_MASK)) {
            repeat(d.mask_period);
            if (rng.chance(0.3)) d.mask_dtype = FA_BIT;
            if (rng.chance(0.3)) d.mask_keys = rng.between(1, d.seqlen_k + 9);
        }
        want(0.2, FA_OPERAND_KEY_RANGES);
        if (has(FA_OPERAND_KEY_RANGES) && rng.chance(0.7)) d.key_range_max = rng.between(1, 4);
        if (has(FA_OPERAND_ALIBI) && rng.chance(0.4)) d.alibi_batch_stride = d.heads_q + rng.between(0, 2);
        if (has(FA_OPERAND_ALIBI) && d.batch == 1 && rng.chance(0.3)) d.alibi_batch_stride = std::numeric_limits<int64_t>::max();
        if (rng.chance(0.12)) d.dropout_p = rng.pick<float>({0.1f, 0.5f, 0.9f, 0.99f, 0x1p-33f});
        if (d.dropout_p > 0) want(0.4, FA_OPERAND_RNG_STATE);
        want(family.differentiable ? 0 : 0.08, FA_OPERAND_SCORES);
        if (has(FA_OPERAND_SCORES)) d.scores_stage = int32_t(rng.between(0, 3));
    }

    void schedule() {
        if (rng.chance(0.1)) d.flags |= FA_DETERMINISTIC;
        want(0.1, FA_OPERAND_DEVICE_STATUS);
        if (rng.chance(0.05)) d.reserve_units = int32_t(rng.between(1, 8));
        const oracle::Reading r = c.reading();
        if (r.q_dtype == FA_F32 && r.k_dtype == FA_F32 && r.v_dtype == FA_F32 && r.o_dtype == FA_F32 && !family.differentiable &&
            !of_slots() && rng.chance(0.3)) {
            d.algorithm = rng.pick<int32_t>({FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1});  // these do not split keys
            return;
        }
        if (rng.chance(0.2)) d.num_splits = int32_t(rng.between(1, 6));
        else if (rng.chance(0.15)) d.split_size = rng.between(1, 130);
    }

    // Neither scores nor the baselines have lists.
    void lists() {
        if (!of_slots()) {
            if (d.algorithm != FA_ALGORITHM_FLASH || has(FA_OPERAND_SCORES) || !rng.chance(0.2)) return;
            lists_of_keys();
        }
        if (has(FA_OPERAND_KEY_LIST)) want(0.5, FA_OPERAND_KEY_LIST_COUNT);
        if (has(FA_OPERAND_FULL_LIST)) want(0.5, FA_OPERAND_FULL_LIST_COUNT);
        // Packed sequences begin anywhere.
        if (!has(FA_OPERAND_CU_SEQLENS_Q)) d.list_rows = rng.pick<int64_t>({0, 1, 16, 32, 64, 96});
        if (rng.chance(0.5)) d.list_heads = rng.chance(0.5) ? 1 : d.heads_q;
        d.list_max = std::min<int64_t>(entries_to_choose_from(), rng.between(0, of_slots() ? 100 : 40));
    }
    void lists_of_keys() {
        d.operands |= rng.pick<uint64_t>({FA_OPERAND_KEY_LIST, FA_OPERAND_FULL_LIST, FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST});
        d.list_keys = rng.pick<int64_t>({0, 1, 16, 48, 64, 128});
    }

    Case::Lists random_lists() {
        std::vector<int32_t> blocks(static_cast<size_t>(entries_to_choose_from()));
        std::iota(blocks.begin(), blocks.end(), 0);
        for (size_t n = blocks.size(); n > 1; n--) std::swap(blocks[n - 1], blocks[size_t(rng.between(0, int64_t(n) - 1))]);
        Case::Lists lists;
        const auto take = [&](std::vector<int32_t>& list) {
            for (int64_t e = rng.between(0, d.list_max); e > 0; e--) {
                const bool none = blocks.empty() || rng.chance(0.15);
                list.push_back(none ? -1 : blocks.back());
                if (!none) blocks.pop_back();
            }
        };
        take(lists.masked), take(lists.full);
        return lists;
    }

    void precision() {
        if (!family.differentiable && d.algorithm == FA_ALGORITHM_FLASH && rng.chance(0.15)) d.precision = FA_PRECISION_NATIVE;
    }

    // q, k, v, o: the elements of a head lie together. An input may be broadcast over any other axis.
    void stride_tensor(uint32_t bit, const oracle::Tensor& tensor, bool packed, bool input, int64_t (&stride)[4]) {
        if (!rng.chance(0.4)) return;
        d.strided |= bit;
        random_strides(rng, 3, tensor.count.data(), tensor.count[3], stride);
        stride[3] = 1;
        for (int axis = 0; axis < 3 && input; axis++)
            if (rng.chance(0.07)) stride[axis] = 0;
        if (packed) stride[0] = 0;
    }

    void stride_pairs(const oracle::Tensor& tensor, bool input, int64_t (&stride)[4]) {
        random_strides(rng, 4, tensor.count.data(), 1, stride);
        for (int axis = 0; axis < 4 && input; axis++)
            if (rng.chance(0.25)) stride[axis] = 0;
    }

    // Sequences, heads and rows may share what the last axis counts.
    void stride_outer(const oracle::Tensor& tensor, bool packed, int axes, int64_t* stride) {
        random_strides(rng, axes, tensor.count.data(), 1, stride);
        for (int axis = 0; axis < 3; axis++)
            if (rng.chance(0.3)) stride[axis] = 0;
        if (packed) stride[0] = 0;
    }

    // Ascending ends and begins, some of them empty or beyond the keys.
    std::vector<int32_t> random_ranges(int64_t row) {
        std::vector<int32_t> ends;
        const int64_t intervals = d.key_range_max ? d.key_range_max : 1;
        const int32_t keys = int32_t(d.seqlen_k), far = std::numeric_limits<int32_t>::max();
        if (intervals == 1 && rng.chance(0.3)) return {rng.chance(0.5) ? 0 : -5, int32_t(std::min<int64_t>(row + 1, far))};
        for (int64_t t = 0; t < 2 * intervals; t++) ends.push_back(int32_t(rng.between(-3, keys + 3)));
        std::sort(ends.begin(), ends.end());
        if (rng.chance(0.1)) ends.front() = -far - 1;
        if (rng.chance(0.2)) ends.back() = far;
        for (int64_t t = 0; t < intervals; t++)
            if (rng.chance(0.1)) std::swap(ends[size_t(2 * t)], ends[size_t(2 * t + 1)]);
        return ends;
    }

    void stride_descale(uint64_t operand, const oracle::Tensor& tensor, int64_t (&stride)[4]) {
        if (!has(operand)) return;
        random_strides(rng, 4, tensor.count.data(), 1, stride);
        for (int64_t& s : stride)
            if (rng.chance(0.4)) s = 0;
    }

    void layouts() {
        const oracle::Reading r = c.reading();
        const bool packed_q = has(FA_OPERAND_CU_SEQLENS_Q), packed_k = has(FA_OPERAND_CU_SEQLENS_K);
        stride_tensor(FA_STRIDED_Q, r.q_tensor, packed_q, true, d.q_stride);
        stride_tensor(FA_STRIDED_K, r.k_tensor, packed_k, true, d.k_stride);
        if (!v_in_k()) stride_tensor(FA_STRIDED_V, r.v_tensor, packed_k, true, d.v_stride);
        stride_tensor(FA_STRIDED_O, r.o_tensor, packed_q, false, d.o_stride);
        if (has(FA_OPERAND_LSE) && rng.chance(0.4)) {
            d.strided |= FA_STRIDED_LSE;
            random_strides(rng, 3, r.lse_tensor.count.data(), 1, d.lse_stride);
            if (packed_q) d.lse_stride[0] = 0;
        }
        if (has(FA_OPERAND_BIAS)) stride_pairs(r.bias_tensor, true, d.bias_stride);
        if (has(FA_OPERAND_MASK)) stride_pairs(r.mask_tensor, true, d.mask_stride);
        if (has(FA_OPERAND_KEY_RANGES)) stride_outer(r.key_range_tensor, packed_q, 4, d.key_range_stride);
        if (has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST)) {
            stride_outer(r.list_tensor, packed_q, 4, d.list_stride);
            stride_outer(r.list_count_tensor, packed_q, 3, d.list_count_stride);
            if (!has(FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST_COUNT)) std::fill_n(d.list_count_stride, 3, 0);
        }
        if (has(FA_OPERAND_SCORES)) stride_pairs(r.scores_tensor, false, d.scores_stride);
        if (has(FA_OPERAND_Q_TAIL)) stride_tensor(FA_STRIDED_Q_TAIL, r.q_tail_tensor, packed_q, true, d.q_tail_stride);
        if (has(FA_OPERAND_K_TAIL)) stride_tensor(FA_STRIDED_K_TAIL, r.k_tail_tensor, packed_k, true, d.k_tail_stride);
        stride_descale(FA_OPERAND_Q_DESCALE, r.q_factors.tensor, d.q_descale_stride);
        stride_descale(FA_OPERAND_K_DESCALE, r.k_factors.tensor, d.k_descale_stride);
        stride_descale(FA_OPERAND_V_DESCALE, r.v_factors.tensor, d.v_descale_stride);
    }

    void data() {
        const double heat = rng.chance(0.1)    ? 10
                            : rng.chance(0.05) ? 1e-6
                                               : 1,
                     spread = d.dropout_p > 0.9f ? 1 : rng.pick<double>({1, 1, 30});
        c.fill_normal(rng, heat, 1, spread);
        const auto of_bits = [&](int32_t dtype) { return dtype == FA_I8 ? 40 : oracle::is_nibble(dtype) ? 4 : 1; };
        c.set_descales(rng, 1.0 / std::max(of_bits(k_dtype), of_bits(v_dtype)));
        if (has(FA_OPERAND_BIAS)) {
            const double holes = rng.pick<double>({0, 0, 0.1, 0.6});
            const double minus_infinity = -std::numeric_limits<double>::infinity();
            c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(holes) ? minus_infinity : 2 * rng.normal(); });
        }
        if (has(FA_OPERAND_MASK)) {
            const double density = rng.pick<double>({0.05, 0.5, 0.9, 1});
            c.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(density); });
        }
        if (has(FA_OPERAND_KEY_RANGES)) c.set_key_ranges([&](int64_t, int64_t, int64_t i) { return random_ranges(i); });
        if (has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST)) c.set_key_lists([&](int64_t, int64_t, int64_t) { return random_lists(); });
        for (int64_t b = 0; b < d.batch && has(FA_OPERAND_ALIBI); b++)
            for (int64_t h = 0; h < d.heads_q; h++) c.alibi.as<float>()[b * d.alibi_batch_stride + h] = float(rng.uniform(-0.1, 1));
        for (int64_t h = 0; h < d.heads_q && has(FA_OPERAND_BIAS_SCALE); h++)
            c.bias_scale.as<float>()[h] = rng.chance(0.1) ? 0.f : float(rng.uniform(-2, 2));
        for (int64_t h = 0; h < d.heads_q && has(FA_OPERAND_SINKS); h++) c.sinks.as<float>()[h] = float(3 * rng.normal());
        if (has(FA_OPERAND_O_SCALE)) *c.o_scale.as<float>() = float(rng.uniform(0.5, 8));
        if (d.dropout_p == 0) return;
        uint64_t* state = c.rng_state.as<uint64_t>();
        (has(FA_OPERAND_RNG_STATE) ? state[0] : c.a.dropout_seed) = rng.bits();
        (has(FA_OPERAND_RNG_STATE) ? state[1] : c.a.dropout_offset) = rng.bits();
        if (rng.chance(0.6)) return;
        c.a.dropout_row = rng.between(0, 100000), c.a.dropout_key = rng.between(0, 100000);
        c.a.dropout_head = rng.between(0, 100), c.a.dropout_heads = rng.between(0, 100);
    }
};

}  // namespace

void random_strides(Rng& rng, int axes, const int64_t* count, int64_t innermost, int64_t* stride) {
    int order[4] = {0, 1, 2, 3};
    for (int n = axes; n > 1; n--) std::swap(order[n - 1], order[rng.between(0, n - 1)]);
    int64_t next = innermost;
    for (int n = 0; n < axes; n++) {
        next += rng.chance(0.5) ? 0 : rng.between(1, 5);
        stride[order[n]] = next;
        next *= std::max<int64_t>(count[order[n]], 1);
    }
    for (int axis = 0; axis < axes; axis++)
        if (count[axis] <= 1 && rng.chance(0.2)) stride[axis] = std::numeric_limits<int64_t>::max() - rng.between(0, 1);
}

Case random_case(uint64_t seed) { return Generator(seed, kForward).make(); }
Case random_differentiable_case(uint64_t seed) { return Generator(seed, kDifferentiable).make(); }
Case random_tiny_case(uint64_t seed) { return Generator(seed, kTiny).make(); }

}  // namespace test
