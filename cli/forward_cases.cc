#include "forward_cases.h"
#include <algorithm>
#include <array>
#include <deque>
#include "library.h"

namespace tool {
namespace {

// A case that is put together by what it has beside the plain attention. Sizes come first: the operands' strides follow from them.
struct Case : ForwardCase {
    Case& algorithm(int32_t value) {
        d.algorithm = value;
        return *this;
    }
    Case& types(int32_t k_dtype, int32_t o_dtype) {
        d.k_dtype = k_dtype;
        d.o_dtype = o_dtype;
        return *this;
    }
    Case& v_type(int32_t dtype) {
        d.v_dtype = dtype;
        return *this;
    }
    Case& v_in_k() {
        d.flags |= FA_V_IN_K;
        return *this;
    }
    Case& v_heads(int64_t heads) {
        d.heads_v = heads;
        return *this;
    }
    Case& with(uint32_t operands) {
        d.operands |= operands;
        return *this;
    }
    Case& hostile(Data kind) {
        data = kind;
        return *this;
    }

    Case& heads(int64_t heads_q, int64_t heads_k) {
        d.heads_q = heads_q;
        d.heads_k = heads_k;
        return *this;
    }
    Case& dims(int64_t dim_qk, int64_t dim_v) {
        d.dim_qk = dim_qk;
        d.dim_v = dim_v;
        return *this;
    }
    Case& lengths(int64_t rows, int64_t keys) {
        d.seqlen_q = rows;
        d.seqlen_k = keys;
        return *this;
    }

    Case& align(int32_t alignment) {
        d.alignment = alignment;
        return *this;
    }
    Case& causal(int32_t alignment = FA_ALIGN_BOTTOM_RIGHT) {
        d.flags |= FA_CAUSAL;
        return align(alignment);
    }
    Case& window(int64_t left, int64_t right, int32_t alignment = FA_ALIGN_BOTTOM_RIGHT) {
        d.flags |= FA_WINDOW;
        d.window_left = left;
        d.window_right = right;
        return align(alignment);
    }
    Case& explicit_offsets(std::vector<int32_t> list) {
        offsets = std::move(list);
        return with(FA_OPERAND_CAUSAL_OFFSET).align(FA_ALIGN_EXPLICIT);
    }
    Case& chunk(int64_t keys) {
        d.chunk = keys;
        return align(FA_ALIGN_TOP_LEFT);
    }

    Case& scale(float value) {
        d.flags |= FA_SCALE_EXPLICIT;
        d.scale = value;
        return *this;
    }
    Case& softcap(float value) {
        d.softcap = value;
        return *this;
    }
    Case& dropout(float p) {
        d.dropout_p = p;
        return *this;
    }
    Case& bias(int32_t dtype) {  // the same for all sequences
        d.bias_dtype = dtype;
        return strides(d.bias_stride, {0, pairs(), d.seqlen_k, 1}).with(FA_OPERAND_BIAS);
    }
    Case& scaled_bias(int32_t dtype) {  // the same for the first half of the heads and the second
        d.bias_period[1] = d.heads_q / 2;
        return bias(dtype).with(FA_OPERAND_BIAS_SCALE);
    }
    Case& mask() {  // the same for all heads
        return strides(d.mask_stride, {pairs(), 0, d.seqlen_k, 1}).with(FA_OPERAND_MASK);
    }
    Case& scores(int32_t stage) {
        d.scores_stage = stage;
        return strides(d.scores_stride, {d.heads_q * pairs(), pairs(), d.seqlen_k, 1}).with(FA_OPERAND_SCORES);
    }

