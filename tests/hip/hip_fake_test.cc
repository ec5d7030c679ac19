// The module against a runtime that pretends to have GPUs (fake_runtime.cc; the test's environment puts that of one version of ROCm before
// the real one): which code it loads for which device, by which names it finds its kernels, what it launches, and what becomes of failures.
// The same module meets each version.
#include <dlfcn.h>
#include <flashattn.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>
#include "api/calls.h"
#include "modules/folder.h"

namespace {

class Fake : public testing::Test {
  protected:
    void SetUp() override {
        setenv("FAKE_LOG", log_.c_str(), 1);
        setenv("FLASHATTN_BACKEND_DIR", HIP_MODULE_DIR, 1);
    }
    ~Fake() override {
        fa_destroy(handle);
        unlink(log_.c_str());
    }
    fa_status_t create(const char* gpus, int32_t device = 0, int32_t backend = FA_BACKEND_HIP) {
        setenv("FAKE_GPUS", gpus, 1);
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = backend;
        info.backend_dir = HIP_MODULE_DIR;
        info.device = device;
        fa_destroy(handle);
        handle = nullptr;
        return fa_create(&handle, &info);
    }
    // What the runtime was told to do since the last time.
    std::string log() const {
        std::ostringstream text;
        text << std::ifstream(log_).rdbuf();
        unlink(log_.c_str());
        return text.str();
    }
    // The module's last target: another than gfx90a, if it has several.
    static std::string last_target() {
        const std::string all = HIP_TARGETS;
        return all.substr(all.rfind(',') + 1);
    }
    // As the runtime names its devices: with its version.
    static std::string name() {
        const std::string path = getenv("LD_LIBRARY_PATH");
        return "Fake " + path.substr(path.size() - 1);
    }
    fa_handle_t handle = nullptr;

