// The environment and the places that the library searches by itself. Both are read once in a process, so each case is one.
#include <fcntl.h>
#include <flashattn.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <iterator>
#include "folder.h"

namespace {

// What the probe prints under `environment` (NAME=value …).
std::string probe(const std::string& environment, const std::string& arguments, const std::string& program = FA_PROBE) {
    const std::string command =
        "env -u FLASHATTN_BACKEND_DIR -u FLASHATTN_LOG -u FLASHATTN_LOG_FILE -u FLASHATTN_MAX_ISA -u FLASHATTN_MAX_SHARED " + environment +
        " " + program + " " + arguments;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return "";
    std::string text;
    char line[4096];
    while (fgets(line, sizeof line, pipe)) text += line;
    EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
    return text;
}

::testing::AssertionResult holds(const std::string& text, const std::string& part) {
    if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "lacks \"" << part << "\":\n" << text;
}

// A copy of the library in a folder of its own, so that nothing lies beside it but what a test puts there.
class Places : public ::testing::Test {
  protected:
    void SetUp() override {
        if (std::filesystem::exists(std::string(FA_BACKEND_DIR) + "/" + kCuda)) GTEST_SKIP() << "a module is installed in " FA_BACKEND_DIR;
        folder.put(FA_LIBRARY, FA_LIBRARY_NAME);
    }
    std::string run(const std::string& environment, const std::string& arguments) const {
        return probe("LD_LIBRARY_PATH=" + folder.path() + " " + environment, arguments);
    }
    Folder folder;
};

TEST_F(Places, MissingEverywhere) {
    const std::string sentence = "FA_BACKEND_MISSING: libflashattn-cuda.so is not installed; searched: ";
    const std::string places = folder.path("flashattn") + ", " FA_BACKEND_DIR "\n";
    const std::string out = run("", "2");
    EXPECT_TRUE(holds(out, "create: " + sentence + places));
    EXPECT_TRUE(holds(out, "status: " + sentence + places));
    EXPECT_TRUE(holds(run("FLASHATTN_BACKEND_DIR=/nowhere", "2 /nor/here"), "create: " + sentence + "/nor/here, /nowhere, " + places));
}

TEST_F(Places, AutoEndsAtTheCpu) {
    const std::string out = run("FLASHATTN_LOG=info", "0");
    EXPECT_TRUE(holds(out, "create: FA_OK: \n"));
    EXPECT_TRUE(holds(out, "backend: 1\n"));
    EXPECT_TRUE(holds(out, "passed over cuda: libflashattn-cuda.so is not installed"));
    EXPECT_TRUE(holds(out, "passed over hip: libflashattn-hip.so is not installed"));
    EXPECT_TRUE(holds(out, "log 2: backend cpu, device 0"));
}

TEST_F(Places, BesideOurLibrary) {
    folder.subfolder("flashattn");
    folder.put(built("good"), "flashattn/" + std::string(kCuda));
    const std::string out = run("", "2");
    EXPECT_TRUE(holds(out, "status: FA_OK: usable\n"));
    EXPECT_TRUE(holds(out, "backend: 2\n"));
}

TEST_F(Places, TheFirstPlaceThatHasTheFileDecides) {
    folder.subfolder("flashattn");
    folder.put(built("good"), "flashattn/" + std::string(kCuda));
    Folder broken, refusing;
    broken.put(built("wrong_abi"), kCuda);
    refusing.put(built("refuses"), kCuda);
    EXPECT_TRUE(
        holds(run("FLASHATTN_BACKEND_DIR=" + broken.path(), "2"), "create: FA_BACKEND_INCOMPATIBLE: " + broken.path(kCuda) + " is of"));
    EXPECT_TRUE(holds(run("FLASHATTN_BACKEND_DIR=" + broken.path(), "2 " + refusing.path()),
                      "create: FA_BACKEND_INCOMPATIBLE: " + refusing.path(kCuda) + " refuses"));
    EXPECT_TRUE(holds(run("FLASHATTN_BACKEND_DIR=" + broken.path(), "0"), "passed over cuda: " + broken.path(kCuda)));
}

TEST_F(Places, EnvironmentNamesAFolder) {
    Folder good;
    good.put(built("good"), kCuda);
    const std::string out = run("FLASHATTN_BACKEND_DIR=" + good.path(), "0");
    EXPECT_TRUE(holds(out, "status: FA_INVALID_ARGUMENT: backend is 0"));
    EXPECT_TRUE(holds(out, "backend: 2\n"));
}

TEST_F(Places, RelativeFolderOfTheEnvironmentIsRefused) {
    const std::string sentence = "FLASHATTN_BACKEND_DIR is \"modules\": expected an absolute path";
    const std::string out = run("FLASHATTN_BACKEND_DIR=modules", "2");
    EXPECT_TRUE(holds(out, "create: FA_BACKEND_INCOMPATIBLE: " + sentence));
    EXPECT_TRUE(holds(out, "status: FA_BACKEND_INCOMPATIBLE: " + sentence));
    const std::string automatic = run("FLASHATTN_BACKEND_DIR=modules", "0");
    EXPECT_TRUE(holds(automatic, "backend: 1\n"));
    EXPECT_TRUE(holds(automatic, "passed over cuda: " + sentence));
}

TEST_F(Places, ExecutablesFolderIsNoPlace) {
    const std::string program = folder.put(FA_PROBE_STATIC, "probe");
    folder.subfolder("flashattn");
    folder.put(built("good"), "flashattn/" + std::string(kCuda));
    EXPECT_TRUE(holds(probe("", "2", program),
                      "create: FA_BACKEND_MISSING: libflashattn-cuda.so is not installed; searched: " FA_BACKEND_DIR "\n"));
    EXPECT_TRUE(holds(probe("", "2 " + folder.path("flashattn"), program), "backend: 2\n")) << "a static host is served by its own folder";
}

TEST_F(Places, CurrentFolderIsNoPlace) {
    folder.subfolder("flashattn");
    folder.put(built("good"), "flashattn/" + std::string(kCuda));
    // Loaded by a relative path, the library does not know its own place for sure.
    EXPECT_TRUE(holds(probe("-C " + folder.path() + " LD_LIBRARY_PATH=.", "2"), "searched: " FA_BACKEND_DIR "\n"));
}

TEST_F(Places, SetUserIdProgramIgnoresTheEnvironment) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a program away";
    if (std::string(FA_SANITIZE) != "") GTEST_SKIP() << "a leak sanitizer cannot look into a process of another user";
    const std::string program = folder.put(FA_PROBE_STATIC, "probe");
    ASSERT_EQ(chown(program.c_str(), 65534, 65534), 0);
    ASSERT_EQ(chmod(program.c_str(), 04755), 0);
    ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);  // the program's user may write there
    const std::string log = folder.path("log");
    const std::string environment =
        "FLASHATTN_BACKEND_DIR=modules FLASHATTN_MAX_ISA=nonsense FLASHATTN_MAX_SHARED=nonsense FLASHATTN_LOG=error ";
    const std::string out = probe(environment + "FLASHATTN_LOG_FILE=" + log, "2 '' no-callback", program);
    if (out.find("secure: 1\n") == std::string::npos) GTEST_SKIP() << "the system does not let programs change their user";
    EXPECT_TRUE(holds(out, "create: FA_BACKEND_MISSING: "));
    EXPECT_FALSE(std::filesystem::exists(log));
}

