// The pages keep their word: links lead somewhere, names exist, and the header shows of a cache what a program says.
#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace {

std::string read(const std::string& name) {
    std::ifstream file(SOURCE_DIR "/" + name);
    EXPECT_TRUE(file) << name;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// What the header shows of a quantised cache is what a program says that the tests run.
TEST(Header, ItsExampleOfAQuantisedCacheIsAProgram) {
    const std::string header = read("include/flashattn.h"), program = read("examples/quantised_cache.c");
    const std::string name = "* Example, causal, over a q8_0 cache:";
    const size_t begin = header.find(name), end = header.find("* Example", begin + 1);
    ASSERT_TRUE(begin != std::string::npos && end != std::string::npos);
    const std::string shown = header.substr(begin + name.size(), end - begin - name.size());
    const std::regex statement("[da]\\.[^;]+;");
    int statements = 0;
    for (std::sregex_iterator found(shown.begin(), shown.end(), statement), none; found != none; ++found, statements++)
        EXPECT_NE(program.find("    " + found->str()), std::string::npos) << found->str();
    EXPECT_EQ(statements, 16);
}

TEST(Pages, LinksLeadSomewhere) {
    namespace fs = std::filesystem;
    const std::regex link("\\]\\(([^)#:]+)(#[^)]*)?\\)");  // not those with a scheme, nor within a page
    int links = 0;
    for (const char* folder : {"", "docs", "docs/generated", "docs/guides", "docs/lab", "docs/performance", "docs/tutorial"})
        for (const fs::directory_entry& page : fs::directory_iterator(fs::path(SOURCE_DIR) / folder)) {
            if (page.path().extension() != ".md") continue;
            const std::string text = read(fs::relative(page.path(), SOURCE_DIR).string());
            for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at, links++)
                EXPECT_TRUE(fs::exists(page.path().parent_path() / (*at)[1].str())) << page.path() << ": " << (*at)[1];
        }
    EXPECT_GT(links, 0);
}

// Recipes and pages of today's design name files and folders that exist.
TEST(Pages, NameFilesThatExist) {
    const std::regex path("`((bench|bindings|cli|cmake|docs|examples|include|src|tests|tools)/[^`* ]+)[^`*]*`");
    for (const char* page : {"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/gpu.md", "docs/hopper.md",
                             "docs/install.md", "docs/support.md", "docs/SPEC.md", "docs/amd.md", "docs/distributed.md"}) {
        const std::string text = read(page);
        for (std::sregex_iterator at(text.begin(), text.end(), path), end; at != end; ++at)
            EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(SOURCE_DIR) / (*at)[1].str())) << page << ": " << (*at)[1];
    }
}

// And what recipes call by a name of the header, of the build's options or of the lists that a new option joins is called so there.
TEST(Pages, RecipesNameWhatExists) {
    std::string known;
    for (const char* file : {"include/flashattn.h", "CMakeLists.txt", "src/backend/options.def"}) known += read(file);
    const std::regex name("`(FA_[A-Z0-9_]+)`");
    const std::string text = read("CONTRIBUTING.md");
    int names = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at, names++)
        EXPECT_NE(std::string::npos, known.find((*at)[1].str())) << (*at)[1];
    EXPECT_NE(std::string::npos, text.find("`FA_ATTENTION_DESC_INIT`")) << "where a new field must be";
    EXPECT_GT(names, 1);
}

}  // namespace