  private:
    const std::string log_ = "/tmp/flashattn-fake-hip-" + std::to_string(getpid());
};

TEST_F(Fake, EachDeviceGetsItsCode) {
    const std::string another = last_target(), all = "gfx90a:sramecc+:xnack-," + another + ",gfx90a:sramecc-:xnack+," + another;
    const char* const gpus = all.c_str();
    EXPECT_EQ(create(gpus, 0), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(log(), "load gfx90a:sramecc+:xnack-\n");
    for (const int32_t device : {2, 1, 3, 0}) EXPECT_EQ(create(gpus, device), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(log(), "load gfx90a:sramecc-:xnack+\nload " + another + "\nload " + another + "\n") << "once for each device";
}

// Whatever the layout that this version's properties have.
TEST_F(Fake, PropertiesAreRead) {
    ASSERT_EQ(create("gfx1036,gfx90a:sramecc+:xnack-", 1), FA_OK) << fa_last_error(nullptr);
    fa_device_info_t info;
    info.struct_size = sizeof info;
    ASSERT_EQ(fa_device_info(FA_BACKEND_HIP, 1, &info), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(std::string(info.name), name());
    EXPECT_EQ(std::string(info.arch), "gfx90a:sramecc+:xnack-");
    EXPECT_EQ(info.compute_units, 104);
    EXPECT_EQ(info.memory_bytes, uint64_t(3) << 33);
}

// The runtime that a program has loaded from elsewhere, as PyTorch does, is the one that knows its memory: it is taken, though another
// version is found first.
TEST_F(Fake, LoadedRuntimeIsTaken) {
    const std::string other = name() == "Fake 6" ? "5" : "6";
    ASSERT_TRUE(dlopen((HIP_FAKES "/" + other + "/libamdhip64.so." + other).c_str(), RTLD_NOW)) << dlerror();
    EXPECT_EQ(create("gfx1036"), FA_BACKEND_INCOMPATIBLE);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "this build of the hip backend has no code for Fake " + other + " (gfx1036): no code");
}

// What a pointer's attributes say has other values in each version.
TEST_F(Fake, MemoryThatTheDeviceCannotRead) {
    ASSERT_EQ(create("gfx90a,gfx1036"), FA_OK) << fa_last_error(nullptr);
    Forward forward;
    plain(&forward);
    for (const char* memory : {"pageable", "peer", "host"}) {
        setenv("FAKE_MEMORY", memory, 1);
        forward.a.q = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(forward.a.q) ^ 256);  // another: what was seen is remembered
        const bool readable = memory[0] == 'h';
        EXPECT_EQ(forward.run(handle), readable ? FA_OK : FA_INVALID_ARGUMENT) << memory << ": " << fa_last_error(handle);
        const bool refused = std::string(fa_last_error(handle)).find(": device 0 cannot read that address") != std::string::npos;
        EXPECT_EQ(refused, !readable) << memory << ": " << fa_last_error(handle);
    }
    unsetenv("FAKE_MEMORY");
}

// An integrated GPU that nobody compiles for stands beside a good one: the good one works.
TEST_F(Fake, DeviceWithoutCode) {
    const char* const gpus = "gfx90a:sramecc+:xnack-,gfx1036,gfx9,gfx90a1";
    for (const int32_t device : {1, 2, 3}) {
        EXPECT_EQ(create(gpus, device), FA_BACKEND_INCOMPATIBLE);
        const std::string arch = device == 1 ? "gfx1036" : device == 2 ? "gfx9" : "gfx90a1";
        EXPECT_EQ(std::string(fa_last_error(nullptr)),
                  "this build of the hip backend has no code for " + name() + " (" + arch + "): no code");
    }
    EXPECT_EQ(create(gpus, 0), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(create(gpus, 4), FA_NO_DEVICE);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "device is 4: the hip backend has 4");
}

TEST_F(Fake, AutoPassesOverWhatHasNoCode) {
    int64_t backend = 0;
    EXPECT_EQ(create("gfx1036", 0, FA_BACKEND_AUTO), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_OK);
    EXPECT_EQ(backend, FA_BACKEND_CPU);
    char text[2048] = "";
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    EXPECT_NE(std::string(text).find("passed over hip: this build of the hip backend has no code for " + name() + " (gfx1036)"),
              std::string::npos)
        << text;
    EXPECT_EQ(create("gfx90a", 0, FA_BACKEND_AUTO), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_OK);
    EXPECT_EQ(backend, FA_BACKEND_HIP);
}

// The names by which the host's text knows its kernels are those in the device's code, of every kernel and target.
TEST_F(Fake, EveryKernelIsFound) {
    std::string gpus = HIP_TARGETS;
    const int count = 1 + int(std::count(gpus.begin(), gpus.end(), ','));
    for (int device = 0; device < count; device++) {
        ASSERT_EQ(create(gpus.c_str(), device), FA_OK) << fa_last_error(nullptr);
        log();
        std::string all;
        for (const int64_t dim : {64, 128, 256})
            for (const int64_t rows : {1, 200}) {
                Forward forward;
                plain(&forward);
                forward.d.k_dtype = forward.d.v_dtype = FA_E4M3;  // beside f32: no matrix kernel has them
                forward.d.dim_qk = forward.d.dim_v = dim;
                forward.d.seqlen_q = rows;
                forward.d.num_splits = 2;
                forward.d.seqlen_k = 512;
                forward.d.operands = FA_OPERAND_SCORES;
                forward.d.scores_stage = FA_SCORES_PROBABILITY;
                forward.d.scores_stride[3] = 1;
                forward.d.scores_stride[2] = 512;
                forward.d.scores_stride[1] = 512 * rows;
                forward.d.scores_stride[0] = 512 * rows * 4;
                forward.a.scores = reinterpret_cast<float*>(int64_t(1) << 40);  // never touched: nothing runs
                forward.a.q = reinterpret_cast<float*>(int64_t(1) << 41);
                forward.a.k = reinterpret_cast<float*>(int64_t(1) << 42);
                forward.a.v = reinterpret_cast<float*>(int64_t(1) << 43);
                forward.a.o = reinterpret_cast<float*>(int64_t(1) << 44);
                EXPECT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
                all += log();
            }
        Merge merge;
        merge_padded(&merge);
        EXPECT_EQ(merge.run(handle), FA_OK) << fa_last_error(handle);
        Append append;
        append_paged(&append);
        EXPECT_EQ(append.run(handle), FA_OK) << fa_last_error(handle);
        Rotary rotary;
        rotary_padded(&rotary);
        EXPECT_EQ(rotary.run(handle), FA_OK) << fa_last_error(handle);
        float x[4], out[4];
        const fa_conversion_t copy{x, out, {1, 1, 1, 4}, {0, 0, 0, 1}, {0, 0, 0, 1}, FA_F32, FA_F32, 0};
        EXPECT_EQ(fa_convert(handle, &copy, 1, 0, nullptr), FA_OK) << fa_last_error(handle);
        all += log();
        for (const char* kernel : {"forward_simtILi4ELi4EE", "forward_simtILi1ELi4EE", "forward_simtILi4ELi8EE", "forward_simtILi1ELi8EE",
                                   "forward_simtILi2ELi16EE", "forward_simtILi1ELi16EE", "merge_splits", "merge_split_rows",
                                   "merge_split_states", "write_scores", "merge_rows", "append_rows", "rotate_rows", "convert_tensors"})
            EXPECT_NE(all.find(kernel), std::string::npos) << kernel << " was not launched:\n" << all;
    }
}

// Matrix cores serve f16, but on CDNA 2, and bf16, and such queries beside k and v of 8 bits, and on CDNA f32, where the device has them in
// a form that kernels are written for, and the SIMT kernel elsewhere.
TEST_F(Fake, MatrixKernelsAreLaunched) {
    std::istringstream targets(HIP_TARGETS);
    int with_matrix = 0, device = 0;
    for (std::string target; std::getline(targets, target, ','); device++) {
        ASSERT_EQ(create(HIP_TARGETS, device), FA_OK) << fa_last_error(nullptr);
        const bool cdna2 = target == "gfx90a", mfma = cdna2 || target == "gfx942" || target == "gfx950",
                   wmma = target.find("gfx11") == 0 || target.find("gfx12") == 0;
        const char* const instruction = mfma ? "Mfma" : target.find("gfx12") == 0 ? "WmmaGfx12" : "WmmaGfx11";
        with_matrix += mfma || wmma;
        for (const int32_t dtype : {FA_F16, FA_BF16, FA_F32})
            for (const int64_t dim : {64, 128, 256})
                for (const auto& [rows, bytes] : {std::pair<int64_t, bool>{1, false}, {200, false}, {1, true}, {200, true}}) {
                    Forward forward;
                    plain(&forward);
                    forward.d.q_dtype = forward.d.o_dtype = dtype;
                    forward.d.k_dtype = forward.d.v_dtype = bytes ? int32_t(FA_E4M3) : dtype;
                    forward.d.dim_qk = forward.d.dim_v = dim;
                    forward.d.seqlen_q = rows;
                    forward.d.seqlen_k = 512;
                    forward.a.q = reinterpret_cast<void*>(int64_t(1) << 41);
                    forward.a.k = reinterpret_cast<void*>(int64_t(1) << 42);
                    forward.a.v = reinterpret_cast<void*>(int64_t(1) << 43);
                    forward.a.o = reinterpret_cast<void*>(int64_t(1) << 44);
                    log();
                    ASSERT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
                    const std::string launched = log();
                    const bool matrix = dtype == FA_F32
                                            ? mfma && !bytes
                                            : (mfma || wmma) && !(cdna2 && dtype == FA_F16) && (!bytes || dim <= 128 || dtype == FA_BF16);
                    EXPECT_EQ(launched.find("forward_mma") != std::string::npos, matrix) << target << " dim " << dim << ": " << launched;
                    EXPECT_EQ(launched.find("MmaTransposedByte") != std::string::npos, matrix && bytes)
                        << target << " dim " << dim << ": " << launched;
                    EXPECT_EQ(launched.find(instruction) != std::string::npos, matrix) << target << " dim " << dim << ": " << launched;
                    EXPECT_EQ(launched.find("forward_simt") != std::string::npos, !matrix) << target << " dim " << dim << ": " << launched;
                }
    }
    EXPECT_GT(with_matrix, 0) << "none of " HIP_TARGETS " has matrix kernels";
}

// The same of the backward.
TEST_F(Fake, MatrixKernelsOfTheBackwardAreLaunched) {
    std::istringstream targets(HIP_TARGETS);
    int device = 0;
    for (std::string target; std::getline(targets, target, ','); device++) {
        ASSERT_EQ(create(HIP_TARGETS, device), FA_OK) << fa_last_error(nullptr);
        const bool cdna2 = target == "gfx90a", mfma = cdna2 || target == "gfx942" || target == "gfx950",
                   wmma = target.find("gfx11") == 0 || target.find("gfx12") == 0;
        for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16})
            for (const int64_t dim : {64, 128, 256}) {
                Backward backward;
                backward_plain(&backward);
                backward.d.q_dtype = backward.d.k_dtype = backward.d.v_dtype = backward.d.o_dtype = dtype;
                backward.d.dim_qk = backward.d.dim_v = dim;
                int64_t at = int64_t(1) << 40;  // never touched: nothing runs
                for (const void** in : {&backward.a.f.q, &backward.a.f.k, &backward.a.f.v, &backward.a.dout})
                    *in = reinterpret_cast<const void*>(at *= 2);
                backward.a.f.o = reinterpret_cast<void*>(at *= 2);
                for (void** out : {&backward.a.dq, &backward.a.dk, &backward.a.dv}) *out = reinterpret_cast<void*>(at *= 2);
                log();
                ASSERT_EQ(backward.run(handle), FA_OK) << fa_last_error(handle);
                const std::string launched = log();
                const bool matrix = mfma ? !(cdna2 && dtype == FA_F16) : wmma && dtype != FA_F32 && dim <= 128;
                EXPECT_EQ(launched.find("backward_transposed") != std::string::npos, matrix)
                    << target << " dim " << dim << ": " << launched;
                EXPECT_EQ(launched.find("backward_simt") != std::string::npos, !matrix) << target << " dim " << dim << ": " << launched;
            }
    }
}

