#include "workload.h"
#include <math.h>

namespace hardening {
namespace {

constexpr int64_t kHeads = 2, kDim = 16;

std::vector<float> wave(int64_t n, float step) {
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) values[static_cast<size_t>(i)] = sinf(step * static_cast<float>(i + 1));
    return values;
}

}  // namespace

const char* name_of(Op op) {
    const char* const names[] = {"forward", "split_forward", "standard", "merge", "append_kv", "rotary"};
    return names[static_cast<int>(op)];
}

Workload::Workload(Op op, int64_t rows) : kind_(op) {
    const int64_t keys = op == Op::split_forward ? 256 : rows + 3, floats = rows * kHeads * kDim, cache = keys * kHeads * kDim;
    desc.q_dtype = FA_F32;
    desc.batch = 1;
    desc.heads_q = kHeads;
    desc.seqlen_q = rows;
    desc.seqlen_k = keys;
    desc.dim_qk = kDim;
    if (op == Op::split_forward) desc.num_splits = 4;
    if (op == Op::standard) desc.algorithm = FA_ALGORITHM_STANDARD;
    if (op == Op::merge) desc.operands = FA_OPERAND_LSE;
    q_ = wave(floats, 0.7f);
    k_ = wave(op == Op::merge ? 2 * floats : cache, 1.3f);  // merge: two parts
    v_ = wave(op == Op::merge ? 2 * rows * kHeads : cache, 0.9f);
    start_ = std::vector<float>(static_cast<size_t>(op == Op::append_kv ? 2 * cache : floats), -1.f);
    lse_ = std::vector<float>(static_cast<size_t>(rows * kHeads));
}

int32_t Workload::op() const {
    switch (kind_) {
        case Op::merge: return FA_OP_MERGE;
        case Op::append_kv: return FA_OP_APPEND_KV;
        case Op::rotary: return FA_OP_ROTARY;
        default: return FA_OP_FORWARD;
    }
}

void Workload::use_workspace(fa_handle_t handle) {
    ASSERT_EQ(fa_workspace_size(handle, &desc, op(), &bytes_), FA_OK) << fa_last_error(handle);
    workspace_.resize(bytes_ + 256);
    aligned_ = workspace_.data() + (256 - reinterpret_cast<uintptr_t>(workspace_.data()) % 256);
    if (bytes_ == 0) aligned_ = nullptr;
}

fa_status_t Workload::run(fa_handle_t handle) {
    out_ = start_;
    const auto finish = [&](auto& args) {
        args.workspace = aligned_;
        args.workspace_size = bytes_;
    };
    if (kind_ == Op::merge) {
        fa_merge_args_t a = FA_MERGE_ARGS_INIT;
        a.parts = 2;
        a.o_parts = k_.data();
        a.lse_parts = v_.data();
        a.o = out_.data();
        a.lse = lse_.data();
        finish(a);
        return fa_merge(handle, &desc, &a);
    }
    if (kind_ == Op::rotary) {
        fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
        a.x = q_.data();
        a.out = out_.data();
        a.cos = k_.data();
        a.sin = v_.data();
        a.max_position = desc.seqlen_q;
        a.rotary_dim = 8;
        finish(a);
        return fa_rotary(handle, &desc, &a);
    }
    if (kind_ == Op::append_kv) {
        fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
        a.k_new = k_.data();
        a.v_new = v_.data();
        a.seqlen_new = desc.seqlen_q;
        a.k = out_.data();
        a.v = out_.data() + out_.size() / 2;
        finish(a);
        return fa_append_kv(handle, &desc, &a);
    }
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.q = q_.data();
    a.k = k_.data();
    a.v = v_.data();
    a.o = out_.data();
    finish(a);
    return fa_forward_ex(handle, &desc, &a);
}

std::vector<float> reference(Op op, int64_t rows) {
    const fa_handle_t handle = make_handle();
    Workload w(op, rows);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 1), FA_OK);
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    return w.result();
}

}  // namespace hardening
