// The module alone, and with the real runtime on a machine without an AMD GPU: each reason for not being usable has its status and
// sentence.
#include <flashattn.h>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include "modules/folder.h"

namespace {

const std::string kModule = std::string(HIP_MODULE_DIR) + "/" + kHip;

std::string output_of(const std::string& command) {
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    char line[4096];
    while (pipe && fgets(line, sizeof line, pipe)) text += line;
    EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
    return text;
}

std::string contents(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

struct Outcome {
    fa_status_t status;
    std::string sentence;
};

Outcome create(int32_t backend, const std::string& folder) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.backend_dir = folder.c_str();
    fa_handle_t handle;
    Outcome out{fa_create(&handle, &info), fa_last_error(nullptr)};
    if (out.status != FA_OK) return out;
    char text[2048] = "";
    int64_t used = 0;
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &used), FA_OK);
    EXPECT_EQ(used, FA_BACKEND_CPU);
    out.sentence = text;
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    return out;
}

TEST(Module, ExportsOneSymbol) {
    EXPECT_EQ(output_of(FA_NM " -D --defined-only --format=just-symbols " + kModule), "flashattn_backend_v1\n");
}

// Neither C++ nor a runtime of AMD's: what is looked up by name at run time, in whatever version there is, appears in no table.
TEST(Module, NeedsTheCLibraryAlone) {
    std::istringstream symbols(output_of(FA_NM " -D --undefined-only " + kModule));
    int count = 0;
    for (std::string kind, name; symbols >> kind >> name; count++)
        EXPECT_TRUE(name.find("@GLIBC_") != std::string::npos || kind == "w") << name;
    EXPECT_GT(count, 10);
    std::istringstream needed(output_of(FA_READELF " -d " + kModule + " | sed -n 's/.*(NEEDED).*\\[\\(.*\\)\\]/\\1/p'"));
    for (std::string library; needed >> library;)  // before glibc 2.34 it has parts of these names, too
        EXPECT_TRUE(library == "libc.so.6" || library == "libm.so.6" || library == "libdl.so.2" || library == "libpthread.so.0") << library;
}

TEST(Module, HasCodeForEveryTarget) {
    const std::string file = contents(kModule);
    std::istringstream targets(HIP_TARGETS);
    for (std::string target; std::getline(targets, target, ',');)
        EXPECT_NE(file.find("amdgcn-amd-amdhsa--" + target), std::string::npos) << target;
}

TEST(Module, SpillsNoVectorRegisterAndKeepsNothingInScratchMemory) {
    const std::string table = output_of(HIP_KERNELS " " + kModule);
    printf("%s", table.c_str());
    EXPECT_NE(table.find("forward_simt<4, 4>"), std::string::npos);
    EXPECT_NE(table.find("\n0 faults\n"), std::string::npos);
}

// The same table of a module that says it spills one, where no kernel may use scratch memory: append_rows keeps a block's values there,
// on every target.
TEST(Module, SpillAndScratchMemoryWouldBeSeen) {
    std::string file = contents(kModule);
    const std::string key = ".vgpr_spill_count";
    const size_t at = file.find(key);
    ASSERT_NE(at, std::string::npos);
    file[at + key.size()] = 1;
    Folder folder;
    const std::string copy = folder.put(kModule, kHip);
    std::ofstream(copy, std::ios::binary) << file;
    const std::string table = output_of("! " HIP_KERNELS " --may-use-scratch=none " + copy);
    EXPECT_NE(table.find("spills 1 vector registers"), std::string::npos) << table;
    std::istringstream targets(HIP_TARGETS);
    int faults = 1;
    for (std::string target; std::getline(targets, target, ','); faults++)
        EXPECT_NE(table.find(target + ": append_rows touches scratch memory in "), std::string::npos) << table;
    EXPECT_NE(table.find("\n" + std::to_string(faults) + " faults\n"), std::string::npos) << table;
}

class WithoutGpu : public testing::Test {
    void SetUp() override {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = FA_BACKEND_HIP;
        info.backend_dir = HIP_MODULE_DIR;
        fa_handle_t handle;
        if (fa_create(&handle, &info) != FA_OK) return;
        fa_destroy(handle);
        GTEST_SKIP() << "there is an AMD GPU";
    }
};

TEST_F(WithoutGpu, NoDevice) {
    const Outcome hip = create(FA_BACKEND_HIP, HIP_MODULE_DIR);
    EXPECT_EQ(hip.status, FA_NO_DEVICE);
    EXPECT_EQ(hip.sentence, "no AMD device is present");
    const Outcome any = create(FA_BACKEND_AUTO, HIP_MODULE_DIR);
    EXPECT_EQ(any.status, FA_OK);
    EXPECT_NE(any.sentence.find("passed over hip: no AMD device is present"), std::string::npos) << any.sentence;
}

TEST_F(WithoutGpu, TheToolSaysSo) {
    if (std::string(FA_TOOL).empty()) GTEST_SKIP() << "the tool is not built";
    const std::string text = output_of("FLASHATTN_BACKEND_DIR=" HIP_MODULE_DIR " " FA_TOOL " info");
    EXPECT_NE(text.find("hip      no      no AMD device is present\n"), std::string::npos) << text;
}

// A copy of the module that asks for runtimes which are nowhere, sealed anew.
TEST(WithoutRuntime, Incompatible) {
    std::string file = contents(kModule), name = "libamdhip64.so.";
    size_t found = 0;
    for (size_t at = file.find(name); at != std::string::npos; at = file.find(name, at), found++) file[at + 3] = 'x';
    ASSERT_EQ(found, 3u);
    Folder folder;
    const std::string copy = folder.put(kModule, kHip);
    std::ofstream(copy, std::ios::binary) << file;
    ASSERT_EQ(output_of(FA_SEAL " " + copy), "");
    const Outcome hip = create(FA_BACKEND_HIP, folder.path());
    EXPECT_EQ(hip.status, FA_BACKEND_INCOMPATIBLE);
    EXPECT_EQ(hip.sentence, "no HIP runtime is installed: expected libxmdhip64.so.7, libxmdhip64.so.6 or libxmdhip64.so.5");
    const Outcome any = create(FA_BACKEND_AUTO, folder.path());
    EXPECT_EQ(any.status, FA_OK);
    EXPECT_NE(any.sentence.find("passed over hip: " + hip.sentence), std::string::npos) << any.sentence;
}

}  // namespace