// A row of a grid has fewer than 2^32 threads.
TEST_F(Fake, MoreBlocksThanARowOfTheGridHolds) {
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);
    Rotary rotary;
    rotary_padded(&rotary);
    rotary.d = FA_ATTENTION_DESC_INIT;
    rotary.d.q_dtype = FA_F16;
    rotary.d.batch = 3;
    rotary.d.heads_q = 32;
    rotary.d.seqlen_q = 8 << 20;  // a block takes 8
    rotary.d.dim_qk = 8;
    rotary.a.max_position = INT32_MAX;
    rotary.a.seqused = nullptr;
    rotary.a.position_offset = nullptr;
    memset(rotary.a.out_stride, 0, sizeof rotary.a.out_stride);
    rotary.a.x = rotary.a.out = reinterpret_cast<void*>(int64_t(1) << 40);
    log();
    ASSERT_EQ(rotary.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_NE(log().find(std::to_string(3 * 32ll << 20) + " x 128"), std::string::npos);
    rotary.d.batch = 1;
    rotary.d.heads_q = 8;
    rotary.d.seqlen_q = (int64_t(1) << 31) - 1;  // a prime
    EXPECT_EQ(rotary.run(handle), FA_DEVICE_ERROR);
    EXPECT_EQ(std::string(fa_last_error(handle)), "rotate_rows: error");
}

