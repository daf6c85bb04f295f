// tools/verbs.h — the verbs of the command line: each adds itself, with its options, its help and its action; its
// version
#pragma once

#include <ctime>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace attune::tools {

/// Adds a verb with its options, its help and its action.
using AddVerb = void(CLI::App& app);
AddVerb add_run, add_plot, add_ranks, add_report, add_print, add_grad, add_explain, add_cover, add_bench, add_bundle,
    add_cache, add_compile, add_cuda, add_support, add_tune, add_verify, add_diff, add_repl, add_completion, add_man;

/// Adds all verbs, and the app's own flags.
void add_verbs(CLI::App& app);

/// Runs one command line; mistakes are thrown. Returns the verb's own status, else 0.
int run_verb(int argc, const char* const* argv);

/// The whole program. Returns 0 when done, 2 for a user's mistake, 3 for ours, or a verb's own status.
int attune_main(int argc, const char* const* argv);

std::string_view version();
/// The commit at configure time, as git describes it; empty without git.
std::string_view commit();
/// The command line that attune_main was called with, with quotes where a shell needs them.
std::string command_line();
void keep_command_line(int argc, const char* const* argv);
/// The model name of this machine's processor.
std::string processor();
/// As 2026-11-21T21:30:00Z; "?" for a time that has no such form.
std::string timestamp(std::time_t at = std::time(nullptr));

}  // namespace attune::tools
