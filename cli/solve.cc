// flashattn solve: the classic exercise, multi-head attention over one sequence given as text.
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>
#include "commands.h"
#include "files.h"
#include "library.h"
#include "options.h"

namespace tool {
namespace {

constexpr int64_t kMaxDim = 1024;  // the library's widest head

// Words separated by blanks and line ends. Every message says in which line.
class Words {
  public:
    Words(const std::string& path, std::string_view text) : path_(path), text_(text) {}

    bool at_end() {
        for (; at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])); ++at_) line_ += text_[at_] == '\n';
        return at_ == text_.size();
    }
    template <class What>
    std::string take(const What& what) {  // what() names the number that is due
        if (at_end()) stop("the text ends before ", what());
        const size_t begin = at_;
        while (at_ < text_.size() && !std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
        return std::string(text_.substr(begin, at_ - begin));
    }
    template <class... Parts>
    [[noreturn]] void stop(const Parts&... parts) const {
        fail(path_, ", line ", line_, ": ", parts...);
    }

  private:
    const std::string& path_;
    std::string_view text_;
    size_t at_ = 0;
    int64_t line_ = 1;
};

int64_t read_size(Words& words, const char* name) {
    const std::string word = words.take([name] { return name; });
    char* end = nullptr;
    errno = 0;
    const int64_t value = std::strtoll(word.c_str(), &end, 10);
    if (end != word.c_str() + word.size() || errno != 0 || value < 1)
        words.stop(name, " is ", shown(word), "; expected a whole number of at least 1");
    return value;
}

std::vector<float> read_matrix(Words& words, const char* name, int64_t rows, int64_t columns) {
    std::vector<float> m;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
            const auto element = [&] { return text_of(name, "[", r, "][", c, "]"); };
            const std::string word = words.take(element);
            char* end = nullptr;
            m.push_back(std::strtof(word.c_str(), &end));
            const bool overflow = std::isinf(m.back()) && word.find_first_of("iI") == std::string::npos;
            if (end != word.c_str() + word.size() || overflow)
                words.stop(element(), " is ", shown(word), "; expected a number within float32's range");
        }
    return m;
}

void print(const std::vector<float>& o, int64_t columns, int64_t digits) {
    std::vector<char> text(size_t(digits) + 64);  // a float has at most 39 digits before the point
    for (size_t i = 0; i < o.size(); ++i) {
        const float x = std::isnan(o[i]) ? std::fabs(o[i]) : o[i];  // the sign of NaN is no news
        std::snprintf(text.data(), text.size(), "%.*f", int(digits), double(x));
        std::cout << text.data() << (int64_t(i) % columns == columns - 1 ? '\n' : ' ');
    }
}

void solve(const std::string& path, const std::string& backend, int64_t digits) {
    if (digits < 0 || digits > 100) misuse("--digits is ", digits, "; expected 0 … 100");
    const std::vector<std::byte> bytes = InputFile(path).read(UINT64_MAX);
    Words words(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    const int64_t n = read_size(words, "N"), d_model = read_size(words, "d_model"), heads = read_size(words, "h");
    if (d_model % heads != 0) words.stop("d_model = ", d_model, " is no multiple of h = ", heads);
    if (d_model / heads > kMaxDim) words.stop("d_model / h = ", d_model / heads, "; expected heads of 1 … ", kMaxDim);
    const std::vector<float> q = read_matrix(words, "Q", n, d_model), k = read_matrix(words, "K", n, d_model),
                             v = read_matrix(words, "V", n, d_model);
    if (!words.at_end()) words.stop("more follows after the last number of V: ", shown(words.take([] { return ""; })));

    // Head i has the columns from i · d_model / h on: the library's dense layout, so nothing is moved.
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.batch = 1;
    d.heads_q = heads;
    d.seqlen_q = d.seqlen_k = n;
    d.dim_qk = d_model / heads;
    std::vector<float> o(q.size());
    Handle handle(value_of(kBackends, backend));
    handle.check(fa_forward(handle, &d, q.data(), k.data(), v.data(), o.data()));
    print(o, d_model, digits);
}

}  // namespace

void add_solve(CLI::App& app) {
    struct Options {
        std::string path, backend = "auto";
        int64_t digits = 2;
    };
    const auto o = std::make_shared<Options>();
    CLI::App& c = *app.add_subcommand(
        "solve", "Compute multi-head attention. The text file has N, d_model and h, then Q, K and V as N rows of d_model numbers");
    add_text(c, "FILE", o->path, "", "The text; - is standard input")->required();
    add_int(c, "--digits", o->digits, "Digits after the point; default 2");
    add_choice(c, "--backend", o->backend, names_of(kBackends), "Where to compute; default auto");
    c.callback([o] { solve(o->path, o->backend, o->digits); });
}

}  // namespace tool
