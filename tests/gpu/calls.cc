// The calls that streams, graphs and devices are tested with: small, and full of metadata that is read when they run.
#include <algorithm>
#include <numeric>
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

// Host memory of an args struct: written by tests, though the struct says const.
int32_t* writable(const int32_t* p) { return const_cast<int32_t*>(p); }

void poison(const Buffer& buffer) {
    if (buffer.bytes() > 0) memset(buffer.as(), kPoison, size_t(buffer.bytes()));
}

template <class T>
void shuffle(Rng& rng, T* values, int64_t count) {
    for (int64_t n = count - 1; n > 0; n--) std::swap(values[n], values[rng.between(0, n)]);
}

void change_starts(Case& test_case, Rng& rng) {
    for (const int32_t* cu : {test_case.a.cu_seqlens_q, test_case.a.cu_seqlens_k}) {
        const bool q = cu == test_case.a.cu_seqlens_q;
        const int64_t longest = q ? test_case.d.seqlen_q : test_case.d.seqlen_k, total = q ? test_case.d.total_q : test_case.d.total_k;
        for (int64_t b = 0; b < test_case.d.batch; b++) writable(cu)[b + 1] = int32_t(std::min(total, cu[b] + rng.between(0, longest)));
    }
}

// Bytes of a call's workspace.
uint64_t workspace_bytes(fa_handle_t handle, const fa_attention_desc_t& desc, int32_t op) {
    uint64_t bytes = uint64_t(64) << 20;
    if (handle && fa_workspace_size(handle, &desc, op, &bytes) != FA_OK) throw std::runtime_error(fa_last_error(handle));
    return bytes;
}

class Forward : public Call {
  public:
    Forward(Case given, uint64_t seed, fa_handle_t handle, bool packed) : c_(std::move(given)), rng_(seed), packed_(packed) {
        c_.bind(rng_);
        moved_ = std::make_unique<Moved<fa_forward_args_t>>(moved(c_));
        const uint64_t bytes = workspace_bytes(handle, c_.d, FA_OP_FORWARD);
        if (bytes > 0) workspace_ = Memory(int64_t(bytes));
        moved_->device.workspace = workspace_.as();
        moved_->device.workspace_size = bytes;
        moved_->device.flags = FA_ARGS_STREAM;
        change();
    }
    const char* name() const override { return packed_ ? "forward of packed sequences" : "forward over pages"; }
    fa_status_t enqueue(fa_handle_t handle, cudaStream_t stream) override {
        moved_->device.stream = stream;
        return fa_forward_ex(handle, &c_.d, &moved_->device);
    }
    void change() override {
        if (packed_) change_starts(c_, rng_);
        else change_pages();
        c_.fill_normal(rng_, 1, 0.5, 1);
        c_.set_descales(rng_, 0.03);
        for (const Buffer* output : {&c_.o, &c_.lse}) poison(*output);
        moved_->upload();
    }
    std::string check() override {
        moved_->fetch();
        return check_against_oracle(c_, c_.d.q_dtype);
    }
    std::vector<unsigned char> output() const override {
        std::vector<unsigned char> all = bytes_of(c_.o);
        const std::vector<unsigned char> lse = bytes_of(c_.lse);
        all.insert(all.end(), lse.begin(), lse.end());
        return all;
    }

  private:
    void change_pages() {
        for (int64_t b = 0; b < c_.d.batch; b++) writable(c_.a.seqused_k)[b] = int32_t(rng_.between(0, c_.d.seqlen_k));
        shuffle(rng_, writable(c_.a.page_table), int64_t(c_.metadata.page_table.size()));
        for (int n = 0; n < 2; n++) c_.rng_state.as<uint64_t>()[n] = rng_.bits();
    }

    Case c_;
    Rng rng_;
    bool packed_;
    std::unique_ptr<Moved<fa_forward_args_t>> moved_;
    Memory workspace_;
};

