#include "options.h"
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

}  // namespace

double parse_real(const std::string& option, const std::string& text) {
    double value = 0;
    if (!parse(text, &value) || !std::isfinite(value)) fail(option, " is '", text, "'; expected a finite number");
    return value;
}

int64_t parse_int(const std::string& option, const std::string& text) {
    int64_t value = 0;
    if (!parse(text, &value)) fail(option, " is '", text, "'; expected a whole number");
    return value;
}

std::vector<int64_t> parse_ints(const std::string& option, const std::string& text) {
    std::vector<int64_t> values;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        int64_t value = 0;
        if (!parse(text.substr(at, comma - at), &value))
            fail(option, " is '", text, "'; expected whole numbers separated by commas");
        values.push_back(value);
        at = comma + 1;
    }
    return values;
}

CLI::Option* add_real(CLI::App& app, const std::string& option, std::optional<float>& value, const std::string& help) {
    const auto read = [&value, option](const std::string& text) {
        value = float(parse_real(option, text));
        if (!std::isfinite(*value)) fail(option, " is '", text, "'; expected a number within float32's range");
    };
    return app.add_option_function<std::string>(option, read, help)->type_name("NUMBER");
}

CLI::Option* add_text(CLI::App& app, const std::string& option, std::string& value, const std::string& form,
                      const std::string& help) {
    const auto read = [&value, option](const std::string& text) {
        if (text.empty()) fail(option, " is empty; expected a value");
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
        fail(option, " is '", text, "'; expected ", form);
    };
    return app.add_option_function<std::string>(option, read, help)->type_name(form);
}

}  // namespace tool
