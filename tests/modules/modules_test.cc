// The loader, by the folder that the application names: what is loaded, what is refused and with which sentence.
#include <dlfcn.h>
#include <flashattn.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <tuple>
#include <vector>
#include "folder.h"

namespace {

using ::testing::Test;

struct Outcome {
    fa_status_t status;
    std::string error;    // of fa_create
    int64_t backend = 0;  // 0: none
    std::string explain;
    std::string log;
};

void append_line(void* user, int32_t, const char* message) { *static_cast<std::string*>(user) += std::string(message) + "\n"; }

Outcome create(int32_t backend, const std::string& folder) {
    Outcome out;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.backend_dir = folder.c_str();
    info.log_level = FA_LOG_INFO;
    info.log = append_line;
    info.log_user = &out.log;
    fa_handle_t handle;
    out.status = fa_create(&handle, &info);
    out.error = fa_last_error(nullptr);
    if (out.status != FA_OK) {
        EXPECT_EQ(handle, nullptr);
        return out;
    }
    char text[2048];
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &out.backend), FA_OK);
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    out.explain = text;
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    return out;
}

::testing::AssertionResult holds(const std::string& text, const std::string& part) {
    if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

// Naming the backend gives the status and the sentence; AUTO goes on to the CPU and keeps the sentence.
void expect_refused(const std::string& folder, fa_status_t status, const std::string& sentence) {
    const Outcome named = create(FA_BACKEND_CUDA, folder);
    EXPECT_EQ(named.status, status) << named.error;
    EXPECT_TRUE(holds(named.error, sentence));
    EXPECT_TRUE(holds(named.log, sentence));
    const Outcome automatic = create(FA_BACKEND_AUTO, folder);
    EXPECT_EQ(automatic.status, FA_OK) << automatic.error;
    EXPECT_EQ(automatic.backend, FA_BACKEND_CPU);
    EXPECT_EQ(automatic.error, "");
    EXPECT_TRUE(holds(automatic.explain, "passed over cuda: "));
    EXPECT_TRUE(holds(automatic.explain, sentence));
    EXPECT_TRUE(holds(automatic.log, sentence));
}

fa_attention_desc_t small_problem() {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.batch = d.heads_q = 1;
    d.seqlen_q = d.seqlen_k = 2;
    d.dim_qk = 4;
    return d;
}

class Good : public Test {
  protected:
    void SetUp() override {
        folder.put(built("good"), kCuda);
        info.backend = FA_BACKEND_CUDA;
        path = folder.path();
        info.backend_dir = path.c_str();
    }
    void make() { ASSERT_EQ(fa_create(&handle, &info), FA_OK) << fa_last_error(nullptr); }
    void TearDown() override { EXPECT_EQ(fa_destroy(handle), FA_OK); }

    Folder folder;
    std::string path;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_handle_t handle = nullptr;
};

TEST_F(Good, ComputesThroughTheModule) {
    make();
    const fa_attention_desc_t d = small_problem();
    const std::vector<float> in(8, 1.f);
    std::vector<float> o(8, 0.f);
    EXPECT_EQ(fa_forward(handle, &d, in.data(), in.data(), in.data(), o.data()), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(o, std::vector<float>(8, 42.f));
    int64_t backend = 0;
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_OK);
    EXPECT_EQ(backend, FA_BACKEND_CUDA);
}

TEST_F(Good, PlanAnswersEveryQuestion) {
    make();
    const fa_attention_desc_t d = small_problem();
    char text[256];
    uint64_t bytes = 0;
    EXPECT_EQ(fa_supports(handle, &d, FA_OP_FORWARD), FA_OK);
    EXPECT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &bytes), FA_OK);
    EXPECT_EQ(bytes, 1000u);
    EXPECT_EQ(fa_explain(handle, &d, FA_OP_FORWARD, text, sizeof text), FA_OK);
    EXPECT_STREQ(text, "fake, device 0: fake kernel on device memory; workspace of 1000 bytes");

    EXPECT_EQ(fa_supports(handle, &d, FA_OP_ROTARY), FA_UNSUPPORTED);
    EXPECT_TRUE(holds(fa_last_error(handle), "only pretends"));
    EXPECT_EQ(fa_explain(handle, &d, FA_OP_ROTARY, text, sizeof text), FA_UNSUPPORTED);
    EXPECT_STREQ(text, fa_last_error(handle));
    EXPECT_EQ(fa_explain(handle, &d, FA_OP_FORWARD, text, 5), FA_OK);
    EXPECT_STREQ(text, "fake");
    EXPECT_EQ(fa_explain(handle, &d, FA_OP_FORWARD, nullptr, 100), FA_OK);
}