// Of packed sequences, which change in length; with sinks, and with the same bits every time.
class Backward : public Call {
  public:
    Backward(uint64_t seed, fa_handle_t handle) : forward_(make_handle(FA_MEMORY_HOST)), rng_(seed), b_(make()) {
        moved_ = std::make_unique<MovedBackward>(b_);
        const uint64_t bytes = workspace_bytes(handle, b_.c.d, FA_OP_BACKWARD);
        workspace_ = Memory(int64_t(bytes));
        moved_->device.workspace = workspace_.as(), moved_->device.workspace_size = bytes;
        moved_->device.flags = FA_ARGS_STREAM;
        change();
    }
    const char* name() const override { return "backward of packed sequences"; }
    fa_status_t enqueue(fa_handle_t handle, cudaStream_t stream) override {
        moved_->device.stream = stream;
        return fa_backward(handle, &b_.c.d, &moved_->device);
    }
    void change() override {
        change_starts(b_.c, rng_);
        b_.c.fill_normal(rng_);
        if (b_.run_forward(forward_) != FA_OK) throw std::runtime_error(forward_.error());
        b_.fill_normal(rng_);
        b_.reset_outputs();
        moved_->upload();
    }
    std::string check() override {
        moved_->fetch();
        return b_.check(gpu_products(b_));
    }
    std::vector<unsigned char> output() const override {
        std::vector<unsigned char> all;
        for (const Buffer* buffer : {&b_.dq, &b_.dk, &b_.dv, &b_.dsinks}) {
            const std::vector<unsigned char> bytes = bytes_of(*buffer);
            all.insert(all.end(), bytes.begin(), bytes.end());
        }
        return all;
    }

  private:
    BackwardCase make() {
        Case c = shaped({4, 4, 2, 170, 230, 64, 64}, FA_BF16);
        c.d.flags |= FA_DETERMINISTIC;
        c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SINKS;
        c.d.total_q = 400, c.d.total_k = 600;
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.metadata.cu_seqlens_q.assign(5, 0), c.metadata.cu_seqlens_k.assign(5, 0);
        c.bind(rng_);
        c.fill_normal(rng_);
        for (int h = 0; h < 4; h++) c.sinks.as<float>()[h] = 0.5f;
        return differentiable(forward_, std::move(c), rng_);
    }

    Handle forward_;
    Rng rng_;
    BackwardCase b_;
    std::unique_ptr<MovedBackward> moved_;
    Memory workspace_;
};

// A call whose oracle is a list of writes.
template <class Args>
class Writer : public Call {
  public:
    fa_status_t enqueue(fa_handle_t handle, cudaStream_t stream) override {
        moved_->device.flags |= FA_ARGS_STREAM;
        moved_->device.stream = stream;
        return run(handle, &moved_->device);
    }
    void change() override {
        draw();
        want_ = expected();
        moved_->upload();
    }
    std::string check() override {
        moved_->fetch();
        return oracle::compare(want_).fault;
    }

  protected:
    explicit Writer(uint64_t seed) : rng(seed) {}
    virtual fa_status_t run(fa_handle_t handle, const Args* args) = 0;
    virtual void draw() = 0;
    virtual std::vector<oracle::Write> expected() const = 0;
    Buffer& floats(int64_t count) { return *buffers_.emplace_back(std::make_unique<Buffer>(count * 4, random_side(rng))); }
    void fill(float* x, int64_t count) {
        for (int64_t n = 0; n < count; n++) x[n] = float(rng.normal());
    }

    Rng rng;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    std::unique_ptr<Moved<Args>> moved_;

  private:
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<oracle::Write> want_;
};

