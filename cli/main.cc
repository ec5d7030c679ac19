// The flashattn tool. Every error is one sentence on stderr and a non-zero exit status.
#include <exception>
#include <iostream>
#include <new>
#include "commands.h"
#include "library.h"
#include "options.h"
#include "signals.h"

namespace {

constexpr int kUsage = 2;

int complain(std::string sentence, int status = 1) {
    for (char& c : sentence)
        if (static_cast<unsigned char>(c) < ' ') c = ' ';  // one line, whatever a path or a driver's message holds
    std::cerr << "flashattn: " << sentence << "\n";
    return status;
}

std::string version() { return "flashattn " + tool::version_text(fa_version()); }

int run(int argc, char** argv) {
    CLI::App app("FlashAttention from the command line: softmax(scale · q kᵀ, masked) v on the CPU or a GPU.", "flashattn");
    app.set_version_flag("-V,--version", version);
    app.require_subcommand(1);
    tool::add_bench(app);
    tool::add_completion(app);
    tool::add_info(app);
    tool::add_run(app);
    tool::add_solve(app);
    tool::add_study(app);
    tool::add_verify(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        if (e.get_exit_code() != int(CLI::ExitCodes::Success)) return complain(tool::usage_fault(app, e), kUsage);
        app.exit(e);  // prints what --help or --version asked for
    }
    if (!std::cout.flush()) tool::fail("standard output cannot be written");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    tool::watch_signals();
    try {
        return run(argc, argv);
    } catch (const tool::UsageError& e) {
        return complain(e.what(), kUsage);
    } catch (const tool::Interrupted& e) {
        complain(e.what());
        tool::end_by_signal();
        return 1;
    } catch (const std::bad_alloc&) {
        return complain("not enough memory for this");
    } catch (const std::exception& e) {
        return complain(e.what());
    }
}
