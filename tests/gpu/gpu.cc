#include "gpu/gpu.h"
#include "support/latent.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace test::gpu {

Graph::Graph(cudaStream_t stream, const std::function<void()>& enqueue, cudaStreamCaptureMode mode) {
    cuda(cudaStreamBeginCapture(stream, mode));
    enqueue();
    cudaGraph_t graph = nullptr;
    cuda(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    cuda(status);
}

Gate::Gate() {
    cuda(cudaHostAlloc(reinterpret_cast<void**>(&state_), sizeof(GateState), cudaHostAllocMapped | cudaHostAllocPortable));
    // Code is loaded when a kernel first runs, and that may wait for the device: let this one run open once.
    state_->open = 1;
    launch_gate(state_, nullptr);
    cuda(cudaStreamSynchronize(nullptr));
    state_->open = state_->expired = 0;
}

Gate::~Gate() {
    open();
    cudaDeviceSynchronize();
    cudaFreeHost(state_);
}

void Gpu::SetUp() {
    char why[512];
    if (fa_backend_status(FA_BACKEND_CUDA, why, sizeof why) != FA_OK) GTEST_SKIP() << why;
    cuda(cudaSetDevice(0));
}

bool has_less_shared_memory() { return getenv("FLASHATTN_MAX_SHARED") != nullptr; }

bool has_hopper_kernels() {
    static const bool has = [] {
        const Handle handle = make_handle();
        fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
        d.q_dtype = FA_BF16;
        d.batch = 1, d.heads_q = d.heads_k = 16, d.seqlen_q = d.seqlen_k = 4096, d.dim_qk = d.dim_v = 128;
        char text[FA_TEXT_MAX];
        if (fa_explain(handle, &d, FA_OP_FORWARD, text, sizeof text) != FA_OK) throw std::runtime_error(fa_last_error(handle));
        return std::string(text).find("kernel fwd_sm90") != std::string::npos;
    }();
    return has;
}

int most_cases(int otherwise) {
    const char* const cases = getenv("FA_CASES");
    return cases ? std::min(otherwise, atoi(cases)) : otherwise;
}

Handle make_handle(int32_t memory, int device, cudaStream_t stream) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA, info.memory = memory, info.device = device, info.stream = stream;
    fa_handle_t handle;
    if (fa_create(&handle, &info) != FA_OK) throw std::runtime_error(std::string("fa_create: ") + fa_last_error(nullptr));
    return Handle(handle);
}

Moved<fa_forward_args_t> moved(const Case& test_case) {
    using Args = fa_forward_args_t;
    Moved<Args> moved_args(test_case.a);
    moved_args.part(&Args::q, test_case.q.bytes());
    moved_args.part(&Args::k, test_case.k.bytes());
    moved_args.part(&Args::v, test_case.v.bytes());
    moved_args.part(&Args::o, test_case.o.bytes(), true);
    for (const BufferOperand& operand : buffer_operands())
        moved_args.part(operand.pointer, (test_case.*operand.buffer).bytes(), operand.output);
    for (const MetadataOperand& operand : metadata_operands())
        moved_args.part(operand.pointer, int64_t((test_case.metadata.*operand.values).size() * sizeof(int32_t)));
    if (has_whole_tokens(test_case.d)) {
        const int64_t tokens = (test_case.k.bytes() - kTokenDims) / kTokenBytes + 1;
        Memory whole(tokens * kTokenBytes);
        moved_args.interleave(&Args::k, whole, 0, kTokenBytes, kTokenDims, tokens);
        moved_args.interleave(&Args::k_descale, whole, kTokenDims, kTokenBytes, kTokenFactorBytes, tokens);
        moved_args.interleave(&Args::k_tail, whole, kTokenDims + kTokenFactorBytes, kTokenBytes,
                              kTokenBytes - kTokenDims - kTokenFactorBytes, tokens);
        moved_args.keep(std::move(whole));
    }
    moved_args.device.workspace = nullptr;
    moved_args.device.workspace_size = 0;
    return moved_args;
}