    // Packed sequences of these lengths, with a gap before the first and one after the last.
    Case& packed(const std::vector<int32_t>& rows, const std::vector<int32_t>& keys) {
        const auto pack = [](const std::vector<int32_t>& list, std::vector<int32_t>& cu, int64_t& longest, int64_t& total) {
            cu = {2};
            for (int32_t n : list) cu.push_back(cu.back() + n);
            longest = *std::max_element(list.begin(), list.end());
            total = cu.back() + 3;
        };
        pack(rows, cu_q, d.seqlen_q, d.total_q);
        pack(keys, cu_k, d.seqlen_k, d.total_k);
        d.batch = int64_t(rows.size());
        return with(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K);
    }
    Case& shortened_rows(std::vector<int32_t> rows) {
        used_q = std::move(rows);
        return with(FA_OPERAND_SEQUSED_Q);
    }
    Case& shortened_keys(std::vector<int32_t> keys) {
        used_k = std::move(keys);
        return with(FA_OPERAND_SEQUSED_K);
    }
    Case& left_padded(std::vector<int32_t> slots) {
        leftpad = std::move(slots);
        return with(FA_OPERAND_LEFTPAD_K);
    }
    Case& cached(int64_t sequences, std::vector<int32_t> index) {
        d.kv_batch = sequences;
        kv_index = std::move(index);
        return with(FA_OPERAND_KV_BATCH_IDX);
    }
    Case& paged(int64_t page_size) {  // in reverse order, three pages unused
        const int64_t used = d.batch * ((d.seqlen_k + page_size - 1) / page_size);
        d.page_size = page_size;
        d.num_pages = used + 3;
        for (int64_t i = 0; i < used; ++i) pages.push_back(int32_t(d.num_pages - 1 - i));
        return with(FA_OPERAND_PAGE_TABLE);
    }
    Case& strided() {  // q and k (batch, head, row, element), one v for all sequences, gaps between the rows of o, LSE transposed
        d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
        const int64_t width = d.dim_v + 3;
        strides(d.q_stride, {d.heads_q * d.seqlen_q * d.dim_qk, d.dim_qk, d.seqlen_q * d.dim_qk, 1});
        strides(d.k_stride, {d.heads_k * d.seqlen_k * d.dim_qk, d.dim_qk, d.seqlen_k * d.dim_qk, 1});
        strides(d.v_stride, {0, d.heads_k * d.dim_v, d.dim_v, 1});
        strides(d.o_stride, {d.seqlen_q * d.heads_q * width, d.heads_q * width, width, 1});
        return strides(d.lse_stride, {1, d.batch * d.seqlen_q, d.batch});
    }
    Case& descaled() {  // k and v, by token and head
        const int64_t slots = d.page_size > 0 ? d.page_size : d.seqlen_k;
        strides(d.k_descale_stride, {slots * d.heads_k, d.heads_k, 1});
        strides(d.v_descale_stride, {slots * d.heads_k, d.heads_k, 1});
        return with(FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE);
    }
    Case& factors(int32_t dtype, std::array<int64_t, 2> of_k, std::array<int64_t, 2> of_v) {  // (rows, dims) that share one
        const auto lay = [&](std::array<int64_t, 2> block, int64_t dims, int64_t (&blocks)[2], int64_t (&stride)[4]) {
            const int64_t parts = (dims + block[1] - 1) / block[1], rows = (d.seqlen_k + block[0] - 1) / block[0];
            std::copy(block.begin(), block.end(), blocks);
            strides(stride, {rows * d.heads_k * parts, d.heads_k * parts, parts, 1});
        };
        d.k_descale_dtype = d.v_descale_dtype = dtype;
        lay(of_k, d.dim_qk, d.k_descale_block, d.k_descale_stride);
        lay(of_v, d.dim_v, d.v_descale_block, d.v_descale_stride);
        return with(FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE);
    }
    Case& descaled_k() { return strides(d.k_descale_stride, {d.seqlen_k * d.heads_k, d.heads_k, 1}).with(FA_OPERAND_K_DESCALE); }
    Case& descaled_q() { return strides(d.q_descale_stride, {d.seqlen_q * d.heads_q, d.heads_q, 1}).with(FA_OPERAND_Q_DESCALE); }
    Case& splits(int32_t number, int64_t size) {
        d.num_splits = number;
        d.split_size = size;
        return *this;
    }

