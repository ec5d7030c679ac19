// A case in words, so that a failure can be understood from the log alone.
#include <cstdio>
#include "support/case.h"

namespace test {
namespace {

void add(std::string& text, const char* name, long long value) {
    if (value == 0) return;
    char piece[64];
    snprintf(piece, sizeof piece, " %s=%lld", name, value);
    text += piece;
}

void add(std::string& text, const char* name, double value) {
    if (value == 0) return;
    char piece[64];
    snprintf(piece, sizeof piece, " %s=%.9g", name, value);
    text += piece;
}

template <typename Number>
void add_list(std::string& text, const char* name, const Number* values, size_t count) {
    bool any = false;
    for (size_t n = 0; n < count; n++) any |= values[n] != 0;
    if (!any) return;
    text += std::string(" ") + name + "={";
    for (size_t n = 0; n < count && n < 64; n++) text += (n ? "," : "") + std::to_string(values[n]);
    text += "}";
}

const char* const kOperands[] = {
#define FA_OPERAND(name, field) #name,
#include "core/operands.def"
};

}  // namespace

std::string describe(const fa_attention_desc_t& d) {
    std::string text = std::string("q ") + oracle::name_of(d.q_dtype) + ", k " + oracle::name_of(d.k_dtype) + ", v " + oracle::name_of(d.v_dtype) + ", o " +
                       oracle::name_of(d.o_dtype) + ", bias " + oracle::name_of(d.bias_dtype) + ";";
    const char* const flags[] = {" causal", " window", " scale", " deterministic", " v_in_k"};
    for (int bit = 0; bit < 5; bit++)
        if (d.flags >> bit & 1) text += flags[bit];
    for (size_t bit = 0; bit < sizeof kOperands / sizeof *kOperands; bit++)
        if (d.operands >> bit & 1) text += std::string(" +") + kOperands[bit];
    add(text, "strided", (long long)d.strided), add(text, "alignment", (long long)d.alignment);
    add(text, "algorithm", (long long)d.algorithm), add(text, "scores_stage", (long long)d.scores_stage);
    add(text, "precision", (long long)d.precision);
    add(text, "scale", double(d.scale)), add(text, "softcap", double(d.softcap)), add(text, "dropout_p", double(d.dropout_p));
    add(text, "num_splits", (long long)d.num_splits), add(text, "split_size", (long long)d.split_size);
    const struct {
        const char* name;
        int64_t value;
    } sizes[] = {{"batch", d.batch},
                 {"heads_q", d.heads_q},
                 {"heads_k", d.heads_k},
                 {"heads_v", d.heads_v},
                 {"seqlen_q", d.seqlen_q},
                 {"seqlen_k", d.seqlen_k},
                 {"dim_qk", d.dim_qk},
                 {"dim_v", d.dim_v},
                 {"total_q", d.total_q},
                 {"total_k", d.total_k},
                 {"kv_batch", d.kv_batch},
                 {"page_size", d.page_size},
                 {"num_pages", d.num_pages},
                 {"page_table_stride", d.page_table_stride},
                 {"window_left", d.window_left},
                 {"window_right", d.window_right},
                 {"chunk", d.chunk},
                 {"bias_period[0]", d.bias_period[0]},
                 {"bias_period[1]", d.bias_period[1]},
                 {"mask_period[0]", d.mask_period[0]},
                 {"mask_period[1]", d.mask_period[1]},
                 {"mask_dtype", d.mask_dtype},
                 {"mask_keys", d.mask_keys},
                 {"alibi_batch_stride", d.alibi_batch_stride}};
    for (const auto& size : sizes) add(text, size.name, (long long)size.value);
    add_list(text, "q_stride", d.q_stride, 4), add_list(text, "k_stride", d.k_stride, 4), add_list(text, "v_stride", d.v_stride, 4);
    add_list(text, "o_stride", d.o_stride, 4), add_list(text, "lse_stride", d.lse_stride, 3),
        add_list(text, "bias_stride", d.bias_stride, 4);
    add_list(text, "mask_stride", d.mask_stride, 4), add_list(text, "scores_stride", d.scores_stride, 4);
    add_list(text, "q_descale_stride", d.q_descale_stride, 3), add_list(text, "k_descale_stride", d.k_descale_stride, 3);
    add_list(text, "v_descale_stride", d.v_descale_stride, 3);
    return text;
}

std::string Case::describe() const {
    std::string text = test::describe(d);
    for (const MetadataOperand& operand : metadata_operands()) {
        const std::vector<int32_t>& values = metadata.*operand.values;
        add_list(text, operand.name, values.data(), values.size());
    }
    if (seed != 0) text = "case " + std::to_string(seed) + ": " + text;
    return text;
}

}  // namespace test
