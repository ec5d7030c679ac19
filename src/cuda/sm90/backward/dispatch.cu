// The host's part of the backward kernels for sm_90a: which calls they can implement, the plan of a call, with the order in which the
// blocks of keys are worked on, and the launches: preprocessing of rows, the main kernel, partial sums of split blocks, and dq from its
// sums.
#include "cuda/sm90/common/bias_operand.h"
#include "cuda/sm90/common/refusals.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/backward/kernel_list.h"

namespace fa {
namespace gpu {

extern const BackwardFamily sm90_backward;

namespace {

// With few rows or keys the smaller tiles of gpu/backward/mma.h are faster.
constexpr int64_t kMinRows = 128;
// What the kernels implement. FA_OPERAND_RNG_STATE is read with dropout only.
constexpr Implements kBackward = {FA_OPERAND_LSE | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_RNG_STATE,
                                  option::bands | option::schedule};
constexpr Implements kBiasBackward = {kBackward.operands | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE,
                                      kBackward.options | option::bias_period};

// Of q's type, as it comes or as a copy: of f32 a tile has no room beside the others.
constexpr int kMostRows = 128;  // of a tile
bool bias_fits(const Problem& problem, Refusal* refusal) {
    if (problem.d.bias_dtype != problem.d.q_dtype)
        return refuse(refusal, "bias_dtype is %s: expected %s, as q_dtype", dtype_name(problem.d.bias_dtype),
                      dtype_name(problem.d.q_dtype));
    if (!(problem.d.scale > 0x1p-60f && problem.d.scale < 0x1p+60f))
        return refuse(refusal, "scale is %g with FA_OPERAND_BIAS: expected 2^-60 to 2^60", double(problem.d.scale));
    return bias_copy_fits(problem, kMostRows) || refuse(refusal, "seqlen_q is %lld and seqlen_k %lld: a copy of the bias has at most a GiB",
                                                        (long long)problem.d.seqlen_q, (long long)problem.d.seqlen_k);
}

bool can_implement(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    const bool has_bias = problem.has(FA_OPERAND_BIAS);
    return is_sm90(device, refusal) && implements(problem, has_bias ? kBiasBackward : kBackward, refusal) &&
           is_positive_scale(problem, refusal) && is_half("q_dtype", d.q_dtype, refusal) && is_like_q(problem, refusal) &&
           is_like_q_or_f32(problem, refusal) && in_eights("dim_qk", d.dim_qk, refusal) && in_eights("dim_v", d.dim_v, refusal) &&
           (d.o_dtype == FA_F32 || writes_vectors(problem, refusal)) && in_range("batch", d.batch, 1, INT64_MAX, refusal) &&
           in_range("seqlen_q", d.seqlen_q, kMinRows, kMaxExtent, refusal) &&
           in_range("seqlen_k", d.seqlen_k, kMinRows, kMaxExtent, refusal) && extents_fit(problem, refusal) &&
           in_range("heads_q * padded rows", padded_rows_of(problem) * d.heads_q, 0, kMaxExtent, refusal) &&
           in_range("batch * heads_k * blocks of keys", d.batch * d.heads_k * ceil_div(d.seqlen_k, kMinRows), 0, kMaxExtent, refusal) &&
           (!has_bias || bias_fits(problem, refusal)) && tma_reads_tensors(problem, refusal);
}

bool deterministic(const Problem& problem) { return (problem.d.flags & FA_DETERMINISTIC) != 0; }
MaskRule rule_of_all(const Problem& problem) {
    return mask_rule(mask_rule(problem), sequence_of(sequence_table(problem, fa_forward_args_t{}), 0));
}
bool bounded_right(const Problem& problem) {
    return problem.causal() || problem.d.chunk > 0 || ((problem.d.flags & FA_WINDOW) && problem.d.window_right >= 0);
}

// Which calls a kernel takes of those that any takes.
bool kernel_can_implement(const Sm90BackwardKernel& kernel, const Problem& problem) {
    if (problem.has(FA_OPERAND_BIAS) != (kernel.variant == BwdVariant::bias)) return false;
    if (kernel.variant != BwdVariant::plain) return true;
    if (deterministic(problem) || !has_uniform_lengths(problem)) return false;
    // All rows see a key, and the keys of every block are seen.
    const MaskRule rule = rule_of_all(problem);
    const int64_t rows = problem.d.seqlen_q, last = (problem.d.seqlen_k - 1) / 128 * 128;
    const RowBand all = row_band(rule, 0, problem.d.seqlen_k, rows);
    return all.begin <= 0 && all.end >= rows && row_band(rule, 0, 128, rows).end > 0 &&
           row_band(rule, last, problem.d.seqlen_k - last, rows).begin < rows;
}

// Of a type, the narrower ones first.
struct KernelsOf {
    int32_t dtype;
    Sm90BackwardKernelList (*list)();
};
constexpr KernelsOf kKernels[] = {{FA_F16, sm90_backward_kernels<F16, 64>},    {FA_F16, sm90_backward_kernels<F16, 128>},
                                  {FA_F16, sm90_backward_kernels<F16, 256>},   {FA_BF16, sm90_backward_kernels<Bf16, 64>},
                                  {FA_BF16, sm90_backward_kernels<Bf16, 128>}, {FA_BF16, sm90_backward_kernels<Bf16, 256>}};

// kv heads whose rows of q, dout and dq `cache` bytes hold.
int64_t kv_heads_in(int64_t cache, const Problem& problem, int dims) {
    const int64_t bytes = max_of(problem.d.seqlen_q, int64_t(1)) * problem.group * dims * 8;
    return max_of(cache / bytes, int64_t(1));
}

int semaphores_of(const Sm90BackwardKernel& kernel) { return kernel.variant == BwdVariant::wide ? 4 : 1; }  // kDqSemaphores
int cluster_size(const Sm90BackwardKernel& kernel) { return kernel.variant == BwdVariant::wide ? 2 : 1; }

// How a call's blocks of keys are ordered, divided into parts whose rows are preprocessed one after the other, and split by rows at
// the end.
struct Schedule {
    int64_t heads, key_blocks;  // kv heads of all sequences; of each, blocks or pairs
    int64_t sections, section;  // section: heads whose blocks are interleaved; the last one has what remains as well
    int64_t parts, part;        // part: in heads; the last one likewise
    int64_t split, pieces;      // blocks or pairs that are split, and in how many each
    // Blocks or pairs of a part that preprocess rows of the next.
    int64_t helper_blocks() const { return ceil_div(part * key_blocks, int64_t(2)); }
    int64_t helper_blocks_end() const { return parts > 1 ? (parts - 2) * part * key_blocks + helper_blocks() : 0; }
    int64_t counters() const { return round_up(parts, int64_t(4)); }
};
Schedule schedule_of(const Sm90BackwardRow& row, const rt::Device& device, const Problem& problem) {
    const Sm90BackwardKernel& kernel = *row.kernel;
    const fa_attention_desc_t& d = problem.d;
    Schedule schedule;
    schedule.heads = d.batch * d.heads_k;
    schedule.key_blocks = ceil_div(d.seqlen_k, row.keys * cluster_size(kernel));
    const int64_t slots = device.multiprocessors / cluster_size(kernel), steps = ceil_div(d.seqlen_q, row.rows) * problem.group;
    // Where blocks differ in length, the long ones of a section come first, and enough short ones must follow the last section's
    // long ones. Pairs, of which there are half as many at work, gain more by what the cache still holds (docs/lab/bounds.md).
    const bool differ = bounded_right(problem) || (problem.d.flags & FA_WINDOW) || !has_uniform_lengths(problem);
    const int64_t interleaved = kernel.variant == BwdVariant::wide
                                    ? kv_heads_in(16 << 20, problem, kernel.max_dim)
                                    : max_of(kv_heads_in(32 << 20, problem, kernel.max_dim), slots * 7 / 4 / schedule.key_blocks);
    // In a fixed order of sums each block of a head falls behind the one before it by an addition. Where the blocks of all heads that
    // are at work together are interleaved, the next heads' begin as far apart as those end, and lose no time by it.
    const int64_t at_once = deterministic(problem) ? max_of(slots / schedule.key_blocks, int64_t(1)) : 1;
    schedule.sections = max_of(schedule.heads / (differ ? interleaved : at_once), int64_t(1));
    schedule.section = schedule.heads / schedule.sections;
    // A part of short blocks is longer, so that the next one's rows are ready in time; very short blocks have no time to preprocess
    // any.
    const bool steady = !differ || (!(problem.d.flags & FA_WINDOW) && steps >= 32);
    const bool by_parts = kernel.variant == BwdVariant::plain && d.o_dtype == d.q_dtype && steady;
    const int64_t least = steps >= 32 ? slots : slots + slots / 2;
    schedule.part = round_up(max_of(least / schedule.key_blocks, int64_t(1)), schedule.section);
    schedule.parts = by_parts ? ceil_div(schedule.sections * schedule.section, schedule.part) : 1;
    if (schedule.parts == 1) schedule.part = schedule.heads;
    schedule.split = 0, schedule.pieces = 1;
    // Blocks of the same length: those of the last, partial wave are split. A piece's prologue and epilogue take as long as a few
    // steps.
    const int64_t blocks = schedule.heads * schedule.key_blocks, left = blocks % slots, border = 5;
    if (!kernel.add_split || differ || left == 0 || blocks - left < schedule.helper_blocks_end()) return schedule;
    for (int64_t pieces = 2, best = steps + border; pieces <= 16 && pieces * 8 * problem.group <= steps; pieces++) {
        const int64_t time = ceil_div(left * pieces, slots) * (ceil_div(steps, pieces) + border);
        if (time < best) best = time, schedule.split = left, schedule.pieces = pieces;
    }
    return schedule;
}

// The workspace, in words: the parts of dq that are added in order, or counters and partial sums; and what decides the units of dS.
struct Words {
    int64_t partials, max_v, bound, all;  // where these begin
};
Words words_of(const Sm90BackwardRow& row, const Schedule& schedule, const Problem& problem) {
    const Sm90BackwardKernel& kernel = *row.kernel;
    Words words;
    words.partials = schedule.counters();
    words.max_v = deterministic(problem)
                      ? problem.d.heads_q * padded_rows_of(problem) / row.rows * semaphores_of(kernel)
                      : schedule.counters() + schedule.split * schedule.pieces * cluster_size(kernel) * 2 * row.keys * kernel.max_dim;
    words.bound = words.max_v + (kernel.max_v ? schedule.heads * DsRange::kPieces : 0);
    words.all = words.bound + (kernel.max_v ? schedule.heads : 0);
    return words;
}

// Where a copy of the bias lies behind these, in bytes.
int64_t copy_at(const Words& words) { return round_up(words.all * int64_t(sizeof(float)), 256); }

// What launches read of a plan.
struct Planned {
    const Sm90BackwardRow* row;
    Sm90BackwardBiasParams params;  // but for tensor maps, pointers, and what args say of dout
    Words words;
    CopyBiasParams bias;
    int64_t max_v_blocks, prepare_blocks, blocks, split_blocks, finish_blocks;
};
void plan_launches(const Sm90BackwardRow& row, const rt::Device& device, const Problem& problem, Planned* planned) {
    const Sm90BackwardKernel& kernel = *row.kernel;
    const fa_attention_desc_t& d = problem.d;
    const Schedule schedule = schedule_of(row, device, problem);
    const int cluster = cluster_size(kernel);
    const int64_t padded_blocks_of_head = problem.group * ceil_div(d.seqlen_q, kPaddedRows),
                  chunks_of_padded_block = kPaddedRows / PreprocessAhead::kChunkRows;
    Planned& plan = *planned;
    plan.row = &row;
    plan.words = words_of(row, schedule, problem);
    Sm90BackwardBiasParams& params = plan.params;
    params.key_blocks = int(schedule.key_blocks);
    params.sections = int(schedule.sections);
    params.section_blocks = divisor(schedule.section * schedule.key_blocks);
    params.section = divisor(schedule.section);
    params.last_section = divisor(schedule.heads - (schedule.sections - 1) * schedule.section);
    params.blocks = int(schedule.key_blocks * schedule.heads + schedule.split * (schedule.pieces - 1));
    params.resident_blocks = kernel.variant == BwdVariant::plain ? min_of(params.blocks, device.multiprocessors) : params.blocks;
    params.preprocess.parts = int(schedule.parts);
    params.preprocess.part_blocks = divisor(schedule.part * schedule.key_blocks);
    params.preprocess.part_chunks = int(schedule.part * padded_blocks_of_head * chunks_of_padded_block);
    params.preprocess.all_chunks = int(schedule.heads * padded_blocks_of_head * chunks_of_padded_block);
    params.preprocess.chunks_of_head = divisor(ceil_div(d.seqlen_q, kPaddedRows) * chunks_of_padded_block);
    params.preprocess.heads_q = divisor(d.heads_q);
    params.preprocess.padded_rows_of_sequence = int(round_up(d.seqlen_q, kPaddedRows));
    params.preprocess.helper_blocks = int(schedule.helper_blocks());
    params.preprocess.o_step = d.o_stride[1] * 2 * 256 / kernel.max_dim;
    params.split.first_block = schedule.split > 0 ? int(schedule.heads * schedule.key_blocks - schedule.split) : INT32_MAX;
    params.split.pieces = divisor(schedule.pieces);
    params.heads_k = divisor(d.heads_k);
    params.bands = mask_rule(problem);
    params.ds_range.v_strides = row_strides(d.v_stride, problem.packed_k());
    params.rule = has_uniform_lengths(problem) ? row_rule(rule_of_all(problem)) : RowRule{};
    params.reverse_order = deterministic(problem) && bounded_right(problem);
    if (kernel.variant == BwdVariant::bias) {
        params.bias = planned_bias(problem);
        params.inverse_scale = 1.f / d.scale;
        plan.bias = copy_of_bias(problem, params.bias, row.rows);
    }
    plan.max_v_blocks = kernel.max_v ? schedule.heads * DsRange::kPieces : 0;
    plan.prepare_blocks = schedule.part * padded_blocks_of_head;
    plan.blocks = cluster * params.resident_blocks;
    plan.split_blocks = schedule.split * cluster * 2 * (kernel.max_dim / 32);
    plan.finish_blocks = d.batch * d.heads_q * ceil_div(d.seqlen_q, row.rows);
}

const Sm90BackwardRow* kernel_for(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    if (!can_implement(device, problem, refusal)) return nullptr;
    int widest = 0;
    for (const KernelsOf& kernels : kKernels) {
        if (kernels.dtype != problem.d.q_dtype) continue;
        const Sm90BackwardKernelList list = kernels.list();
        for (int i = 0; i < list.count; i++) {
            const Sm90BackwardKernel& kernel = *list.row[i].kernel;
            if (problem.d.dim_qk <= kernel.max_dim && problem.d.dim_v <= kernel.max_dim && kernel_can_implement(kernel, problem))
                return &list.row[i];
            if (problem.has(FA_OPERAND_BIAS) == (kernel.variant == BwdVariant::bias) && kernel.max_dim > widest) widest = kernel.max_dim;
        }
    }
    refuse(refusal, "dim_qk is %lld and dim_v %lld%s: expected at most %d", (long long)problem.d.dim_qk, (long long)problem.d.dim_v,
           problem.has(FA_OPERAND_BIAS) ? " with FA_OPERAND_BIAS" : "", widest);
    return nullptr;
}

bool plan_sm90_backward(const rt::Device& device, const Problem& problem, Tensors, BackwardLaunch* plan, FamilyParams* own,
                        Refusal* refusal) {
    const Sm90BackwardRow* const row = kernel_for(device, problem, refusal);
    if (!row) return false;
    Planned& planned = own->emplace<Planned>();
    plan_launches(*row, device, problem, &planned);
    plan->kernel = row->name;
    plan->rows = row->rows, plan->keys = row->keys;
    plan->dq_acc_columns = row->dq_acc_columns;
    plan->own_lse = row->own_lse;
    plan->blocks = planned.blocks;
    plan->workspace = uint64_t(planned.words.all) * sizeof(float);
    if (planned.bias.units > 0) plan->workspace = uint64_t(copy_at(planned.words) + bytes_of(planned.bias, problem));
    return true;
}

bool reads_tensors(const Problem& problem, const fa_backward_args_t& args) {
    const int64_t* const strides[] = {args.dq_stride, args.dk_stride, args.dv_stride};
    for (const int64_t* s : strides)
        if ((s[0] | s[1] | s[2]) % 8 != 0) return false;
    if (problem.has(FA_OPERAND_BIAS) && reinterpret_cast<uintptr_t>(args.forward->bias) % 16 != 0) return false;
    return tma_compatible(args.dout_stride, problem.d.q_dtype, rows_of_q(problem), problem.d.heads_q, sequences_of_q(problem));
}

rt::Status launch_kernels(const BackwardWork& work) {
    const Planned& planned = work.own.get<Planned>();
    const Sm90BackwardKernel& kernel = *planned.row->kernel;
    const Problem& problem = work.problem;
    const fa_forward_args_t& tensors = *work.args.forward;
    const BackwardRowParams& call = work.rows;
    void* const memory = work.memory;
    const rt::Stream stream = work.stream;
    const fa_attention_desc_t& d = problem.d;
    const int rows = planned.row->rows, keys = planned.row->keys;
    const Words& words = planned.words;
    Sm90BackwardBiasParams with_bias = planned.params;
    Sm90BackwardParams& params = with_bias;
    params.x = call;
    const int64_t dout_stride[] = {call.dout_strides.batch, call.dout_strides.row, call.dout_strides.head, 1};
    if (!encode_tensor_map(&params.q, tensors.q, d.q_dtype, d.q_stride, d.dim_qk, rows_of_q(problem), d.heads_q, sequences_of_q(problem),
                           {rows}) ||
        !encode_tensor_map(&params.dout, call.dout, d.q_dtype, dout_stride, d.dim_v, rows_of_q(problem), d.heads_q, sequences_of_q(problem),
                           {rows}) ||
        !encode_tensor_map(&params.k, tensors.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(problem), d.heads_k, sequences_of_k(problem),
                           {keys}) ||
        !encode_tensor_map(&params.v, tensors.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(problem), d.heads_k, sequences_of_k(problem),
                           {keys}))
        return cudaErrorInvalidValue;
    params.preprocess.rows_ready = static_cast<uint32_t*>(memory);
    params.preprocess.dout_step = call.dout_strides.row * 2 * 256 / kernel.max_dim;
    params.block_counter = static_cast<int*>(memory);
    params.split.partial = static_cast<float*>(memory) + words.partials;
    params.ds_range.max_v = static_cast<float*>(memory) + words.max_v;
    params.ds_range.bound = static_cast<uint32_t*>(memory) + words.bound;
    params.ds_range.v = tensors.v;
    rt::Status s = rt::kSuccess;
    if (kernel.variant == BwdVariant::bias)
        s = read_bias(planned.bias, problem, tensors, rows, static_cast<char*>(memory) + copy_at(words), stream, &with_bias.bias,
                      &with_bias.bias_map);
    if (s == rt::kSuccess && deterministic(problem) && call.dq_acc) {
        params.dq_semaphore = static_cast<uint32_t*>(memory);
        s = rt::set_zero(memory, uint64_t(words.max_v) * sizeof(uint32_t), stream);
    }
    if (s == rt::kSuccess && planned.max_v_blocks > 0) s = rt::launch_after(kernel.max_v, planned.max_v_blocks, 256, 0, stream, params);
    if (s == rt::kSuccess) s = rt::launch_after(kernel.prepare, planned.prepare_blocks, 256, 0, stream, params);
    if (s != rt::kSuccess) return s;
    s = kernel.kernel
            ? rt::launch_after(kernel.kernel, planned.blocks, kernel.threads, kernel.shared_bytes, stream, params, cluster_size(kernel))
            : rt::launch_after(kernel.bias_kernel, planned.blocks, kernel.threads, kernel.shared_bytes, stream, with_bias);
    if (s == rt::kSuccess && planned.split_blocks > 0) s = rt::launch_after(kernel.add_split, planned.split_blocks, 256, 0, stream, params);
    if (s != rt::kSuccess || !call.dq_acc) return s;
    return rt::launch_after(kernel.finish, planned.finish_blocks, 256, uint64_t(rows * (kernel.max_dim + 4) * 4), stream, params);
}

fa_status_t launch_sm90_backward(const BackwardWork& work, Message* message) {
    return launched(message, launch_kernels(work), work.launch.kernel);
}

}  // namespace

const BackwardFamily sm90_backward = {"sm90", kTmaTensors, plan_sm90_backward, reads_tensors, launch_sm90_backward};

}  // namespace gpu
}  // namespace fa