// Of a GPU of several dies, to which the blocks of a grid's row go in turn, each gets whole heads' blocks: they are a column. Where that
// would give one the long tiles and another the short ones of a causal mask, or shares are not equal, the order is the usual one.
TEST_F(Fake, DiesGetNeighbouringBlocks) {
    for (const char* dies : {"8", "6", "1"}) {
        setenv("FAKE_DIES", dies, 1);
        ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);
        for (const int64_t heads : {8, 5})
            for (const bool causal : {false, true}) {
                Forward forward;
                plain(&forward);
                forward.d.q_dtype = forward.d.k_dtype = forward.d.v_dtype = forward.d.o_dtype = FA_F16;  // of which gfx90a has SIMT kernels
                forward.d.batch = 1;
                forward.d.heads_q = forward.d.heads_k = forward.d.heads_v = heads;
                forward.d.seqlen_q = forward.d.seqlen_k = 1024;
                forward.d.flags = causal ? FA_CAUSAL : 0;
                forward.d.alignment = causal ? FA_ALIGN_TOP_LEFT : 0;
                forward.d.num_splits = 1;
                forward.a.q = reinterpret_cast<void*>(int64_t(1) << 41);
                forward.a.k = reinterpret_cast<void*>(int64_t(1) << 42);
                forward.a.v = reinterpret_cast<void*>(int64_t(1) << 43);
                forward.a.o = reinterpret_cast<void*>(int64_t(1) << 44);
                log();
                ASSERT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
                const int64_t blocks = heads * 1024 / 64, n = name() == "Fake 5" ? 1 : atoi(dies);
                const bool dealt = n > 1 && blocks % n == 0 && !(causal && heads % n != 0);
                const std::string rows = dealt ? "in " + std::to_string(blocks / n) + " rows\n" : "";
                const std::string launched = log(), expected = " " + std::to_string(blocks) + " x 256\n" + rows;
                ASSERT_GE(launched.size(), expected.size());
                EXPECT_EQ(launched.substr(launched.size() - expected.size()), expected)
                    << dies << " dies, " << heads << " heads" << (causal ? ", causal: " : ": ") << launched;
            }
    }
    unsetenv("FAKE_DIES");
}