class Merge : public Writer<fa_merge_args_t> {
  public:
    explicit Merge(uint64_t seed) : Writer(seed) {
        d.o_dtype = FA_F32, d.operands = FA_OPERAND_LSE | FA_OPERAND_SEQUSED_Q;
        d.batch = 3, d.heads_q = 5, d.seqlen_q = 17, d.dim_v = 96;
        rows = d.batch * d.heads_q * d.seqlen_q;
        fa_merge_args_t a = FA_MERGE_ARGS_INIT;
        a.parts = kParts;
        a.o_parts = floats(kParts * rows * d.dim_v).as<float>(), a.lse_parts = floats(kParts * rows).as<float>();
        a.o = (o = &floats(rows * d.dim_v))->as(), a.lse = (lse = &floats(rows))->as<float>();
        a.seqused_q = floats(d.batch).as<int32_t>();
        moved_ = std::make_unique<Moved<fa_merge_args_t>>(a);
        moved_->part(&fa_merge_args_t::o_parts, kParts * rows * d.dim_v * 4);
        moved_->part(&fa_merge_args_t::lse_parts, kParts * rows * 4);
        moved_->part(&fa_merge_args_t::seqused_q, d.batch * 4);
        moved_->part(&fa_merge_args_t::o, rows * d.dim_v * 4, true);
        moved_->part(&fa_merge_args_t::lse, rows * 4, true);
        change();
    }
    const char* name() const override { return "merge"; }
    std::vector<unsigned char> output() const override { return bytes_of(*o); }

  private:
    static constexpr int64_t kParts = 3;
    fa_status_t run(fa_handle_t handle, const fa_merge_args_t* args) override { return fa_merge(handle, &d, args); }
    std::vector<oracle::Write> expected() const override { return oracle::merge(d, moved_->host); }
    void draw() override {
        const fa_merge_args_t& a = moved_->host;
        fill(const_cast<float*>(a.o_parts), kParts * rows * d.dim_v);
        fill(const_cast<float*>(a.lse_parts), kParts * rows);
        for (int64_t b = 0; b < d.batch; b++) writable(a.seqused_q)[b] = int32_t(rng.between(0, d.seqlen_q));
        poison(*o), poison(*lse);
    }
    int64_t rows = 0;
    Buffer *o = nullptr, *lse = nullptr;
};

// New tokens, rotated, into pages of 8 bits with factors of their own.
class Append : public Writer<fa_append_kv_args_t> {
  public:
    explicit Append(uint64_t seed) : Writer(seed) {
        using Args = fa_append_kv_args_t;
        d.q_dtype = FA_F32, d.k_dtype = FA_E4M3;
        d.operands = FA_OPERAND_SEQUSED_K | FA_OPERAND_PAGE_TABLE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        d.batch = 5, d.heads_q = d.heads_k = 3, d.seqlen_k = 50, d.dim_qk = 64, d.dim_v = 40, d.page_size = 16;
        columns = (d.seqlen_k + d.page_size - 1) / d.page_size;
        d.num_pages = d.batch * columns + 2;
        for (int64_t* s : {d.k_descale_stride, d.v_descale_stride}) s[0] = d.page_size * d.heads_k, s[1] = d.heads_k, s[2] = 1;
        const int64_t slots = d.num_pages * d.page_size * d.heads_k, lines = d.batch * kNew * d.heads_k;
        Args a = FA_APPEND_KV_ARGS_INIT;
        a.flags = FA_APPEND_DYNAMIC_SCALE;
        a.seqlen_new = kNew, a.rotary_dim = 32, a.max_position = d.seqlen_k;
        const Angles angles(rng, a.max_position, a.rotary_dim);
        const int64_t turns = a.max_position * a.rotary_dim / 2;
        a.cos = copy(angles.cos, turns), a.sin = copy(angles.sin, turns);
        a.k_new = floats(lines * d.dim_qk).as(), a.v_new = floats(lines * d.dim_v).as();
        a.k = (k = &floats(slots * d.dim_qk / 4))->as(), a.v = (v = &floats(slots * d.dim_v / 4))->as();
        a.k_descale = (k_scale = &floats(slots))->as<float>(), a.v_descale = (v_scale = &floats(slots))->as<float>();
        a.seqused_k = floats(d.batch).as<int32_t>(), a.page_table = floats(d.batch * columns).as<int32_t>();
        std::iota(writable(a.page_table), writable(a.page_table) + d.batch * columns, 1);
        moved_ = std::make_unique<Moved<Args>>(a);
        moved_->part(&Args::k_new, lines * d.dim_qk * 4), moved_->part(&Args::v_new, lines * d.dim_v * 4);
        moved_->part(&Args::k, slots * d.dim_qk, true), moved_->part(&Args::v, slots * d.dim_v, true);
        moved_->part(&Args::k_descale, slots * 4, true), moved_->part(&Args::v_descale, slots * 4, true);
        moved_->part(&Args::seqused_k, d.batch * 4), moved_->part(&Args::page_table, d.batch * columns * 4);
        moved_->part(&Args::cos, turns * 4), moved_->part(&Args::sin, turns * 4);
        change();
    }
    const char* name() const override { return "append_kv"; }
    std::vector<unsigned char> output() const override { return bytes_of(*k); }

