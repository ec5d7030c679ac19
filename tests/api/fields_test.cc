// No field is forgotten: each one of the header's structs begins the sentence of some row.
#include <fstream>
#include <set>
#include <sstream>
#include "rules.h"

namespace {

// The text without what stands from each `begin` to the next `end`.
std::string without(std::string text, const std::string& begin, const std::string& end) {
    for (size_t at; (at = text.find(begin)) != std::string::npos;) text.erase(at, text.find(end, at) + end.size() - at);
    return text;
}

// Names of the fields of a struct, as the header writes them: the last word before ';' or '['.
std::vector<std::string> fields_of(const std::string& tag) {
    std::ifstream file(FA_HEADER);
    std::stringstream text;
    text << file.rdbuf();
    const std::string header = without(text.str(), "/*", "*/");
    const size_t begin = header.find("typedef struct " + tag + " {"), end = header.find("\n}", begin);
    std::vector<std::string> names;
    if (begin == std::string::npos) return names;
    std::istringstream body(without(header.substr(begin, end - begin), "[", "]"));
    for (std::string declaration; std::getline(body, declaration, ';');) {
        const size_t last = declaration.find_last_of(" *");
        if (last + 1 < declaration.size() && declaration[last + 1] != '\n') names.push_back(declaration.substr(last + 1));
    }
    return names;
}

template <class Call>
std::set<std::string> said(const std::vector<Rule<Call>>& rules) {
    std::set<std::string> names;
    for (const Rule<Call>& rule : rules) {
        const std::string says = rule.says;
        names.insert(says.substr(0, says.find_first_of(" [")));
        // "dropout_seed is 0 and dropout_offset is 6", "cos is (nil) and sin is …"
        const size_t other = says.find(" and ");
        if (other != std::string::npos) names.insert(says.substr(other + 5, says.find(' ', other + 5) - other - 5));
    }
    return names;
}

// count: how many there are at least, for a struct only grows: fewer were not found in the text.
void check_fields(const std::string& tag, size_t count, const std::set<std::string>& names) {
    SCOPED_TRACE(tag);
    const std::vector<std::string> fields = fields_of(tag);
    EXPECT_GE(fields.size(), count);
    for (const std::string& field : fields) {
        if (field == "struct_size") continue;  // sized_test.cc
        EXPECT_TRUE(names.count(field)) << field << " has no row";
    }
}

}  // namespace

TEST(Fields, EachHasARow) {
    check_fields("fa_attention_desc_s", 72, said(descriptor_rules()));
    check_fields("fa_forward_args_s", 41, said(forward_rules()));
    check_fields("fa_backward_args_s", 19, said(backward_rules()));
    check_fields("fa_merge_args_s", 16, said(merge_rules()));
    check_fields("fa_append_kv_args_s", 31, said(append_rules()));
    check_fields("fa_rotary_args_s", 17, said(rotary_rules()));
}