// One call of each operation.
struct OneOfEach {
    Forward forward;
    Backward backward;
    Merge merge;
    Append append;
    Rotary rotary;
    float x[4], out[4];
    const fa_conversion_t conversion{x, out, {1, 1, 1, 4}, {0, 0, 0, 1}, {0, 0, 0, 1}, FA_F32, FA_F32, 0};
    OneOfEach() {
        plain(&forward);
        backward_plain(&backward);
        merge_padded(&merge);
        append_paged(&append);
        rotary_padded(&rotary);
    }
    fa_status_t convert(fa_handle_t handle) const { return fa_convert(handle, &conversion, 1, 0, nullptr); }
};

// A profiler that has been loaded sees each call as a range around its launches; none is looked for.
TEST_F(Fake, CallsAreRanges) {
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);
    void* const markers = dlopen("libroctx64.so.4", RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(markers) << dlerror();
    OneOfEach each;
    const struct {
        std::string name;
        std::function<fa_status_t()> run;
    } calls[] = {{"fa_forward", [&] { return each.forward.run(handle); }}, {"fa_backward", [&] { return each.backward.run(handle); }},
                 {"fa_merge", [&] { return each.merge.run(handle); }},     {"fa_append_kv", [&] { return each.append.run(handle); }},
                 {"fa_rotary", [&] { return each.rotary.run(handle); }},   {"fa_convert", [&] { return each.convert(handle); }}};
    for (const auto& call : calls) {
        log();
        ASSERT_EQ(call.run(), FA_OK) << call.name << ": " << fa_last_error(handle);
        const std::string text = log();
        EXPECT_EQ(text.rfind("begin " + call.name + "\nlaunch ", 0), 0u) << text;
        EXPECT_EQ(text.find("\nend\n"), text.size() - 5) << text;
    }
}
TEST_F(Fake, NoProfilerIsLookedFor) {
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);
    Forward forward;
    plain(&forward);
    log();
    ASSERT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(log().rfind("launch ", 0), 0u);
}