  private:
    static constexpr int64_t kNew = 3;
    const float* copy(const Buffer& from, int64_t count) {
        float* to = floats(count).as<float>();
        return static_cast<const float*>(memcpy(to, from.as(), size_t(count) * 4));
    }
    fa_status_t run(fa_handle_t handle, const fa_append_kv_args_t* args) override { return fa_append_kv(handle, &d, args); }
    std::vector<oracle::Write> expected() const override { return oracle::append_kv(d, moved_->host); }
    void draw() override {
        const fa_append_kv_args_t& a = moved_->host;
        fill(static_cast<float*>(const_cast<void*>(a.k_new)), d.batch * kNew * d.heads_k * d.dim_qk);
        fill(static_cast<float*>(const_cast<void*>(a.v_new)), d.batch * kNew * d.heads_k * d.dim_v);
        for (int64_t b = 0; b < d.batch; b++) writable(a.seqused_k)[b] = int32_t(rng.between(0, d.seqlen_k - kNew));
        shuffle(rng, writable(a.page_table), d.batch * columns);
        for (const Buffer* output : {k, v, k_scale, v_scale}) poison(*output);
    }
    int64_t columns = 0;
    Buffer *k = nullptr, *v = nullptr, *k_scale = nullptr, *v_scale = nullptr;
};

class Rotate : public Writer<fa_rotary_args_t> {
  public:
    explicit Rotate(uint64_t seed) : Writer(seed) {
        using Args = fa_rotary_args_t;
        d.q_dtype = FA_F32, d.operands = FA_OPERAND_SEQUSED_Q;
        d.batch = 4, d.heads_q = 3, d.seqlen_q = 11, d.dim_qk = 72;
        count = d.batch * d.seqlen_q * d.heads_q * d.dim_qk;
        Args a = FA_ROTARY_ARGS_INIT;
        a.rotary_dim = 48, a.max_position = 30;
        a.x = floats(count).as(), a.out = (out = &floats(count))->as();
        a.cos = floats(kTurns).as<float>(), a.sin = floats(kTurns).as<float>();
        a.position_offset = floats(d.batch).as<int32_t>(), a.seqused = floats(d.batch).as<int32_t>();
        moved_ = std::make_unique<Moved<Args>>(a);
        moved_->part(&Args::x, count * 4), moved_->part(&Args::out, count * 4, true);
        moved_->part(&Args::cos, kTurns * 4), moved_->part(&Args::sin, kTurns * 4);
        moved_->part(&Args::position_offset, d.batch * 4), moved_->part(&Args::seqused, d.batch * 4);
        change();
    }
    const char* name() const override { return "rotary"; }
    std::vector<unsigned char> output() const override { return bytes_of(*out); }

  private:
    static constexpr int64_t kTurns = 30 * 24;
    fa_status_t run(fa_handle_t handle, const fa_rotary_args_t* args) override { return fa_rotary(handle, &d, args); }
    std::vector<oracle::Write> expected() const override { return oracle::rotary(d, moved_->host); }
    void draw() override {
        const fa_rotary_args_t& a = moved_->host;
        fill(static_cast<float*>(const_cast<void*>(a.x)), count);
        fill(const_cast<float*>(a.cos), kTurns), fill(const_cast<float*>(a.sin), kTurns);
        for (int64_t b = 0; b < d.batch; b++) {
            writable(a.position_offset)[b] = int32_t(rng.between(0, a.max_position - d.seqlen_q));
            writable(a.seqused)[b] = int32_t(rng.between(0, d.seqlen_q));
        }
        poison(*out);
    }
    int64_t count = 0;
    Buffer* out = nullptr;
};