TEST(Environment, LogLevelByName) {
    EXPECT_EQ(probe("", "1").find("log "), std::string::npos);
    EXPECT_EQ(probe("FLASHATTN_LOG=none", "1").find("log "), std::string::npos);
    EXPECT_EQ(probe("FLASHATTN_LOG=error", "1").find("log "), std::string::npos);
    EXPECT_TRUE(holds(probe("FLASHATTN_LOG=info", "1"), "log 2: backend cpu"));
    EXPECT_TRUE(holds(probe("FLASHATTN_LOG=debug", "1"), "log 2: backend cpu"));
    EXPECT_TRUE(holds(probe("FLASHATTN_LOG=error", "2 /nowhere"), "log 1: fa_create: FA_BACKEND_"));
}

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

int lines_of(const std::string& text) { return int(std::count(text.begin(), text.end(), '\n')); }

constexpr char kNoCallback[] = "1 '' no-callback";

TEST(Environment, UnknownLogLevelIsToldOnceAndCountsAsUnset) {
    const std::string warning = "FLASHATTN_LOG is \"loud\" and counts as unset: expected none, error, info or debug\n";
    const std::string out = probe("FLASHATTN_LOG=loud", "1");
    EXPECT_TRUE(holds(out, "status: FA_OK: usable (built in)\nlog 1: " + warning + "create: FA_OK: \n"));
    EXPECT_TRUE(holds(out, "again: FA_OK\n"));
    EXPECT_EQ(out.find("log "), out.rfind("log ")) << "told once, and nothing else is logged:\n" << out;

    EXPECT_TRUE(holds(probe("FLASHATTN_LOG=loud", kNoCallback), "create: FA_OK: \n"));
    Folder folder;
    probe("FLASHATTN_LOG=loud FLASHATTN_LOG_FILE=" + folder.path("log"), kNoCallback);
    const std::string log = text_of(folder.path("log"));
    EXPECT_TRUE(holds(log, " error: " + warning));
    EXPECT_EQ(lines_of(log), 1) << log;
}

