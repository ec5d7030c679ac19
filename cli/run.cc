// flashattn run: one attention over .npy files.
#include <algorithm>
#include <iostream>
#include <memory>
#include "commands.h"
#include "inputs.h"
#include "library.h"
#include "masks.h"
#include "options.h"

namespace tool {
namespace {

struct RunOptions {
    std::string q, k, v, out, lse, bias, bias_scale, mask, sinks, cu_seqlens_q, cu_seqlens_k;
    std::string layout = "bshd", backend = "auto", algorithm = "flash", precision = "default", dtype, out_dtype, kv_type, v_type;
    MaskOptions masks;
    std::optional<float> scale, softcap;
    int64_t threads = 0, num_splits = 0;
    bool explain = false;
};

// One call: all that it reads, what the descriptor says of it, and what it writes.
class Job {
  public:
    explicit Job(const RunOptions& options) : o_(options) {
        read_lengths();
        read_tensors();
        describe_scores();
        describe_positions();
        read_bias_and_mask();
        plan_outputs();
    }
    void run();

  private:
    void read_lengths();
    void read_tensors();
    void describe_scores();
    void describe_positions();
    void read_bias_and_mask();
    const float* read_heads(const char* option, const std::string& path, Array& into) const;
    void plan_outputs();
    void quantise(Handle& handle);

