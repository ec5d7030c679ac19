// flashattn completion: a script that teaches a shell the tool's commands, options and values. It is written from the parser itself.
#include <algorithm>
#include <iostream>
#include <memory>
#include "commands.h"
#include "library.h"
#include "options.h"

namespace tool {
namespace {

struct Argument {
    std::string option, help;  // option: "--name"; "": the command's operand
    std::vector<std::string> words;
    bool value, file;
};
struct Command {
    std::string name, help;
    std::vector<Argument> arguments;
};

// A value's form says what may stand there: words between bars, or a FILE.
Argument argument_of(const CLI::Option& o, const std::string& option) {
    Argument a{option, o.get_description(), {}, o.get_items_expected_max() > 0, false};
    const std::string form = a.value ? o.get_type_name() : "";
    for (size_t at = 0; at < form.size();) {
        const size_t bar = std::min(form.find('|', at), form.size());
        const std::string word = form.substr(at, bar - at);
        at = bar + 1;
        if (word == "FILE") a.file = true;
        else if (std::none_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c); })) a.words.push_back(word);
    }
    if (option.empty() && a.words.empty()) a.file = true;
    return a;
}

std::vector<Argument> arguments_of(const CLI::App& app) {
    std::vector<Argument> list;
    for (const CLI::Option* o : app.get_options()) {
        for (const std::string& name : o->get_lnames()) list.push_back(argument_of(*o, "--" + name));
        for (const std::string& name : o->get_snames()) list.push_back(argument_of(*o, "-" + name));
        if (o->get_positional()) list.push_back(argument_of(*o, ""));
    }
    return list;
}

std::vector<Command> commands_of(const CLI::App& app) {
    std::vector<Command> list;
    for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; }))
        list.push_back({c->get_name(), c->get_description(), arguments_of(*c)});
    return list;
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}
// What may begin an argument.
std::string words_in(const std::vector<Argument>& arguments) {
    std::vector<std::string> words;
    for (const Argument& a : arguments) {
        if (!a.option.empty()) words.push_back(a.option);
        else words.insert(words.end(), a.words.begin(), a.words.end());
    }
    return joined(words);
}
std::string names_in(const std::vector<Command>& commands) {
    std::vector<std::string> words;
    for (const Command& c : commands) words.push_back(c.name);
    return joined(words);
}

// The text with a backslash before each of the characters, none of which is one.
std::string escaped(const std::string& text, const std::string& characters) {
    std::string out;
    for (const char c : text) {
        if (characters.find(c) != std::string::npos) out += '\\';
        out += c;
    }
    return out;
}
// Within single quotes of bash and zsh.
std::string quoted(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

// "--option=value" comes as three words, for bash breaks words at "=".
constexpr char kBashBegin[] = R"(# bash completion for flashattn
_flashattn() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words= files=
    [ "$word" != = ] || word=
    [ "$before" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}
    [ "$COMP_CWORD" -gt 1 ] || command=
    case "$command $before" in
)";
constexpr char kBashEnd[] = R"(    esac
    COMPREPLY=($(compgen ${files:+-f} -W "$words" -- "$word"))
    [ -z "$files" ] || compopt -o filenames 2>/dev/null
}
complete -F _flashattn flashattn
)";

void print_bash(const CLI::App& app) {
    const std::vector<Command> commands = commands_of(app);
    std::cout << kBashBegin;
    for (const Command& c : commands)
        for (const Argument& a : c.arguments)
            if (a.value && !a.option.empty())
                std::cout << "    '" << c.name << " " << a.option << "') words='" << joined(a.words) << "'" << (a.file ? " files=1" : "")
                          << " ;;\n";
    for (const Command& c : commands) {
        const bool files = std::any_of(c.arguments.begin(), c.arguments.end(),
                                       [](const Argument& argument) { return argument.option.empty() && argument.file; });
        std::cout << "    '" << c.name << " '*) words='" << words_in(c.arguments) << "'" << (files ? " files=1" : "") << " ;;\n";
    }
    std::cout << "    ' '*) words='" << names_in(commands) << " " << words_in(arguments_of(app)) << "' ;;\n" << kBashEnd;
}

// One argument as _arguments of zsh has it: '--option=[help]:value:action'.
std::string zsh_spec(const Argument& argument) {
    const std::string action = argument.file ? "_files" : argument.words.empty() ? " " : "(" + joined(argument.words) + ")";
    if (argument.option.empty()) return quoted(":" + argument.help + ":" + action);
    return quoted(argument.option + (argument.value ? "=" : "") + "[" + escaped(argument.help, "[]:") + "]" +
                  (argument.value ? ":value:" + action : ""));
}

void print_zsh(const CLI::App& app) {
    std::cout << "#compdef flashattn\n_flashattn() {\n    if (( CURRENT == 2 )); then\n        local -a commands=(";
    for (const Command& c : commands_of(app)) std::cout << "\n            " << quoted(escaped(c.name, ":") + ":" + c.help);
    std::cout << "\n        )\n        _describe command commands\n        _arguments";
    for (const Argument& a : arguments_of(app)) std::cout << " " << zsh_spec(a);
    std::cout << "\n        return\n    fi\n    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n";
    for (const Command& c : commands_of(app)) {
        std::cout << "    " << c.name << ")\n        _arguments";
        for (const Argument& a : c.arguments) std::cout << " \\\n            " << zsh_spec(a);
        std::cout << " ;;\n";
    }
    std::cout << "    esac\n}\n"  // sourced, or read by compinit and called for the first completion
              << "if [ \"$funcstack[1]\" = _flashattn ]; then _flashattn \"$@\"; else compdef _flashattn flashattn; fi\n";
}

void print_fish(const CLI::App& app) {
    const auto line = [](const std::string& condition, const Argument& argument) {
        const bool has_long = argument.option.rfind("--", 0) == 0;
        std::cout << "complete -c flashattn -n '" << condition << "'";
        if (!argument.option.empty()) std::cout << (has_long ? " -l " : " -s ") << argument.option.substr(has_long ? 2 : 1);
        if (argument.file) std::cout << (argument.option.empty() ? " -F" : " -rF");
        else if (argument.value) std::cout << " -x";
        if (!argument.words.empty()) std::cout << " -a '" << joined(argument.words) << "'";
        std::cout << " -d '" << escaped(argument.help, "'\\") << "'\n";
    };
    std::cout << "complete -c flashattn -f\n";
    for (const Argument& a : arguments_of(app)) line("__fish_use_subcommand", a);
    for (const Command& c : commands_of(app)) {
        line("__fish_use_subcommand", {"", c.help, {c.name}, false, false});
        for (const Argument& a : c.arguments) line("__fish_seen_subcommand_from " + c.name, a);
    }
}

}  // namespace

void add_completion(CLI::App& app) {
    const auto shell = std::make_shared<std::string>();
    CLI::App& c = *app.add_subcommand("completion", "Print a script with which a shell completes command lines of this tool");
    add_choice(c, "SHELL", *shell, {"bash", "zsh", "fish"}, "The shell")->required();
    c.callback([&app, shell] {
        if (*shell == "bash") print_bash(app);
        else if (*shell == "zsh") print_zsh(app);
        else print_fish(app);
    });
}

}  // namespace tool
