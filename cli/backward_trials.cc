// The backward cases of `verify`: the forward's own, where they have gradients. Each kernel's forward writes the o and LSE that its
// backward reads; judged like the forward, every element of every gradient and the norm of all of them.
#include <algorithm>
#include <memory>
#include "forward_call.h"
#include "oracle/backward_accuracy.h"
#include "trial.h"

namespace tool {
namespace {

bool has_gradients(const ForwardCase& test_case) {
    const auto differentiable = [](int32_t dtype) { return dtype <= FA_BF16; };
    constexpr uint32_t kWithout = FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE | FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE |
                                  FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE | FA_OPERAND_SCORES;
    const bool in_range = test_case.data != Data::limit || test_case.d.q_dtype == FA_F16;  // dO·v must fit f32
    return in_range && differentiable(test_case.d.q_dtype) && differentiable(test_case.d.k_dtype) && differentiable(test_case.d.o_dtype) &&
           test_case.d.algorithm == FA_ALGORITHM_FLASH && !(test_case.d.operands & kWithout);
}

// Dense gradients of all inputs, NaN before each run; dout and dlse are normal numbers.
class BackwardCall {
  public:
    explicit BackwardCall(const ForwardCase& test_case) : forward_(test_case) {
        a_.forward = &forward_.reading().a;
        spread_broadcast(forward_.reading().k_tensor, a_.dk_stride);
        spread_broadcast(forward_.reading().v_tensor, a_.dv_stride);
        const oracle::BackwardReading r(forward_.reading().d, a_);
        a_.dout = normals(r.dout_tensor, r.q_dtype);
        a_.dlse = static_cast<float*>(normals(r.dlse_tensor, FA_F32));
        a_.dq = output(r.dq_tensor, r.q_dtype);
        a_.dk = output(r.dk_tensor, r.k_dtype);
        a_.dv = output(r.dv_tensor, r.v_dtype);
        if (a_.forward->bias) a_.dbias = static_cast<float*>(output(r.dbias_tensor, FA_F32));
        if (a_.forward->sinks) a_.dsinks = static_cast<float*>(output({{1, 1, 1, r.d.heads_q}, {0, 0, 0, 1}}, FA_F32));
    }

    oracle::BackwardReading reading() const { return {forward_.reading().d, a_}; }
    fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc) {
        const oracle::Reading& r = forward_.reading();
        forward_.spoil_outputs();
        for (std::vector<unsigned char>* bytes : outputs_) std::fill(bytes->begin(), bytes->end(), static_cast<unsigned char>(0xff));
        const fa_status_t status = fa_forward_ex(handle, &desc, &r.a);
        return status == FA_OK ? fa_backward(handle, &desc, &a_) : status;
    }

  private:
    // What an input shares between sequences its gradient may not.
    static void spread_broadcast(const oracle::Tensor& tensor, int64_t (&stride)[4]) {
        if (tensor.stride[0] != 0 || tensor.count[0] <= 1) return;
        stride[0] = tensor.count[1] * tensor.count[2] * tensor.count[3], stride[1] = tensor.count[2] * tensor.count[3],
        stride[2] = tensor.count[3], stride[3] = 1;
    }
    void* normals(const oracle::Tensor& tensor, int32_t dtype) {
        void* const data = room(tensor, dtype);
        for (int64_t i = 0; i < tensor.extent(); ++i) oracle::store(data, i, dtype, rng_.normal());
        return data;
    }
    void* output(const oracle::Tensor& tensor, int32_t dtype) {
        void* const data = room(tensor, dtype);
        outputs_.push_back(memory_.back().get());
        return data;
    }
    void* room(const oracle::Tensor& tensor, int32_t dtype) {
        const int64_t bytes = std::max<int64_t>(tensor.extent(), 1) * oracle::size_of(dtype);
        memory_.push_back(std::make_unique<std::vector<unsigned char>>(size_t(bytes)));
        return memory_.back()->data();
    }