    const RunOptions& o_;
    fa_attention_desc_t d_ = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a_ = FA_FORWARD_ARGS_INIT;
    Layout layout_q_, layout_k_;
    std::vector<int32_t> cu_q_, cu_k_;
    Tensor q_, k_, v_, out_;
    Array bias_, bias_scale_, mask_, sinks_, lse_;
    std::vector<float> slopes_;
    std::vector<std::byte> cache_[6];  // k and v, their factors, their shifts
};

// Standard input is one file, read to its end, and standard output holds one thing.
void check_paths(const RunOptions& options) {
    const char* reader = nullptr;
    for (const auto& [option, path] : {std::pair<const char*, const std::string&>{"--q", options.q},
                                       {"--k", options.k},
                                       {"--v", options.v},
                                       {"--bias", options.bias},
                                       {"--bias-scale", options.bias_scale},
                                       {"--mask", options.mask},
                                       {"--sinks", options.sinks},
                                       {"--cu-seqlens-q", options.cu_seqlens_q},
                                       {"--cu-seqlens-k", options.cu_seqlens_k}}) {
        if (path != kStandard) continue;
        if (reader) misuse(reader, " and ", option, " are both -; standard input is one file");
        reader = option;
    }
    if (!options.lse.empty() && same_file(options.lse, options.out))
        misuse("--lse and --out are both ", options.out, "; expected two files");
    if (options.explain && (options.out == kStandard || options.lse == kStandard))
        misuse("--explain is given, and ", options.out == kStandard ? "--out" : "--lse", " is -; standard output holds one of them");
}

void Job::read_lengths() {
    const Layout padded = o_.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
    layout_q_ = layout_k_ = padded;
    if (!o_.cu_seqlens_q.empty()) {
        layout_q_ = Layout::packed;
        cu_q_ = read_offsets("--cu-seqlens-q", o_.cu_seqlens_q);
        d_.operands |= FA_OPERAND_CU_SEQLENS_Q;
        a_.cu_seqlens_q = cu_q_.data();
    }
    if (!o_.cu_seqlens_k.empty()) {
        layout_k_ = Layout::packed;
        cu_k_ = read_offsets("--cu-seqlens-k", o_.cu_seqlens_k);
        d_.operands |= FA_OPERAND_CU_SEQLENS_K;
        a_.cu_seqlens_k = cu_k_.data();
    }
}

void Job::read_tensors() {
    q_ = read_tensor("--q", o_.q, layout_q_);
    k_ = read_tensor("--k", o_.k, layout_k_);
    v_ = read_tensor("--v", o_.v, layout_k_);
    d_.q_dtype = dtype_of("--q", o_.q, q_.array, o_.dtype);
    d_.k_dtype = dtype_of("--k", o_.k, k_.array, o_.dtype);
    d_.o_dtype = o_.out_dtype.empty() ? d_.q_dtype : value_of(kDtypes, o_.out_dtype);
    if (dtype_of("--v", o_.v, v_.array, o_.dtype) != d_.k_dtype)
        fail("--k and --v hold ", type_name(k_.array.type), " and ", type_name(v_.array.type), "; expected the same type");

    const std::string shapes = text_of("--k has shape ", shape_text(k_.array.shape), " and --v ", shape_text(v_.array.shape));
    if (k_.batch != v_.batch || k_.length != v_.length || k_.heads != v_.heads) fail(shapes, "; expected the same but for the last axis");
    // The library reads a zero here as "like q", which is not what an axis of extent 0 says.
    if (k_.heads == 0 || v_.dim == 0) fail(shapes, "; expected at least one head and one element");
    if (k_.dim != q_.dim)
        fail("--q has shape ", shape_text(q_.array.shape), " and --k ", shape_text(k_.array.shape), "; expected the same last axis");
    const int64_t batch_q = cu_q_.empty() ? q_.batch : int64_t(cu_q_.size()) - 1;
    const int64_t batch_k = cu_k_.empty() ? k_.batch : int64_t(cu_k_.size()) - 1;
    if (batch_q != batch_k) fail("q has ", batch_q, " sequences, k and v have ", batch_k, "; expected as many");

    d_.batch = batch_q;
    d_.heads_q = q_.heads;
    d_.heads_k = k_.heads;
    d_.dim_qk = q_.dim;
    d_.dim_v = v_.dim;
    d_.seqlen_q = cu_q_.empty() ? q_.length : longest(cu_q_);
    d_.seqlen_k = cu_k_.empty() ? k_.length : longest(cu_k_);
    d_.total_q = cu_q_.empty() ? 0 : q_.length;
    d_.total_k = cu_k_.empty() ? 0 : k_.length;
    d_.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
    std::copy_n(q_.stride, 4, d_.q_stride);
    std::copy_n(k_.stride, 4, d_.k_stride);
    std::copy_n(v_.stride, 4, d_.v_stride);
    a_.q = q_.array.bytes.data();
    a_.k = k_.array.bytes.data();
    a_.v = v_.array.bytes.data();
}

void Job::describe_scores() {
    d_.algorithm = value_of(kAlgorithms, o_.algorithm);
    d_.precision = value_of(kPrecisions, o_.precision);
    if (o_.scale) {
        d_.flags |= FA_SCALE_EXPLICIT;
        d_.scale = *o_.scale;
    }
    if (o_.softcap && *o_.softcap <= 0) misuse("--softcap is ", *o_.softcap, "; expected a number above 0");
    d_.softcap = o_.softcap.value_or(0);
    if (o_.num_splits < 0 || o_.num_splits > INT32_MAX) misuse("--num-splits is ", o_.num_splits, "; expected 0 (chosen) or more");
    d_.num_splits = int32_t(o_.num_splits);
    if (!o_.sinks.empty()) {
        d_.operands |= FA_OPERAND_SINKS;
        a_.sinks = read_heads("--sinks", o_.sinks, sinks_);
    }
}

void Job::describe_positions() {
    set_masks(d_, o_.masks);
    if (o_.masks.alibi) {
        slopes_.resize(size_t(d_.heads_q));
        if (fa_alibi_slopes(d_.heads_q, 0, slopes_.data()) != FA_OK) fail(fa_last_error(nullptr));
        a_.alibi_slopes = slopes_.data();
    }
}

const float* Job::read_heads(const char* option, const std::string& path, Array& into) const {
    into = read_npy(path);
    if (into.type != "f4" || into.shape != std::vector<int64_t>{d_.heads_q})
        fail(option, " ", path, ": holds ", type_name(into.type), " of shape ", shape_text(into.shape), "; expected float32 of shape ",
             shape_text({d_.heads_q}), ", one for each query head");
    return into.as<float>();
}

void Job::read_bias_and_mask() {
    if (!o_.bias.empty()) {
        bias_ = read_npy(o_.bias);
        d_.bias_dtype = dtype_of("--bias", o_.bias, bias_, bias_.type == "u2" || bias_.type == "V2" ? o_.dtype : "");
        broadcast("--bias", o_.bias, bias_, d_, d_.bias_stride);
        d_.operands |= FA_OPERAND_BIAS;
        a_.bias = bias_.bytes.data();
    }
    if (!o_.bias_scale.empty()) {
        d_.operands |= FA_OPERAND_BIAS_SCALE;
        a_.bias_scale = read_heads("--bias-scale", o_.bias_scale, bias_scale_);
    }
    if (!o_.mask.empty()) {
        mask_ = read_npy(o_.mask);
        if (mask_.type != "b1" && mask_.type != "u1")
            fail("--mask ", o_.mask, ": holds ", type_name(mask_.type), "; expected bool or uint8");
        broadcast("--mask", o_.mask, mask_, d_, d_.mask_stride);
        d_.operands |= FA_OPERAND_MASK;
        a_.mask = mask_.as<uint8_t>();
    }
}

void Job::plan_outputs() {
    std::vector<int64_t> shape = q_.array.shape;
    shape.back() = d_.dim_v;
    const bool wide = d_.o_dtype == FA_F32;
    out_ = tensor_of(plan_array(wide ? "f4" : d_.o_dtype == FA_F16 ? "f2" : "u2", shape), layout_q_);
    std::copy_n(out_.stride, 4, d_.o_stride);
    if (o_.lse.empty()) return;
    d_.operands |= FA_OPERAND_LSE;
    if (cu_q_.empty()) lse_ = plan_array("f4", {d_.batch, d_.heads_q, d_.seqlen_q});
    else lse_ = plan_array("f4", {d_.heads_q, d_.total_q});
}

// What a scheme says of k or v in a descriptor: its type, and its factors for each token and head, one behind the other.
struct Stored {
    int32_t &dtype, &factor_dtype;
    int64_t *block, *stride;
    uint64_t factor, shift;
};
Stored stored_k(fa_attention_desc_t& desc) {
    return {desc.k_dtype, desc.k_descale_dtype, desc.k_descale_block, desc.k_descale_stride, FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT};
}
Stored stored_v(fa_attention_desc_t& desc) {
    return {desc.v_dtype, desc.v_descale_dtype, desc.v_descale_block, desc.v_descale_stride, FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT};
}
void store_by(const CacheScheme& scheme, int64_t dims, fa_attention_desc_t& desc, const Stored& s) {
    s.dtype = scheme.dtype;
    if (scheme.factor_dtype == 0) return;
    const int64_t parts = scheme.dims == 0 ? 1 : (dims + scheme.dims - 1) / scheme.dims;
    s.factor_dtype = scheme.factor_dtype;
    s.block[1] = scheme.dims;
    s.stride[0] = desc.seqlen_k * desc.heads_k * parts, s.stride[1] = desc.heads_k * parts, s.stride[2] = parts, s.stride[3] = 1;
    desc.operands |= s.factor | (scheme.shifted ? s.shift : 0);
}
void copy_stored(const Stored& from, const Stored& to, bool packed) {
    to.dtype = from.dtype;
    to.factor_dtype = from.factor_dtype;
    std::copy_n(from.block, 2, to.block);
    std::copy_n(from.stride, 4, to.stride);
    if (packed) to.stride[0] = 0;
}

// Appends k and v to an empty cache of another type, in the place of which they are read. Packed sequences are one.
void Job::quantise(Handle& handle) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    d.q_dtype = d_.k_dtype;
    d.batch = cu_k_.empty() ? d_.batch : 1;
    d.seqlen_k = a.seqlen_new = k_.length;
    d.heads_q = d.heads_k = d_.heads_k;
    d.dim_qk = d_.dim_qk;
    d.dim_v = d_.dim_v;
    store_by(cache_scheme(o_.kv_type), d.dim_qk, d, stored_k(d));
    store_by(cache_scheme(o_.v_type.empty() ? o_.kv_type : o_.v_type), d.dim_v, d, stored_v(d));
    if (d.operands != 0) a.flags |= FA_APPEND_DYNAMIC_SCALE;
    handle.check(fa_supports(handle, &d, FA_OP_APPEND_KV));
    const auto room = [&](uint32_t field, std::vector<std::byte>& cache) {
        uint64_t bytes = 0;
        if (fa_extent(&d, FA_OP_APPEND_KV, &a, field, &bytes) != FA_OK) fail(fa_last_error(nullptr));
        cache.resize(bytes);
        return bytes > 0 ? cache.data() : nullptr;
    };
    a.k_new = a_.k;
    a.v_new = a_.v;
    std::copy_n(d_.k_stride, 4, a.k_new_stride);
    std::copy_n(d_.v_stride, 4, a.v_new_stride);
    a_.k = a.k = room(offsetof(fa_append_kv_args_t, k), cache_[0]);
    a_.v = a.v = room(offsetof(fa_append_kv_args_t, v), cache_[1]);
    a_.k_descale = a.k_descale = room(offsetof(fa_append_kv_args_t, k_descale), cache_[2]);
    a_.v_descale = a.v_descale = room(offsetof(fa_append_kv_args_t, v_descale), cache_[3]);
    a_.k_shift = a.k_shift = room(offsetof(fa_append_kv_args_t, k_shift), cache_[4]);
    a_.v_shift = a.v_shift = room(offsetof(fa_append_kv_args_t, v_shift), cache_[5]);
    handle.check(fa_append_kv(handle, &d, &a));
    copy_stored(stored_k(d), stored_k(d_), !cu_k_.empty());
    copy_stored(stored_v(d), stored_v(d_), !cu_k_.empty());
    d_.operands |= d.operands;
    d_.strided &= ~uint32_t(FA_STRIDED_K | FA_STRIDED_V);
    std::fill_n(d_.k_stride, 4, 0);
    std::fill_n(d_.v_stride, 4, 0);
}

void Job::run() {
    Handle handle(value_of(kBackends, o_.backend));
    if (o_.threads) handle.set(FA_PARAM_THREADS, o_.threads);
    if (!o_.kv_type.empty()) quantise(handle);
    handle.check(fa_supports(handle, &d_, FA_OP_FORWARD));
    if (o_.explain) std::cout << handle.explain(&d_) << "\n";
    OutputFile out(o_.out);
    std::optional<OutputFile> lse;
    if (!o_.lse.empty()) lse.emplace(o_.lse);
    out_.array.allocate();
    a_.o = out_.array.bytes.data();
    if (lse) {
        lse_.allocate();
        a_.lse = lse_.as<float>();
    }
    handle.check(fa_forward_ex(handle, &d_, &a_));
    write_npy(out, out_.array);
    if (lse) {
        write_npy(*lse, lse_);
        lse->commit();
    }
    out.commit();
}

}  // namespace