// Who asks how large a call's workspace is gets what the call needs prepared, once for a plan; other questions prepare nothing.
TEST_F(Good, SizeOfAWorkspacePrepares) {
    std::string log;
    info.log_level = FA_LOG_INFO;
    info.log = append_line;
    info.log_user = &log;
    make();
    fa_attention_desc_t d = small_problem();
    char text[256];
    uint64_t bytes = 0;
    log.clear();
    EXPECT_EQ(fa_supports(handle, &d, FA_OP_FORWARD), FA_OK);
    EXPECT_EQ(fa_explain(handle, &d, FA_OP_FORWARD, text, sizeof text), FA_OK);
    EXPECT_EQ(log, "");
    for (int i = 0; i < 3; i++) EXPECT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &bytes), FA_OK);
    EXPECT_EQ(log, "fake kernel prepared\n");
    d.seqlen_q++;
    EXPECT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &bytes), FA_OK);
    EXPECT_EQ(log, "fake kernel prepared\nfake kernel prepared\n");
    // What cannot be prepared has the status that its call would have, each time that it is asked about.
    ASSERT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 13), FA_OK);
    bytes = 5;
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(fa_workspace_size(handle, &d, FA_OP_FORWARD, &bytes), FA_OUT_OF_MEMORY);
        EXPECT_STREQ(fa_last_error(handle), "the fake backend says no to prepare");
    }
    EXPECT_EQ(bytes, 5u);
    EXPECT_EQ(fa_supports(handle, &d, FA_OP_FORWARD), FA_OK);
}

// The size is the descriptor's alone: whatever strides gradients would need, which args of the call say.
TEST_F(Good, SizeOfABackwardOfBroadcastTensors) {
    std::string log;
    info.log_level = FA_LOG_INFO;
    info.log = append_line;
    info.log_user = &log;
    make();
    for (const int which : {int(FA_STRIDED_Q), int(FA_STRIDED_K), int(FA_STRIDED_V), 0})
        for (int dimension = 0; dimension < 4; dimension++) {
            fa_attention_desc_t d = small_problem();
            d.batch = 3, d.heads_q = d.heads_k = 2, d.seqlen_q = 5, d.seqlen_k = 7, d.operands = FA_OPERAND_LSE;
            int64_t* const stride = which == FA_STRIDED_Q   ? d.q_stride
                                    : which == FA_STRIDED_K ? d.k_stride
                                    : which                 ? d.v_stride
                                                            : d.bias_stride;
            const int64_t dense[] = {56, 4, 28, 1}, pairs[] = {70, 35, 7, 1};
            memcpy(stride, which ? dense : pairs, sizeof dense);
            d.strided = uint32_t(which);
            if (!which) d.operands |= FA_OPERAND_BIAS;
            if (dimension < 3) stride[dimension] = 0;
            uint64_t bytes = 0;
            log.clear();
            ASSERT_EQ(fa_supports(handle, &d, FA_OP_BACKWARD), FA_OK) << fa_last_error(handle);
            EXPECT_EQ(fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes), FA_OK) << fa_last_error(handle);
            EXPECT_EQ(log, "fake kernel prepared\n") << which << " " << dimension;
        }
}

TEST_F(Good, SmallWorkspaceIsNamedWithBothNumbers) {
    make();
    const fa_attention_desc_t d = small_problem();
    alignas(256) char workspace[1024];
    const std::vector<float> in(8, 1.f);
    std::vector<float> o(8, 0.f);
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.q = a.k = a.v = in.data();
    a.o = o.data();
    a.workspace = workspace;
    a.workspace_size = 999;
    EXPECT_EQ(fa_forward_ex(handle, &d, &a), FA_WORKSPACE_TOO_SMALL);
    EXPECT_STREQ(fa_last_error(handle), "workspace_size is 999: expected 1000 or more");
    EXPECT_EQ(o, std::vector<float>(8, 0.f));
    a.workspace_size = 1000;
    EXPECT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(o, std::vector<float>(8, 42.f));
}

