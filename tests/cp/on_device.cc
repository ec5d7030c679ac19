#include <algorithm>
#include <cstddef>
#include <cstring>
#include "ranks.h"

namespace test {
namespace {

// The arrays of the args that no rank has a part of.
constexpr size_t kWhole[] = {
    offsetof(fa_forward_args_t, q_descale),
    offsetof(fa_forward_args_t, k_descale),
    offsetof(fa_forward_args_t, v_descale),
    offsetof(fa_forward_args_t, o_scale),
    offsetof(fa_forward_args_t, alibi_slopes),
    offsetof(fa_forward_args_t, sinks),
    offsetof(fa_forward_args_t, q),
    offsetof(fa_forward_args_t, causal_offset),
    offsetof(fa_forward_args_t, cu_seqlens_q),
    offsetof(fa_forward_args_t, cu_seqlens_k),
    offsetof(fa_forward_args_t, seqused_q),
    offsetof(fa_forward_args_t, seqused_k),
    offsetof(fa_forward_args_t, leftpad_k),
};

void*& field_at(void* args, size_t offset) { return *reinterpret_cast<void**>(static_cast<char*>(args) + offset); }

}  // namespace

// Every field that points to the data.
template <class T>
void OnDevice::move(std::vector<T>& data, std::initializer_list<void*> fields) {
    if (data.empty()) return;
    moved_.emplace_back(DeviceMemory(handle_, data.data(), data.size() * sizeof(T)), data.data());
    for (void* field : fields)
        if (void* const at = data.data(); memcmp(field, &at, sizeof at) == 0) {
            void* const device = moved_.back().first.data();
            memcpy(field, &device, sizeof device);
        }
}

OnDevice::OnDevice(Rank& rank, fa_handle_t handle) : rank_(rank), handle_(handle) {
    move(rank.q.bytes, {&rank.a.q}), move(rank.k.bytes, {&rank.a.k}), move(rank.v.bytes, {&rank.a.v}), move(rank.o.bytes, {&rank.a.o});
    move(rank.lse, {&rank.a.lse}), move(rank.bias, {&rank.a.bias}), move(rank.mask, {&rank.a.mask});
    move(rank.seqused_k, {&rank.a.seqused_k}), move(rank.page_table, {&rank.a.page_table});
    move(rank.dout.bytes, {&rank.g.dout}), move(rank.dq.bytes, {&rank.g.dq}), move(rank.dk.bytes, {&rank.g.dk});
    move(rank.dv.bytes, {&rank.g.dv}), move(rank.dlse, {&rank.g.dlse}), move(rank.dsinks, {&rank.g.dsinks});
    fa_attention_desc_t whole = rank.d;  // without the strides of local tensors, which it would not fit
    whole.strided = 0;
    for (int64_t* stride : {whole.q_stride, whole.k_stride, whole.v_stride, whole.o_stride}) std::fill(stride, stride + 4, 0);
    for (const size_t field : kWhole) {
        void*& pointer = field_at(&rank.a, field);
        bool here = false;
        for (const auto& moved : moved_) here = here || moved.first.data() == pointer;
        uint64_t bytes = 0;
        if (!pointer || here) continue;
        EXPECT_EQ(FA_OK, fa_extent(&whole, FA_OP_FORWARD, &rank.a, uint32_t(field), &bytes)) << fa_last_error(nullptr);
        moved_.emplace_back(DeviceMemory(handle, pointer, bytes), nullptr);
        pointer = moved_.back().first.data();
    }
}

void OnDevice::back() {
    for (const auto& moved : moved_)
        if (moved.second) moved.first.read(moved.second);
}

}  // namespace test