// Whole numbers, which bf16 has.
class Convert : public Call {
  public:
    explicit Convert(uint64_t seed) : rng_(seed), x_(kCount * 4), out_(kCount * 2) { change(); }
    const char* name() const override { return "convert"; }
    fa_status_t enqueue(fa_handle_t handle, cudaStream_t stream) override {
        const fa_conversion_t list{x_.as(), out_.as(), {1, 1, 1, kCount}, {0, 0, 0, 1}, {0, 0, 0, 1}, FA_F32, FA_BF16, 0};
        return fa_convert(handle, &list, 1, FA_ARGS_STREAM, stream);
    }
    void change() override {
        for (float& value : want_) value = float(rng_.between(-100, 100));
        cuda(cudaMemcpy(x_.as(), want_.data(), kCount * 4, cudaMemcpyHostToDevice));
        cuda(cudaMemset(out_.as(), 0xff, kCount * 2));
        cuda(cudaDeviceSynchronize());
    }
    std::string check() override {
        cuda(cudaMemcpy(got_.data(), out_.as(), kCount * 2, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < kCount; i++) {
            uint32_t bits;
            memcpy(&bits, &want_[i], sizeof bits);
            if (got_[i] != bits >> 16) return "element " + std::to_string(i) + " is " + std::to_string(got_[i]);
        }
        return "";
    }
    std::vector<unsigned char> output() const override {
        std::vector<unsigned char> bytes(kCount * 2);
        cuda(cudaMemcpy(bytes.data(), out_.as(), bytes.size(), cudaMemcpyDeviceToHost));
        return bytes;
    }

  private:
    static constexpr int64_t kCount = 5000;
    Rng rng_;
    Memory x_, out_;
    std::vector<float> want_ = std::vector<float>(kCount);
    std::vector<uint16_t> got_ = std::vector<uint16_t>(kCount);
};

}  // namespace

std::unique_ptr<Call> forward_call(fa_handle_t handle, uint64_t seed) {
    Case c = shaped({3, 4, 2, 5, 700, 64, 48}, FA_F16);
    c.d.k_dtype = FA_I8, c.d.num_splits = 4, c.d.dropout_p = 0.2f;
    c.d.operands |= FA_OPERAND_SEQUSED_K | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_RNG_STATE;
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    paged(c, 16);
    for (int64_t* s : {c.d.k_descale_stride, c.d.v_descale_stride}) s[0] = c.d.page_size * c.d.heads_k, s[1] = c.d.heads_k, s[2] = 1;
    c.metadata.seqused_k.assign(size_t(c.d.batch), int32_t(c.d.seqlen_k));
    return std::make_unique<Forward>(std::move(c), seed, handle, false);
}

std::unique_ptr<Call> packed_call(fa_handle_t handle, uint64_t seed) {
    Case c = shaped({4, 4, 2, 70, 130, 40, 40}, FA_BF16);
    c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    c.d.total_q = 200, c.d.total_k = 400;
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.metadata.cu_seqlens_q.assign(5, 0), c.metadata.cu_seqlens_k.assign(5, 0);
    return std::make_unique<Forward>(std::move(c), seed, handle, true);
}

std::unique_ptr<Call> merge_call(uint64_t seed) { return std::make_unique<Merge>(seed); }

std::vector<std::unique_ptr<Call>> one_of_each(fa_handle_t handle) {
    std::vector<std::unique_ptr<Call>> calls;
    calls.push_back(forward_call(handle, 201));
    calls.push_back(packed_call(handle, 202));
    calls.push_back(std::make_unique<Backward>(206, handle));
    calls.push_back(merge_call(203));
    calls.push_back(std::make_unique<Append>(204));
    calls.push_back(std::make_unique<Rotate>(205));
    calls.push_back(std::make_unique<Convert>(207));
    return calls;
}

}  // namespace test::gpu