TEST_F(Good, ParametersMemoryAndFailuresPassThrough) {
    make();
    int64_t threads = 0;
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 7), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_PARAM_THREADS, &threads), FA_OK);
    EXPECT_EQ(threads, 7);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_MAX_ISA, FA_ISA_GENERIC), FA_UNSUPPORTED);
    void* memory = nullptr;
    const char from[4] = {1, 2, 3, 4};
    ASSERT_EQ(fa_malloc(handle, 4, &memory), FA_OK);
    EXPECT_EQ(fa_copy(handle, memory, from, 4), FA_OK);
    EXPECT_EQ(static_cast<char*>(memory)[3], 4);
    EXPECT_EQ(fa_free(handle, memory), FA_OK);
    EXPECT_EQ(fa_synchronize(handle), FA_DEVICE_ERROR);
    EXPECT_STREQ(fa_last_error(handle), "the fake device is always broken");
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_COUNT_WORK, 1), FA_DEVICE_ERROR);
    EXPECT_STREQ(fa_last_error(handle), "") << "no words are better than those of another failure";
}

TEST_F(Good, MemoryFollowsTheWayTheBackendWasChosen) {
    const fa_attention_desc_t d = small_problem();
    const struct {
        int32_t backend, memory;
        const char* word;
    } rows[] = {{FA_BACKEND_AUTO, FA_MEMORY_DEFAULT, "host"},
                {FA_BACKEND_AUTO, FA_MEMORY_DEVICE, "device"},
                {FA_BACKEND_CUDA, FA_MEMORY_DEFAULT, "device"},
                {FA_BACKEND_CUDA, FA_MEMORY_HOST, "host"}};
    for (const auto& row : rows) {
        info.backend = row.backend;
        info.memory = row.memory;
        fa_handle_t h;
        ASSERT_EQ(fa_create(&h, &info), FA_OK) << fa_last_error(nullptr);
        char text[256];
        EXPECT_EQ(fa_explain(h, &d, FA_OP_FORWARD, text, sizeof text), FA_OK);
        EXPECT_TRUE(holds(text, std::string("on ") + row.word + " memory"));
        EXPECT_EQ(fa_explain(h, nullptr, 0, text, sizeof text), FA_OK);
        EXPECT_TRUE(holds(text, std::string(", ") + row.word + " memory"));
        EXPECT_EQ(fa_destroy(h), FA_OK);
    }
}

TEST_F(Good, DeviceIsPassedOnAndDescribed) {
    info.device = 2;
    make();
    char text[256];
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    EXPECT_STREQ(text, "backend fake, device 2 Fake 2, paper, device memory");
    info.device = 3;
    fa_handle_t none;
    EXPECT_EQ(fa_create(&none, &info), FA_NO_DEVICE);
    EXPECT_STREQ(fa_last_error(nullptr), "device is 3: the fake backend has 3");
}

TEST_F(Good, AutoPrefersTheModuleAndHearsItsLog) {
    const Outcome out = create(FA_BACKEND_AUTO, folder.path());
    EXPECT_EQ(out.backend, FA_BACKEND_CUDA);
    EXPECT_TRUE(holds(out.log, "fake handle made\nbackend fake, device 0"));
    EXPECT_EQ(out.explain.find("passed over"), std::string::npos);
}

TEST_F(Good, StaysLoadedAndKeepsItsSymbolsToItself) {
    make();
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    handle = nullptr;
    void* module = dlopen(folder.path(kCuda).c_str(), RTLD_NOW | RTLD_NOLOAD);
    EXPECT_NE(module, nullptr);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "flashattn_backend_v1"), nullptr);
    if (module != nullptr) dlclose(module);
}

TEST(Modules, ExportOneSymbol) {
    const std::string command = std::string(FA_NM) + " -D --defined-only " + built("good");
    FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    char line[256];
    while (fgets(line, sizeof line, pipe)) text += line;
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_TRUE(holds(text, " T flashattn_backend_v1\n"));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Modules, AutoGoesOnToTheNextModule) {
    Folder folder;
    folder.put(built("no_device"), kCuda);
    folder.put(built("good", kHip), kHip);
    const Outcome out = create(FA_BACKEND_AUTO, folder.path());
    EXPECT_EQ(out.backend, FA_BACKEND_HIP);
    EXPECT_TRUE(holds(out.explain, "passed over cuda: the fake backend says no to usable"));
}

