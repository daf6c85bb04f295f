// tools/verbs.cpp — the command line as a whole: parses it, runs the verb, turns mistakes into messages and exit codes
#include "tools/verbs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <new>
#include <string>
#include <vector>

#include <attune/error.h>

#include "ir/parse.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tools/output/manual.h"
#include "tools/output/output.h"

namespace attune::tools {
namespace {

std::string suggestion(const std::string& word, const std::vector<std::string>& known, const std::string& otherwise) {
  const auto near = ir::nearest(word, known);
  return near ? fmt::format("did you mean {}?", *near) : otherwise;
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    out.push_back(verb->get_name());
  return out;
}

/// Checks the verb before parsing; otherwise CLI11 would complain about the options of an unknown verb.
void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  if (argc > 1 && argv[1][0] == '-') return;
  const std::vector<std::string> verbs = verbs_of(app);
  if (argc < 2)
    throw Error("no-verb", "attune is called without a verb", {}, fmt::format("it knows {}", fmt::join(verbs, ", ")),
                "write attune VERB, or attune --help");
  const std::string word = argv[1];
  if (std::find(verbs.begin(), verbs.end(), word) != verbs.end()) return;
  throw Error("unknown-verb", fmt::format("there is no verb `{}`", word), {},
              fmt::format("attune knows {}", fmt::join(verbs, ", ")), suggestion(word, verbs, "see attune --help"));
}

/// `attune help VERB` as `attune VERB --help`.
std::vector<const char*> with_help(int argc, const char* const* argv) {
  std::vector<const char*> out(argv, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "help") return out;
  out.erase(out.begin() + 1);
  out.push_back("--help");
  return out;
}

/// What to write instead of a text that is no whole number: `--heads 32 --kv-heads 8` for `--heads 32/8`.
std::string whole_instead(const CLI::App& verb, const std::string& option, const std::string& text) {
  if (option == "--arch") return "write the compute capability times ten: --arch 90 for sm_90a";
  const std::size_t cut = text.find('/');
  const std::string second = option == "--heads" ? "--kv-heads" : option == "--d" ? "--dv" : "";
  if (cut != std::string::npos && verb.get_option_no_throw(second))
    return fmt::format("write {} {} {} {}", option, text.substr(0, cut), second, text.substr(cut + 1));
  return fmt::format("write {} 4096", option);
}

/// A whole number in decimal. CLI11 would also take octal and hexadecimal, and truncate to 64 bits.
void check_whole(const CLI::App& verb, const std::string& option, std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (status == std::errc{} && stop == end && !text.empty()) {
    text = std::to_string(value);
    return;
  }
  const bool beyond = status == std::errc::result_out_of_range && stop == end;
  throw Error("bad-usage", fmt::format("{} needs a whole number", option),
              {.name = option, .line = 0, .text = text, .begin = 0, .end = text.size()},
              beyond ? "it is beyond 64 bits" : "digits are expected, with a - in front for negative numbers",
              whole_instead(verb, option, text));
}

void take_whole_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_type_name() == "N" || option->get_type_name() == "I")
      option->transform(CLI::Validator(
          [&app, name = option->get_name()](std::string& text) {
            check_whole(app, name, text);
            return std::string();
          },
          ""));
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) take_whole_numbers(*verb);
}