// Calls may be captured into a graph from the first on: kernels have been loaded with the handle, and nothing allocates, copies or waits.
// What would is refused before the runtime hears of it.
TEST_F(Fake, CaptureIsLeftAlone) {
    ASSERT_EQ(create(HIP_TARGETS), FA_OK) << fa_last_error(nullptr);
    OneOfEach each;
    Forward& forward = each.forward;
    Backward& backward = each.backward;
    forward.d.num_splits = 2;
    forward.d.seqlen_k = 256;
    forward.a.k = reinterpret_cast<float*>(int64_t(1) << 42);  // never touched: nothing runs
    forward.a.v = reinterpret_cast<float*>(int64_t(1) << 43);
    Memory memory;
    const auto workspace = [&](auto& call, auto& args) {
        EXPECT_EQ(fa_workspace_size(handle, &call.d, call.op, &args.workspace_size), FA_OK) << fa_last_error(handle);
        EXPECT_GT(args.workspace_size, 0u);
        args.workspace = memory.make<char>(args.workspace_size);
    };
    EXPECT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);  // the handle's memory is large enough, too
    log();
    setenv("FAKE_CAPTURE", "1", 1);
    EXPECT_EQ(forward.run(handle), FA_WORKSPACE_TOO_SMALL) << fa_last_error(handle);
    EXPECT_EQ(backward.run(handle), FA_WORKSPACE_TOO_SMALL) << fa_last_error(handle);
    void* pointer = nullptr;
    EXPECT_EQ(fa_malloc(handle, 256, &pointer), FA_INVALID_STATE);
    EXPECT_EQ(fa_free(handle, memory.make<char>(1)), FA_INVALID_STATE);
    EXPECT_EQ(fa_copy(handle, memory.make<char>(1), memory.make<char>(1), 1), FA_INVALID_STATE);
    EXPECT_EQ(fa_synchronize(handle), FA_INVALID_STATE);
    EXPECT_EQ(std::string(fa_last_error(handle)).rfind("the stream is being captured", 0), 0u) << fa_last_error(handle);
    EXPECT_EQ(log(), "") << "nothing of these reaches the runtime";

    workspace(forward, forward.a);
    workspace(backward, backward.a);
    EXPECT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(backward.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(each.merge.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(each.append.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(each.rotary.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(each.convert(handle), FA_OK) << fa_last_error(handle);
    const std::string captured = log();
    for (const char* kernel : {"forward_", "merge_split", "backward_", "merge_rows", "append_rows", "rotate_rows", "convert_tensors"})
        EXPECT_NE(captured.find(kernel), std::string::npos) << kernel << " was not launched:\n" << captured;
    EXPECT_EQ(captured.find("illegal"), std::string::npos) << captured;
    // What the runtime would have been asked otherwise, it does refuse.
    void* const runtime = dlopen(("libamdhip64.so." + name().substr(5)).c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_TRUE(runtime) << dlerror();
    EXPECT_NE(reinterpret_cast<int (*)(void*)>(dlsym(runtime, "hipStreamSynchronize"))(nullptr), 0);
    EXPECT_EQ(log(), "illegal while a stream is captured: hipStreamSynchronize\n");
    dlclose(runtime);
    unsetenv("FAKE_CAPTURE");
}

TEST_F(Fake, DriverThatDoesNotStart) {
    setenv("FAKE_FAULT", "driver", 1);
    EXPECT_EQ(create("gfx90a"), FA_BACKEND_INCOMPATIBLE);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "the AMD driver does not start: error");
    EXPECT_EQ(create("gfx90a", 0, FA_BACKEND_AUTO), FA_OK);
    unsetenv("FAKE_FAULT");
}

TEST_F(Fake, FailuresHaveTheirStatus) {
    setenv("FAKE_FAULT", "load", 1);
    EXPECT_EQ(create("gfx90a"), FA_OUT_OF_MEMORY);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "loading the kernels: out of memory");
    unsetenv("FAKE_FAULT");
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);

    Forward forward;
    plain(&forward);
    forward.d.q_dtype = forward.d.k_dtype = forward.d.v_dtype = forward.d.o_dtype = FA_F16;  // of which gfx90a has SIMT kernels
    setenv("FAKE_FAULT", "launch", 1);
    EXPECT_EQ(forward.run(handle), FA_DEVICE_ERROR);
    EXPECT_EQ(std::string(fa_last_error(handle)), "fwd_simt: launch failure");
    forward.d.num_splits = 2;
    forward.d.seqlen_k = 256;
    forward.a.k = reinterpret_cast<float*>(int64_t(1) << 42);
    forward.a.v = reinterpret_cast<float*>(int64_t(1) << 43);
    setenv("FAKE_FAULT", "malloc", 1);
    EXPECT_EQ(forward.run(handle), FA_OUT_OF_MEMORY);
    EXPECT_EQ(std::string(fa_last_error(handle)), "allocating scratch memory: out of memory");
    unsetenv("FAKE_FAULT");
    EXPECT_EQ(forward.run(handle), FA_OK) << fa_last_error(handle);
}

}  // namespace