    ForwardCall forward_;
    fa_backward_args_t a_ = FA_BACKWARD_ARGS_INIT;
    test::Rng rng_{0xd0};
    std::vector<std::unique_ptr<std::vector<unsigned char>>> memory_;
    std::vector<std::vector<unsigned char>*> outputs_;
};

// What the kernel's forward and backward round on their way. On the CPU only matrix units take operands of 16 bits.
oracle::Products products_of(const Kernel& kernel, const oracle::Reading& reading) {
    const bool forward = !kernel.cpu || kernel.handle.explain(&reading.d).find("cpu_flash_matrix") != std::string::npos;
    const std::string plan = kernel.handle.explain(&reading.d, FA_OP_BACKWARD);
    const bool backward =
        !kernel.cpu || plan.find("cpu_backward_amx") != std::string::npos || plan.find("cpu_backward_avx512_bf16") != std::string::npos;
    const bool o_is_coarser = oracle::unit_roundoff(reading.o_dtype) >= oracle::unit_roundoff(reading.q_dtype);
    return {o_is_coarser || !forward ? reading.o_dtype : reading.q_dtype, backward ? reading.q_dtype : int32_t(FA_F32)};
}

void judge(const oracle::BackwardReading& reading, const std::vector<oracle::Target>& want, Data data, const oracle::Products& products,
           Outcome& outcome) {
    const oracle::Verdict verdict = oracle::compare(reading, want, products);
    outcome.fault = verdict.fault;
    outcome.share = verdict.worst;
    if (data != Data::normal) return;
    oracle::Pairs all;
    for (const oracle::Target& t : want) {
        const oracle::Pairs one = oracle::pairs(t);
        all.got.insert(all.got.end(), one.got.begin(), one.got.end());
        all.want.insert(all.want.end(), one.want.begin(), one.want.end());
    }
    outcome.norm = oracle::relative_norm(all.got, all.want);
    outcome.norm_bound = 0;
    for (const int32_t dtype : {reading.q_dtype, reading.k_dtype, reading.v_dtype, products.o_dtype, products.p_dtype})
        outcome.norm_bound = std::max(outcome.norm_bound, oracle::norm_limit(dtype));
    if (outcome.fault.empty() && !(*outcome.norm <= outcome.norm_bound))
        outcome.fault = text_of("gradients: the relative norm of the error is ", *outcome.norm, ", expected at most ", outcome.norm_bound);
}

// A GPU may sum in other ways when it has to give the same bits every time, and says so: the worse of the two is what it gets.
void run_backward(const ForwardCase& test_case, const Kernels& kernels, const Done& done) {
    BackwardCall call(test_case);
    const oracle::BackwardReading r = call.reading();
    const std::vector<oracle::Target> want = oracle::targets(r, oracle::backward(r, r.upstream()));
    fa_attention_desc_t same_bits = r.d;
    same_bits.flags |= FA_DETERMINISTIC;
    for (const Kernel& kernel : kernels) {
        const auto tried = [&](const fa_attention_desc_t& desc) {
            return attempt(
                kernel, desc, FA_OP_BACKWARD, [&](fa_handle_t h) { return call.run(h, desc); },
                [&](Outcome& outcome) { judge(r, want, test_case.data, products_of(kernel, r), outcome); });
        };
        Outcome outcome = tried(r.d);
        const auto way = [&](const fa_attention_desc_t& desc) { return kernel.handle.explain(&desc, FA_OP_BACKWARD); };
        if (outcome.passed() && way(same_bits) != way(r.d)) {
            const Outcome same = tried(same_bits);
            if (!same.passed() || same.share > outcome.share) outcome = same;
        }
        done(outcome);
    }
}

}  // namespace

std::vector<Trial> backward_trials() {
    std::vector<Trial> trials;
    for (ForwardCase& c : forward_cases()) {
        if (!has_gradients(c)) continue;
        const auto shared = std::make_shared<ForwardCase>(std::move(c));
        trials.push_back(
            {"gradients: " + shared->name, [shared](const auto& kernels, const auto& done) { run_backward(*shared, kernels, done); }});
    }
    return trials;
}

}  // namespace tool