/// CLI11's error as one of ours.
Error usage_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* innermost = &app;
  std::string name = app.get_name();
  while (!innermost->get_subcommands().empty()) {
    innermost = innermost->get_subcommands()[0];
    name += " " + innermost->get_name();
  }
  const CLI::App& verb = *innermost;
  const std::string help = fmt::format("see {} --help", name);
  const std::vector<std::string> rest = app.remaining(true);
  // A misspelt option also leaves a required one missing; report the spelling.
  if (!rest.empty()) {
    const std::string word = rest[0].substr(0, rest[0].find('='));
    std::vector<std::string> options;
    for (const CLI::Option* option : verb.get_options()) options.push_back(option->get_name());
    if (word.starts_with('-'))
      return Error("unknown-option", fmt::format("there is no option {}", word), {},
                   fmt::format("{} takes {}", name, fmt::join(options, " ")), suggestion(word, options, help));
    const std::vector<std::string> verbs = verbs_of(verb);
    if (!verbs.empty())
      return Error("unknown-verb", fmt::format("{} has no verb `{}`", name, word), {},
                   fmt::format("it has {}", fmt::join(verbs, ", ")), suggestion(word, verbs, help));
    return Error("stray-argument", fmt::format("`{}` is unexpected", rest[0]), {},
                 "it is neither an option nor the value of one",
                 "put quotes around an expression with spaces, or name the option it belongs to");
  }
  if (const std::string_view said = e.what(); said.find("At Most 1 required but received") != std::string_view::npos)
    return Error("bad-usage", fmt::format("{} is given more than once", said.substr(0, said.find(':'))), {},
                 "it takes one value", "leave out the others");
  // CLI11 reports an option by its longest name, whichever name was written.
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&e) && std::string_view(e.what()).ends_with(" missing"))
    for (const CLI::Option* option : verb.get_options())
      if (std::string_view(e.what()).starts_with(option->get_name() + ":"))
        return Error("bad-usage", fmt::format("{} needs a value", option->get_name(false, true)), {},
                     fmt::format("it takes {}", option->get_type_name()), help);
  return Error("bad-usage", "the command line cannot be read", {}, e.what(), help);
}

Error no_memory() {
  return Error("no-memory", "memory ran out", {}, "the process cannot get more",
               "raise the limit (ulimit -v), or compute less at a time");
}

/// True if nothing shall be printed while the verb works.
bool is_quiet(const std::vector<const char*>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--quiet" || word == "--progress=none") return true;
    if (word == "none" && std::string_view(words[i - 1]) == "--progress") return true;
  }
  return false;
}

/// Warns if every call compiles anew, because the cache's path is no folder or other users could write code there.
void tell_unusable_cache() {
  std::string cache;
  try {
    cache = runtime::options().cache;
  } catch (const Error&) {
    return;  // A verb that needs the environment has refused it.
  }
  if (cache.empty()) return;
  if (const std::string why = runtime::why_not_ours(cache); !why.empty())
    fmt::print(stderr, "attune: the cache {} is not used: {}\n", cache, why);
  std::error_code ignored;
  if (std::filesystem::exists(cache, ignored) && !std::filesystem::is_directory(cache, ignored))
    fmt::print(stderr, "attune: the cache {} is not a folder: no kernel is cached\n", cache);
}

}  // namespace

void add_verbs(CLI::App& app) {
  app.set_version_flag("--version", fmt::format("attune {}", version()), "print the version");
  app.set_help_flag("-h,--help", "print this help");
  app.formatter(manual_formatter());
  app.require_subcommand(0, 1);
  for (AddVerb* const add : {add_run,    add_print,  add_grad,  add_explain, add_cover,      add_plot, add_ranks,
                             add_report, add_bench,  add_cache, add_compile, add_bundle,     add_cuda, add_support,
                             add_tune,   add_verify, add_diff,  add_repl,    add_completion, add_man})
    add(app);
  take_whole_numbers(app);
  app.footer(
      "attune compiles attention from expressions: write what to do to scores and which pairs to keep, and it shows, "
      "differentiates, compiles and computes them. attune help VERB describes a verb.\n"
      "Exit:\n"
      "  1  of attune diff: there are differences; of attune cache verify: there are bad entries");
}

int run_verb(int argc, const char* const* argv) {
  CLI::App app("a transparent attention compiler", "attune");
  add_verbs(app);
  const std::vector<const char*> words = with_help(argc, argv);
  const int count = static_cast<int>(words.size());
  check_verb(app, count, words.data());
  runtime::usual_option("ATTUNE_PROGRESS", is_quiet(words) ? "off" : "auto");
  try {
    app.parse(count, words.data());
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    throw usage_error(app, e);
  }
  tell_unusable_cache();
  return 0;
}

int attune_main(int argc, const char* const* argv) {
  try {
    keep_command_line(argc, argv);
    const int status = run_verb(argc, argv);
    flush_out();
    return status;
  } catch (const ClosedPipe&) {
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const Bug& e) {
    std::fprintf(stderr, "%s\n", e.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s\n", no_memory().what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", Bug(e.what()).what());
  }
  return 3;
}

}  // namespace attune::tools