class Broken : public ::testing::TestWithParam<std::tuple<const char*, fa_status_t, const char*>> {};

TEST_P(Broken, HasItsOwnStatusAndSentence) {
    const auto& [name, status, sentence] = GetParam();
    Folder folder;
    folder.put(built(name), kCuda);
    expect_refused(folder.path(), status, sentence);
    if (status != FA_BACKEND_INCOMPATIBLE) return;
    EXPECT_TRUE(holds(create(FA_BACKEND_CUDA, folder.path()).error, folder.path(kCuda)));
}

INSTANTIATE_TEST_SUITE_P(
    Modules, Broken,
    ::testing::Values(std::make_tuple("wrong_abi", FA_BACKEND_INCOMPATIBLE, "is of another version: it has interface 77, this library"),
                      std::make_tuple("wrong_id", FA_BACKEND_INCOMPATIBLE, "holds backend 3 instead of 2, cuda"),
                      std::make_tuple("no_entry", FA_BACKEND_INCOMPATIBLE, "has no function flashattn_backend_v1"),
                      std::make_tuple("refuses", FA_BACKEND_INCOMPATIBLE, "refuses to serve: this module wants a host younger than"),
                      std::make_tuple("no_device", FA_NO_DEVICE, "the fake backend says no to usable"),
                      std::make_tuple("create_fails", FA_DEVICE_ERROR, "the fake backend says no to create")),
    [](const auto& row) { return std::string(std::get<0>(row.param)); });

TEST(Untrusted, TextFileIsNoLibrary) {
    Folder folder;
    std::ofstream(folder.path(kCuda)) << "not a library\n";
    ASSERT_EQ(chmod(folder.path(kCuda).c_str(), 0644), 0);
    expect_refused(folder.path(), FA_BACKEND_INCOMPATIBLE, "cannot be loaded: ");
}

TEST(Untrusted, FileThatOthersMayWrite) {
    for (const mode_t mode : {0757, 0775}) {
        Folder folder;
        folder.put(built("good"), kCuda, mode);
        expect_refused(folder.path(), FA_BACKEND_INCOMPATIBLE, folder.path(kCuda) + " is not trusted: its group or others may write to it");
    }
}

TEST(Untrusted, FolderThatOthersMayWrite) {
    for (const mode_t mode : {0777, 01777, 0770}) {
        Folder folder;
        const std::string open = folder.subfolder("open", mode);
        folder.put(built("good"), "open/" + std::string(kCuda));
        expect_refused(open, FA_BACKEND_INCOMPATIBLE, open + " is not trusted: its group or others may write to it");
    }
}

TEST(Untrusted, FolderAboveThatOthersMayWrite) {
    for (const mode_t mode : {0777, 0775}) {
        Folder folder;
        const std::string open = folder.subfolder("open", mode);
        const std::string closed = folder.subfolder("open/between") + "/closed";
        folder.subfolder("open/between/closed");
        folder.put(built("good"), "open/between/closed/" + std::string(kCuda));
        expect_refused(closed, FA_BACKEND_INCOMPATIBLE, open + " is not trusted: its group or others may write to it");
        std::filesystem::create_symlink(closed, folder.path("link"));
        expect_refused(folder.path("link"), FA_BACKEND_INCOMPATIBLE, open + " is not trusted: its group or others may write to it");
    }
}

// There others can add entries, links to files of ours included, but not move those of ours.
TEST(Untrusted, StickyFolderMayHoldFoldersOnly) {
    Folder folder;
    const std::string sticky = folder.subfolder("sticky", 01777), closed = folder.subfolder("sticky/closed");
    folder.put(built("good"), "sticky/closed/" + std::string(kCuda));
    EXPECT_EQ(create(FA_BACKEND_CUDA, closed).status, FA_OK);
    std::filesystem::create_symlink(closed, sticky + "/link");
    expect_refused(sticky + "/link", FA_BACKEND_INCOMPATIBLE, sticky + " is not trusted: its group or others may write to it");
}

TEST(Untrusted, FolderAboveOfAnotherUser) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    Folder folder;
    const std::string theirs = folder.subfolder("theirs"), ours = folder.subfolder("theirs/ours");
    folder.put(built("good"), "theirs/ours/" + std::string(kCuda));
    ASSERT_EQ(chown(theirs.c_str(), 65534, 65534), 0);
    expect_refused(ours, FA_BACKEND_INCOMPATIBLE, theirs + " is not trusted: user 65534 owns it");
}