void add_run(CLI::App& app) {
    const auto o = std::make_shared<RunOptions>();
    CLI::App& c =
        *app.add_subcommand("run", "Attention over .npy files: float32, float16, or bfloat16 as uint16; - is standard input or output");
    const char* const file = "FILE";
    add_text(c, "--q", o->q, file, "Queries: (batch, seq, heads, dim), or packed (total, heads, dim)")->required();
    add_text(c, "--k", o->k, file, "Keys; their number of heads divides that of the queries")->required();
    add_text(c, "--v", o->v, file, "Values; dim may differ from that of the keys")->required();
    add_text(c, "--out", o->out, file, "Where to write the output")->required();
    add_text(c, "--lse", o->lse, file, "Where to write the log-sum-exp, float32: (batch, heads, seq), packed (heads, total)");
    add_mask_options(c, o->masks);
    add_real(c, "--scale", o->scale, "Factor of q·k; default 1/sqrt(dim)");
    add_real(c, "--softcap", o->softcap, "Replace each score s by c tanh(s/c)");
    add_text(c, "--bias", o->bias, file, "Added to the scores; broadcasts to (batch, heads, rows, keys)");
    add_text(c, "--bias-scale", o->bias_scale, file, "float32 (heads,): a factor of the bias for each head");
    add_text(c, "--mask", o->mask, file, "bool or uint8, nonzero: attend; broadcasts to (batch, heads, rows, keys)");
    add_text(c, "--sinks", o->sinks, file, "float32 (heads,): one more logit per head, without a value");
    add_text(c, "--cu-seqlens-q", o->cu_seqlens_q, "LIST|FILE", "Offsets of packed queries: 0,10,30 or an int32 .npy file");
    add_text(c, "--cu-seqlens-k", o->cu_seqlens_k, "LIST|FILE", "Offsets of packed keys and values");
    add_choice(c, "--layout", o->layout, {"bshd", "bhsd"}, "Order of the axes of q, k, v and the output; default bshd");
    add_choice(c, "--dtype", o->dtype, {"f32", "f16", "bf16"}, "Type of q, k and v; bf16 reads uint16 files as bfloat16");
    add_choice(c, "--kv-type", o->kv_type, cache_scheme_names(),
               "Quantise k and v first, as a cache holds them: ggml's blocks; 8 bits with a scale for each token and head; MXFP8 and MXFP4 "
               "with a scale for 32 dims, NVFP4 for 16; 4 bits with a scale for 32 dims, u4 also with a shift, as in KIVI");
    add_choice(c, "--v-type", o->v_type, cache_scheme_names(), "The same for v alone. --kv-type is then the type of k, and must be given");
    add_choice(c, "--out-dtype", o->out_dtype, {"f32", "f16", "bf16"}, "Type of the output; default that of q");
    add_choice(c, "--backend", o->backend, names_of(kBackends), "Where to compute; default auto");
    add_choice(c, "--algorithm", o->algorithm, names_of(kAlgorithms), "Default flash; the others are baselines for study");
    add_choice(c, "--precision", o->precision, names_of(kPrecisions),
               "native: permits rounding q to the type of k, P to that of v, and both to bfloat16");
    add_int(c, "--threads", o->threads, "CPU threads; default all");
    add_int(c, "--num-splits", o->num_splits, "Parts into which the keys are cut; by default the library chooses");
    c.add_flag("--explain", o->explain, "Print the backend, kernel, tiles and splits");
    c.callback([o] {
        check_paths(*o);
        if (!o->bias_scale.empty() && o->bias.empty()) misuse("--bias-scale is given without --bias; expected both");
        if (!o->v_type.empty() && o->kv_type.empty()) misuse("--v-type is ", o->v_type, "; expected --kv-type, which is then that of k");
        Job(*o).run();
    });
}

}  // namespace tool