  private:
    int64_t pairs() const { return d.seqlen_q * d.seqlen_k; }
    Case& strides(int64_t* to, std::initializer_list<int64_t> list) {
        std::copy(list.begin(), list.end(), to);
        return *this;
    }
};

class Cases {
  public:
    std::deque<Case> list;  // references to its members stay good while it grows

    void add_types() {
        for (int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2}) add(dtype, "plain");
        add(FA_BF16, "q, f32 o").types(0, FA_F32);
        add(FA_F32, "q, f16 k and v").types(FA_F16, 0);
        add(FA_BF16, "q, e4m3 k and v de-scaled by token and head").types(FA_E4M3, 0).descaled();
        add(FA_F16, "q, i8 k and v de-scaled by token and head").types(FA_I8, 0).descaled();
        for (const Named& type : kBlockTypes) add(FA_F32, std::string("q, ") + type.name + " k and v").types(type.value, 0);
        add(FA_F16, "q, q8_0 k, q4_0 v, decoding").types(FA_Q8_0, 0).v_type(FA_Q4_0).heads(8, 2).lengths(1, 300);
        add(FA_BF16, "q, MXFP8 k and v").types(FA_E4M3, 0).factors(FA_E8M0, {1, 32}, {32, 1});
        add(FA_BF16, "q, NVFP4 k and v").types(FA_E2M1, 0).factors(FA_E4M3, {1, 16}, {1, 16}).with(FA_OPERAND_O_SCALE);
        add(FA_F16, "q, KIVI k and v").types(FA_U4, 0).factors(FA_F16, {32, 1}, {1, 64}).with(FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT);
        add(FA_BF16, "q, i8 k, f16 v with as many heads as q").types(FA_I8, 0).v_type(FA_F16).v_heads(4).descaled_k();
        add(FA_E4M3, "all de-scaled, e4m3 o with its scale").types(0, FA_E4M3).descaled().descaled_q().with(FA_OPERAND_O_SCALE);
    }

    void add_sizes() {
        for (int64_t dim : {1, 40, 96, 128, 256}) add(FA_F32, text_of("dim ", dim)).dims(dim, dim);
        add(FA_F32, "dim 1024").dims(1024, 1024).lengths(20, 70);
        add(FA_BF16, "dims 192 and 128").dims(192, 128);
        add(FA_BF16, "dims 576 and 512, one kv head").dims(576, 512).heads(8, 1).lengths(5, 90);
        add(FA_BF16, "dims 576 and 512, v in k, decoding from pages of 64").dims(576, 512).heads(16, 1).lengths(2, 200).v_in_k().paged(64);
        add(FA_F16, "e4m3 k, v in it, de-scaled").types(FA_E4M3, 0).dims(96, 64).v_in_k().descaled_k();
        add(FA_F32, "as many kv heads as heads").heads(3, 3);
        add(FA_F16, "one kv head for 12").heads(12, 1);
        add(FA_F32, "one row and one key").lengths(1, 1);
        add(FA_F32, "no key at all").lengths(9, 0);
        add(FA_F32, "1500 keys").heads(1, 1).lengths(130, 1500);
    }

    void add_masks() {
        add(FA_F32, "causal top-left").causal(FA_ALIGN_TOP_LEFT);
        add(FA_F32, "causal bottom-right").causal();
        add(FA_BF16, "causal bottom-right, more rows than keys").lengths(100, 70).causal();
        add(FA_F32, "causal by explicit offsets").causal().explicit_offsets({-20, 55});
        add(FA_F32, "window 10,5").window(10, 5);
        add(FA_F16, "causal, window 16").causal().window(16, -1, FA_ALIGN_TOP_LEFT);
        add(FA_F32, "chunks of 24").chunk(24);
        add(FA_F32, "boolean mask").mask();
    }