TEST(Untrusted, PathsMayTakeDetours) {
    Folder folder;
    const std::string real = folder.subfolder("a/b/real", 0755), name = "/" + std::string(kCuda);
    folder.put(built("good"), "a/b/real" + name);
    std::filesystem::create_directory_symlink("b/../b/./real", folder.path("a/relative"));
    std::filesystem::create_directory_symlink(folder.path("a//relative/"), folder.path("absolute"));
    std::filesystem::create_symlink("../.." + real.substr(folder.path().size()) + name, folder.subfolder("a/c") + name);
    for (const char* way : {"a/b/real", "a/b/real//", "a/./b/../b/real/.", "a/relative", "absolute", "absolute/../real", "a/c"})
        EXPECT_EQ(create(FA_BACKEND_CUDA, folder.path(way)).status, FA_OK) << way << ": " << fa_last_error(nullptr);
    EXPECT_EQ(create(FA_BACKEND_CUDA, "/../.." + real).status, FA_OK) << fa_last_error(nullptr);
}

// dlopen would read $LIB as lib/x86_64-linux-gnu, or the like, and take a file that nobody looked at.
TEST(Untrusted, NameThatDlopenWouldExpand) {
    Folder folder;
    const std::string literal = folder.subfolder("$LIB");
    folder.put(built("good"), "$LIB/" + std::string(kCuda));
    expect_refused(literal, FA_BACKEND_INCOMPATIBLE, "cannot be loaded: expected a path without $");
}

TEST(Untrusted, LinkIsJudgedByWhatItLeadsTo) {
    Folder folder;
    const std::string closed = folder.subfolder("closed"), open = folder.subfolder("open", 0777);
    const std::string link = folder.subfolder("links") + "/" + kCuda;
    std::filesystem::create_symlink(folder.put(built("good"), "closed/module.so"), link);
    EXPECT_EQ(create(FA_BACKEND_CUDA, folder.path("links")).status, FA_OK);
    std::filesystem::remove(link);
    std::filesystem::create_symlink(folder.put(built("good"), "open/module.so"), link);
    expect_refused(folder.path("links"), FA_BACKEND_INCOMPATIBLE, open + " is not trusted");
    std::filesystem::create_symlink(folder.path("closed/module.so"), folder.path("open/" + std::string(kCuda)));
    expect_refused(open, FA_BACKEND_INCOMPATIBLE, open + " is not trusted");
}

TEST(Untrusted, OnlyRegularFiles) {
    Folder with_folder, with_pipe;
    with_folder.subfolder(kCuda);
    expect_refused(with_folder.path(), FA_BACKEND_INCOMPATIBLE, "is not trusted: it is no regular file");
    ASSERT_EQ(mkfifo(with_pipe.path(kCuda).c_str(), 0600), 0);
    expect_refused(with_pipe.path(), FA_BACKEND_INCOMPATIBLE, "is not trusted: it is no regular file");
}

TEST(Untrusted, FileOfAnotherUser) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    Folder folder;
    const std::string file = folder.put(built("good"), kCuda);
    ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
    expect_refused(folder.path(), FA_BACKEND_INCOMPATIBLE, file + " is not trusted: user 65534 owns it");
}

TEST(Untrusted, LinkInALoop) {
    Folder folder;
    std::filesystem::create_symlink(kCuda, folder.path(kCuda));
    expect_refused(folder.path(), FA_BACKEND_INCOMPATIBLE, "cannot be examined: ");
}

TEST(Untrusted, FolderWithTooLongAName) { expect_refused("/" + std::string(5000, 'x'), FA_BACKEND_INCOMPATIBLE, "/xxx"); }

TEST(Untrusted, RelativeFolderIsInvalid) {
    for (const std::string folder : {"modules", "./modules", "../modules", ""}) {
        for (const int32_t backend : {FA_BACKEND_AUTO, FA_BACKEND_CPU, FA_BACKEND_CUDA, FA_BACKEND_HIP}) {
            const Outcome out = create(backend, folder);
            EXPECT_EQ(out.status, FA_INVALID_ARGUMENT);
            EXPECT_EQ(out.error, "info.backend_dir is \"" + folder + "\": expected an absolute path");
        }
    }
}

}  // namespace