MovedBackward::MovedBackward(const BackwardCase& backward) : Moved(backward.args()), forward_(moved(backward.c)) {
    using Args = fa_backward_args_t;
    device.forward = &forward_.device;
    part(&Args::dout, backward.dout.bytes());
    part(&Args::dlse, backward.dlse.bytes());
    part(&Args::dq, backward.dq.bytes(), true);
    part(&Args::dk, backward.dk.bytes(), true);
    part(&Args::dv, backward.dv.bytes(), true);
    part(&Args::dbias, backward.dbias.bytes(), true);
    part(&Args::dsinks, backward.dsinks.bytes(), true);
    device.workspace = nullptr;
    device.workspace_size = 0;
}

BackwardCase differentiable(const Handle& handle, Case test_case, Rng& rng, bool with_dlse) {
    BackwardCase b(std::move(test_case));
    if (b.run_forward(handle) != FA_OK) throw std::runtime_error("fa_forward_ex: " + handle.error() + "\n" + b.c.describe());
    b.gives_dlse = with_dlse;
    b.bind(rng);
    b.fill_normal(rng);
    return b;
}

oracle::Products gpu_products(const BackwardCase& backward) {
    const int32_t o = backward.c.reading().o_dtype, q = backward.c.d.q_dtype;
    return {oracle::unit_roundoff(q) > oracle::unit_roundoff(o) ? q : o, q};
}

std::string compare_bits(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b) {
    if (a.size() != b.size()) return std::to_string(a.size()) + " bytes and " + std::to_string(b.size());
    for (size_t n = 0; n < a.size(); n++)
        if (a[n] != b[n]) return "byte " + std::to_string(n) + " of " + std::to_string(a.size()) + " differs";
    return "";
}

namespace {

// Line 1 of 8-bit products, whose bound for any data is wide.
std::string check_short_products(const Case& test_case, bool p_of_8_bits, int64_t row_step) {
    const oracle::Reading r = test_case.reading();
    const oracle::Attention want = oracle::attention(r, {false, row_step});
    const oracle::Pairs pairs = oracle::pair_o(r, want);
    const double error = oracle::relative_norm(pairs.got, pairs.want), limit = r.o_dtype == FA_E4M3   ? 5e-2
                                                                               : p_of_8_bits          ? 4e-2
                                                                               : r.o_dtype == FA_BF16 ? 4e-3
                                                                                                      : 2e-3;
    double lse_error = 0;
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (int64_t h = 0; h < test_case.d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) {
                if (!want.computed[size_t(want.row(b, h, i))] || !r.has(FA_OPERAND_LSE)) continue;
                const double lse = want.lse[size_t(want.row(b, h, i))], got = double(r.a.lse[r.lse(b, h, i)]);
                if (std::isfinite(lse)) lse_error = std::fmax(lse_error, std::fabs(got - lse) / std::fmax(1, std::fabs(lse)));
            }
    if (!(error <= limit)) return "relative error of o " + std::to_string(error) + ", at most " + std::to_string(limit);
    return lse_error <= 2e-3 ? "" : "error of LSE " + std::to_string(lse_error);
}

}  // namespace

std::string check_device_output(const Handle& handle, Case& test_case, const fa_attention_desc_t& ran, int64_t row_step) {
    test_case.short_products = sums_short_products(handle, ran);
    const bool p_of_8_bits = rounds_p_to_8_bits(handle, ran);
    test_case.rounded_q = rounds_q_to_bf16(handle, ran);
    const int32_t p_dtype = probability_dtype(handle, ran);
    const std::string fault = check_against_oracle(test_case, p_dtype, row_step);
    return fault.empty() && test_case.short_products ? check_short_products(test_case, p_of_8_bits, row_step) : fault;
}

}  // namespace test::gpu
