// Ranks that are processes with a device each, as programs over NCCL have them: every method against one process on the CPU, ranks that
// refuse or do not come, and one that is killed in the middle of a call. Over NCCL itself where two devices are, and over stand-ins on the
// CPU backend. This process touches no device, of which a fork has no use.
#include <flashattn_cp_nccl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include "../pipes.h"
#include "support/device_memory.h"
#include "support/handle.h"
#ifdef FA_NCCL_STAND_IN
#include "stand_in/comms.h"
constexpr bool kOwnDevices = false;
#else
constexpr bool kOwnDevices = true;
#endif

namespace test {
namespace {

enum { kRows = 500, kHeads = 8, kDim = 64, kRow = kHeads * kDim };
constexpr int64_t kPatient = 30000, kShort = kOwnDevices ? 2000 : 800;  // milliseconds
constexpr double kLongest = 40;                                         // seconds of a process, whatever happens
// What a process ends with, beside a status.
enum { kWrong = 250, kLate, kUnprepared };

struct Way {
    const char* name;
    int32_t method;
};
constexpr Way kWays[] = {{"ulysses", FA_CP_METHOD_ULYSSES}, {"all-gather", FA_CP_METHOD_ALL_GATHER}, {"ring", FA_CP_METHOD_RING}};

// What processes share.
struct Meeting {
    std::atomic<bool> ready{false};
    ncclUniqueId id;
};

int devices() {
    static const std::vector<int> counted = in_processes(1, [](int32_t) {
        int n = 0;
        return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
    });
    return std::max(counted[0], 0);
}

using Floats = std::vector<float>;

struct Problem {
    Floats q, k, v, dout, o, lse, dq, dk, dv;
    Problem() : lse(kRows * kHeads) {
        uint32_t seed = 1;
        for (Floats* x : {&q, &k, &v, &dout, &o, &dq, &dk, &dv}) {
            x->resize(kRows * kRow);
            for (float& value : *x) value = float((seed = seed * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1.f;
        }
    }
};

// A problem's args, in the memory of a handle.
struct Placed {
    Problem& problem;
    std::deque<DeviceMemory> memory;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;

    Placed(Problem& p, fa_handle_t handle) : problem(p) {
        const auto there = [&](Floats& x) {
            memory.emplace_back(handle, x.data(), x.size() * sizeof(float));
            return static_cast<float*>(memory.back().data());
        };
        forward.q = there(p.q), forward.k = there(p.k), forward.v = there(p.v), forward.o = there(p.o), forward.lse = there(p.lse);
        backward.forward = &forward, backward.dout = there(p.dout);
        backward.dq = there(p.dq), backward.dk = there(p.dk), backward.dv = there(p.dv);
    }
    void back() {
        Floats* const all[] = {&problem.q,    &problem.k,  &problem.v,  &problem.o, &problem.lse,
                               &problem.dout, &problem.dq, &problem.dk, &problem.dv};
        for (size_t i = 0; i < memory.size(); i++) memory[i].read(all[i]->data());
    }
};

fa_attention_desc_t causal_desc() {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.operands = FA_OPERAND_LSE;
    d.batch = 1, d.heads_q = kHeads, d.seqlen_q = d.seqlen_k = kRows, d.dim_qk = kDim;
    d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT;
    return d;
}

double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Fault {
    int32_t rank = -1;         // whose it is
    int64_t dies_at = -1;      // it is killed when it starts this group of messages, counted from 0
    bool refuses = false;      // its args are refused
    bool never_comes = false;  // to the call
};

// The start of a transport, but for the group at which the process is killed.
fa_status_t (*inner_start)(void*, const fa_cp_message_t*, int64_t, uint64_t*);
int64_t groups_left;
fa_status_t deadly_start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
    if (groups_left-- == 0) raise(SIGKILL);
    return inner_start(user, messages, count, ticket);
}

// Everything that a process has to do with its communicator ends with it, as after a failure nobody can be waited for.
int rank_process(Meeting* meeting, int32_t rank, int32_t ranks, int32_t method, int64_t limit, const Fault& fault) {
    alarm(unsigned(kLongest));
    const bool mine = rank == fault.rank;
    ncclComm_t comm;
    fa_cp_transport_t transport;
    if (cudaSetDevice(rank) != cudaSuccess) return kUnprepared;
    if (rank == 0) meeting->ready = ncclGetUniqueId(&meeting->id) == ncclSuccess;
    for (const double begin = seconds(); !meeting->ready;)
        if (seconds() - begin > kLongest / 2) return kUnprepared;
    if (ncclCommInitRank(&comm, ranks, meeting->id, rank) != ncclSuccess || fa_cp_nccl_open(comm, &transport) != FA_OK) return kUnprepared;
    if (mine && fault.dies_at >= 0) inner_start = transport.start, groups_left = fault.dies_at, transport.start = deadly_start;
#ifdef FA_NCCL_STAND_IN
    if (fault.rank >= 0) go_on_after(300);
#endif
    const fa_attention_desc_t d = causal_desc();
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS, spread.layout = FA_CP_LAYOUT_ZIGZAG, spread.method = method;
    fa_cp_range_t ranges[2];
    int64_t count = 0, rows = 0;
    fa_cp_partition(&spread, rank, ranks, nullptr, 1, kRows, ranges, 2, &count);

    const Handle handle = make_device_handle(kOwnDevices ? rank : 0);
    Problem whole, part;
    {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = FA_BACKEND_CPU;
        fa_handle_t cpu;
        if (fa_create(&cpu, &info) != FA_OK) return kUnprepared;
        Placed on_cpu(whole, cpu);
        if (fa_forward_ex(cpu, &d, &on_cpu.forward) != FA_OK || fa_backward(cpu, &d, &on_cpu.backward) != FA_OK) return kUnprepared;
        on_cpu.back();
    }
    for (Floats* x : {&part.q, &part.k, &part.v, &part.dout, &whole.o, &whole.dq, &whole.dk, &whole.dv})
        for (int64_t i = 0; i < count; i++)
            memmove(x->data() + ranges[i].local * kRow, x->data() + ranges[i].begin * kRow, size_t(ranges[i].rows * kRow) * sizeof(float));
    for (int64_t i = 0; i < count; i++) rows += ranges[i].rows;
    Placed args(part, handle);
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport, info.timeout_ms = limit;
    fa_cp_t cp = nullptr;
    if (fa_cp_create(&cp, handle, &info) != FA_OK) return kUnprepared;
    if (mine && fault.refuses) args.forward.q = nullptr;
    if (mine && fault.never_comes) {
        usleep(useconds_t(2000 * limit));
        _exit(FA_OK);
    }

    const double begin = seconds();
    fa_status_t status = fa_cp_forward(cp, &d, &spread, &args.forward);
    if (status == FA_OK) status = fa_cp_backward(cp, &d, &spread, &args.backward);
    if (status == FA_OK) status = fa_cp_synchronize(cp);
    const double took = seconds() - begin;
    fa_cp_destroy(cp);
    if (status != FA_OK) return took > 1e-3 * 2 * double(limit) + 10 ? int(kLate) : int(status);
    args.back();
    for (int64_t i = 0; i < rows * kRow; i++)
        for (const auto& [got, want] : {std::pair(&part.o, &whole.o), {&part.dq, &whole.dq}, {&part.dk, &whole.dk}, {&part.dv, &whole.dv}})
            if (!(std::abs((*got)[size_t(i)] - (*want)[size_t(i)]) < 1e-4f)) return kWrong;
    fa_cp_nccl_close(&transport);
    ncclCommDestroy(comm);
    return FA_OK;
}

class NcclRanks : public testing::TestWithParam<Way> {
  protected:
    void SetUp() override {
        ranks_ = std::min(devices(), 4);
        if (ranks_ < 2) GTEST_SKIP() << "fewer than two CUDA devices";
        if (ranks_ == 3) ranks_ = 2;  // which divides the heads
        void* const memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(MAP_FAILED, memory);
        meeting_ = new (memory) Meeting;
    }
    void TearDown() override {
        if (!meeting_) return;
#ifdef FA_NCCL_STAND_IN
        forget(meeting_->id);
#endif
        munmap(meeting_, sizeof(Meeting));
    }
    std::vector<int> ends(int64_t limit, const Fault& fault) {
        return in_processes(ranks_, [&](int32_t rank) {
            const int end = rank_process(meeting_, rank, ranks_, GetParam().method, limit, fault);
            fflush(stdout);
            return end;
        });
    }
    int32_t last() const { return ranks_ - 1; }
    int32_t ranks_ = 0;
    Meeting* meeting_ = nullptr;
};

TEST_P(NcclRanks, HaveWhatOneProcessHas) { EXPECT_EQ(std::vector<int>(size_t(ranks_), FA_OK), ends(kPatient, {})); }

// What ranks say to each other before a method begins is the same with all of them.
TEST_P(NcclRanks, ARefusalIsAStatusForAll) {
    if (GetParam().method != FA_CP_METHOD_ULYSSES) return;
    Fault fault;
    fault.rank = last(), fault.refuses = true;
    const std::vector<int> found = ends(kPatient, fault);
    for (int32_t r = 0; r < ranks_; r++) EXPECT_EQ(r == last() ? FA_INVALID_ARGUMENT : FA_PEER_FAILED, found[size_t(r)]) << "rank " << r;
}

TEST_P(NcclRanks, OneThatDoesNotComeIsATimeout) {
    if (GetParam().method != FA_CP_METHOD_ULYSSES) return;
    Fault fault;
    fault.rank = last(), fault.never_comes = true;
    const std::vector<int> found = ends(kShort, fault);
    for (int32_t r = 0; r < last(); r++) EXPECT_EQ(FA_TIMEOUT, found[size_t(r)]) << "rank " << r;
}

// In the middle of a forward, and of the backward behind it.
TEST_P(NcclRanks, OneThatIsKilledIsAStatusForTheOthers) {
    Fault fault;
    fault.rank = last(), fault.dies_at = GetParam().method == FA_CP_METHOD_RING ? 0 : 1;
    const std::vector<int> found = ends(kShort, fault);
    EXPECT_EQ(-SIGKILL, found[size_t(last())]);
    for (int32_t r = 0; r < last(); r++)
        EXPECT_TRUE(found[size_t(r)] == FA_TIMEOUT || found[size_t(r)] == FA_PEER_FAILED)
            << "rank " << r << " ended with " << found[size_t(r)];
}

INSTANTIATE_TEST_SUITE_P(CpNccl, NcclRanks, testing::ValuesIn(kWays), [](const auto& info) {
    std::string name = info.param.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

}  // namespace
}  // namespace test