TEST(Environment, LogFileTakesLinesWhereThereIsNoCallback) {
    Folder folder;
    const std::string file = folder.path("log"), environment = "FLASHATTN_LOG_FILE=" + file + " FLASHATTN_LOG=";
    probe(environment + "none", kNoCallback);
    probe(environment + "info", "1");
    EXPECT_FALSE(std::filesystem::exists(file)) << "nothing was to be logged, or a callback took it";

    probe("FLASHATTN_LOG_FILE= FLASHATTN_LOG=info", kNoCallback);  // as if unset
    probe("sh -c 'umask 0; exec env \"$@\"' sh " + environment + "info", kNoCallback);
    const std::string log = text_of(file);
    EXPECT_TRUE(holds(log, " info: backend cpu, device 0"));
    EXPECT_EQ(log.rfind("flashattn ", 0), 0u);
    EXPECT_EQ(lines_of(log), 2) << "one for each handle:\n" << log;
    struct stat found;
    ASSERT_EQ(stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);

    probe(environment + "error", "2 /nowhere no-callback");
    const std::string more = text_of(file);
    EXPECT_EQ(more.rfind(log, 0), 0u) << "lines are appended";
    EXPECT_TRUE(holds(more.substr(log.size()), " error: fa_create: FA_BACKEND_"));
}

TEST(Environment, LogFileThatCannotBeWrittenFailsNothing) {
    Folder folder;
    const std::string victim = folder.path("victim");
    ASSERT_EQ(close(creat(victim.c_str(), 0600)), 0);
    ASSERT_EQ(symlink("victim", folder.path("link").c_str()), 0);
    ASSERT_EQ(symlink("none", folder.path("dangling").c_str()), 0);
    ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
    for (const char* name : {"", "none/log", "link", "dangling", "pipe"}) {
        const std::string out = probe("FLASHATTN_LOG=debug FLASHATTN_LOG_FILE=" + folder.path(name), kNoCallback);
        EXPECT_TRUE(holds(out, "create: FA_OK: \n")) << name;
        EXPECT_TRUE(holds(out, "again: FA_OK\n")) << name;
    }
    EXPECT_EQ(text_of(victim), "") << "a link was followed";
    EXPECT_FALSE(std::filesystem::exists(folder.path("none"))) << "a link was followed";
}

TEST(Environment, LogFileHoldsOneLineForEach) {
    Folder folder;
    const std::string file = folder.path("log");
    probe("FLASHATTN_LOG=error FLASHATTN_LOG_FILE=" + file, "2 \"/no$(printf '\\nflashattn 1 error: forged')\" no-callback");
    EXPECT_EQ(lines_of(text_of(file)), 1) << text_of(file);
}

TEST(Environment, UnknownInstructionSetIsInvalid) {
    std::string words;
#define FA_CPU_ISA(architecture, table, word, value) words += words.empty() ? #word : ", " #word;
#include "backend/isa.def"
    EXPECT_TRUE(holds(probe("FLASHATTN_MAX_ISA=sse9", "0"),
                      "create: FA_INVALID_ARGUMENT: FLASHATTN_MAX_ISA is \"sse9\": expected one of " + words + "\n"));
}

// By any handle, as an unknown instruction set is: a CPU's has no use for the number.
TEST(Environment, SharedMemoryIsANumberOfKilobytes) {
    for (const char* text : {"63", "0", "-99", "99KB", "0x63", "all", "99.5", " 99"})
        EXPECT_TRUE(holds(
            probe("FLASHATTN_MAX_SHARED='" + std::string(text) + "'", "0"),
            "create: FA_INVALID_ARGUMENT: FLASHATTN_MAX_SHARED is \"" + std::string(text) + "\": expected a number of KB, 64 or more\n"));
    for (const char* text : {"", "64", "227", "99999999999999999999999"})
        EXPECT_TRUE(holds(probe("FLASHATTN_MAX_SHARED=" + std::string(text), "1"), "create: FA_OK: \n")) << text;
}

TEST(Environment, MaxIsaSetsTheParameter) {
    EXPECT_TRUE(holds(probe("", "1"), "max_isa: 0\n"));
    EXPECT_TRUE(holds(probe("FLASHATTN_MAX_ISA=", "1"), "max_isa: 0\n"));
    EXPECT_TRUE(holds(probe("FLASHATTN_MAX_ISA=generic", "1"), "max_isa: 1\n"));
    // Every level is either there or refused, by fa_create and fa_backend_status alike.
    for (int32_t isa = 2; isa < 256; isa++) {
        if (!fa_isa_name(isa)) continue;
        const std::string level = fa_isa_name(isa), number = std::to_string(isa);
        const std::string out = probe("FLASHATTN_MAX_ISA=" + level, "1");
        if (out.find("create: FA_OK") != std::string::npos) {
            EXPECT_TRUE(holds(out, "status: FA_OK: usable (built in)\n"));
            EXPECT_TRUE(holds(out, "max_isa: " + number + "\n"));
        } else {
            EXPECT_TRUE(holds(out, "create: FA_UNSUPPORTED: max_isa is " + level + ": this CPU or build offers generic"));
            EXPECT_TRUE(holds(out, "status: FA_UNSUPPORTED: max_isa is " + level + ": this CPU or build offers generic"));
        }
    }
}

TEST(Environment, NothingGoesToStderr) {
    Folder folder;
    folder.put(built("wrong_abi"), kCuda);
    EXPECT_EQ(probe("FLASHATTN_LOG=debug", "2 " + folder.path() + " 2>&1 >/dev/null"), "");
}

}  // namespace
