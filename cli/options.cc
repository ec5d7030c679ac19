#include "options.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace tool {
namespace {

// The whole text must be one number; a plus sign is as good as none.
template <class T>
bool parse(const std::string& text, T* value) {
    const char* begin = text.data();
    const char* end = begin + text.size();
    if (text.size() > 1 && *begin == '+' && begin[1] != '-') ++begin;
    const auto [rest, error] = std::from_chars(begin, end, *value);
    return error == std::errc() && rest == end;
}

// Letters left out, put in, replaced, or swapped with the next, that make one word of the other.
size_t distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i)
        for (size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[a.size()][b.size()];
}

std::string without_dashes(const std::string& word) { return word.substr(std::min(word.find_first_not_of('-'), word.size())); }

// The candidate that may have been meant: the word is its beginning, or has at most every third letter wrong. Else "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    const std::string wanted = without_dashes(word);
    std::string best;
    size_t least = (wanted.size() + 1) / 3 + 1;
    for (const std::string& candidate : candidates) {
        const std::string name = without_dashes(candidate);
        const bool begins = wanted.size() > 1 && name.compare(0, wanted.size(), wanted) == 0;
        const size_t wrong = begins ? 0 : distance(wanted, name);
        if (wrong < least) least = wrong, best = candidate;
    }
    return best;
}

// What `place`, the tool or one of its commands, says of a word that it does not know.
std::string unknown(const CLI::App& place, const std::string& word) {
    std::vector<std::string> candidates;
    const bool option = word[0] == '-', command = !option && !place.get_parent();
    if (option)
        for (const CLI::Option* o : place.get_options()) {
            for (const std::string& name : o->get_lnames()) candidates.push_back("--" + name);
            for (const std::string& name : o->get_snames()) candidates.push_back("-" + name);
        }
    if (command)
        for (const CLI::App* c : place.get_subcommands([](const CLI::App*) { return true; })) candidates.push_back(c->get_name());
    const std::string name = option ? word.substr(0, word.find('=')) : word, meant = nearest(name, candidates);
    const char* const what = option ? "unknown option " : command ? "unknown command " : "unexpected argument ";
    return what + shown(name) + (meant.empty() ? "" : "; did you mean " + meant + "?");
}

}  // namespace

// A word that is not known comes first: for lack of what it was meant to be, something else may be missing.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App* place = &app;
    for (std::string name = app.get_name();; name += " " + place->get_name()) {
        const std::vector<std::string> words = place->remaining();
        const auto word = std::find_if(words.begin(), words.end(), [](const std::string& w) { return w != "--"; });
        const std::string more = " (" + name + " --help tells more)";
        if (word != words.end()) return unknown(*place, *word) + more;
        if (place->get_subcommands().empty()) return error.what() + more;
        place = place->get_subcommands().front();
    }
}

double parse_real(const std::string& option, const std::string& text) {
    double value = 0;
    if (!parse(text, &value) || !std::isfinite(value)) misuse(option, " is '", text, "'; expected a finite number");
    return value;
}

int64_t parse_int(const std::string& option, const std::string& text) {
    int64_t value = 0;
    if (!parse(text, &value)) misuse(option, " is '", text, "'; expected a whole number");
    return value;
}

std::vector<int64_t> parse_ints(const std::string& option, const std::string& text) {
    std::vector<int64_t> values;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        int64_t value = 0;
        if (!parse(text.substr(at, comma - at), &value)) misuse(option, " is '", text, "'; expected whole numbers separated by commas");
        values.push_back(value);
        at = comma + 1;
    }
    return values;
}

CLI::Option* add_real(CLI::App& app, const std::string& option, std::optional<float>& value, const std::string& help) {
    const auto read = [&value, option](const std::string& text) {
        const double given = parse_real(option, text);
        value = float(given);
        if (!std::isfinite(*value) || (*value == 0) != (given == 0))
            misuse(option, " is '", text, "'; expected a number within float32's range, which does not make it ", *value);
    };
    return app.add_option_function<std::string>(option, read, help)->type_name("NUMBER");
}

CLI::Option* add_text(CLI::App& app, const std::string& option, std::string& value, const std::string& form, const std::string& help) {
    const auto read = [&value, option](const std::string& text) {
        if (text.empty()) misuse(option, " is empty; expected a value");
        value = text;
    };
    return app.add_option_function<std::string>(option, read, help)->type_name(form);
}

CLI::Option* add_int(CLI::App& app, const std::string& option, int64_t& value, const std::string& help) {
    const auto read = [&value, option](const std::string& text) { value = parse_int(option, text); };
    return app.add_option_function<std::string>(option, read, help)->type_name("N");
}

CLI::Option* add_ints(CLI::App& app, const std::string& option, std::vector<int64_t>& value, const std::string& form,
                      const std::string& help) {
    const auto read = [&value, option](const std::string& text) { value = parse_ints(option, text); };
    return app.add_option_function<std::string>(option, read, help)->type_name(form);
}

CLI::Option* add_choice(CLI::App& app, const std::string& option, std::string& value, const std::vector<std::string>& names,
                        const std::string& help) {
    std::string form;
    for (const std::string& name : names) form += (form.empty() ? "" : "|") + name;
    const auto read = [&value, option, names, form](const std::string& text) {
        for (const std::string& name : names)
            if (text == name) {
                value = text;
                return;
            }
        misuse(option, " is '", text, "'; expected ", form);
    };
    return app.add_option_function<std::string>(option, read, help)->type_name(form);
}

}  // namespace tool