    void add_scores() {
        add(FA_F32, "bias, some of it −inf").bias(FA_F32);
        add(FA_BF16, "with f16 bias, causal").bias(FA_F16).causal();
        add(FA_F16, "bias of half the heads, with a factor for each").scaled_bias(FA_F16);
        add(FA_F32, "ALiBi, causal").causal().with(FA_OPERAND_ALIBI);
        add(FA_F32, "sinks").with(FA_OPERAND_SINKS);
        add(FA_F32, "softcap 2").softcap(2);
        add(FA_F32, "scale 0.3").scale(0.3f);
        add(FA_F32, "dropout 0.2").dropout(0.2f);
        add(FA_F32, "all at once")
            .causal()
            .window(60, -1)
            .bias(FA_BF16)
            .mask()
            .softcap(5)
            .dropout(0.1f)
            .with(FA_OPERAND_ALIBI | FA_OPERAND_SINKS);
        for (const Named& stage : std::vector<Named>{{"raw", FA_SCORES_RAW},
                                                     {"capped", FA_SCORES_CAPPED},
                                                     {"biased", FA_SCORES_BIASED},
                                                     {"probability", FA_SCORES_PROBABILITY}})
            add(FA_F32, text_of("scores, ", stage.name)).softcap(3).bias(FA_F32).causal().scores(stage.value);
    }

    void add_layouts() {
        add(FA_F32, "packed").packed({30, 1, 70}, {40, 90, 70}).causal();
        add(FA_BF16, "packed, empty sequences").packed({0, 20, 33, 0}, {5, 0, 60, 0});
        add(FA_F16, "shortened rows and keys").shortened_rows({70, 3}).shortened_keys({0, 77});
        add(FA_F32, "left padding").left_padded({13, 0}).shortened_keys({100, 64}).causal();
        add(FA_F32, "cache of 5, by index").cached(5, {4, 1});
        for (int64_t size : {1, 16, 96}) add(FA_BF16, text_of("pages of ", size)).paged(size).shortened_keys({99, 33});
        add(FA_BF16, "decoding from e5m2 pages of 16")
            .types(FA_E5M2, 0)
            .heads(16, 2)
            .lengths(1, 700)
            .paged(16)
            .shortened_keys({700, 411})
            .descaled();
        add(FA_F32, "strides of every kind").strided();
        add(FA_F32, "3 splits").lengths(3, 400).splits(3, 0);
        add(FA_F16, "splits of 90 keys").lengths(3, 400).splits(0, 90);
    }

    void add_hostile() {
        for (int32_t dtype : {FA_F32, FA_F16, FA_BF16}) {
            add(dtype, "logits of 1e4").hostile(Data::steep);
            add(dtype, "counting, causal").hostile(Data::counting).causal();
            add(dtype, "ascending maxima").hostile(Data::ascending);
            add(dtype, "v at the type's limit").hostile(Data::limit);
        }
        add(FA_F32, "one huge key").hostile(Data::one_huge);
    }

    void add_study() {
        for (int32_t algorithm : {FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1}) {
            const std::string name = name_of(kAlgorithms, algorithm);
            add(FA_F32, name).algorithm(algorithm);
            add(FA_F32, name + " causal, bias").algorithm(algorithm).bias(FA_F32).causal();
            add(FA_F32, name + " packed, window 9,4").algorithm(algorithm).packed({30, 1, 70}, {40, 90, 70}).window(9, 4);
        }
    }

  private:
    Case& add(int32_t dtype, const std::string& name) {
        Case& c = list.emplace_back();
        c.name = name_of(kDtypes, dtype) + " " + name;
        c.d.q_dtype = dtype;
        c.d.batch = 2;
        return c.heads(4, 2).lengths(70, 100).dims(64, 64).with(FA_OPERAND_LSE);
    }
};

}  // namespace

std::vector<ForwardCase> forward_cases() {
    Cases cases;
    cases.add_types();
    cases.add_sizes();
    cases.add_masks();
    cases.add_scores();
    cases.add_layouts();
    cases.add_hostile();
    cases.add_study();
    return {cases.list.begin(), cases.list.end()};
}

}  // namespace tool
