// tools/mod/repl.cpp — attune repl: write a mod line by line, show it, compute it, and hand it to other verbs
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <attune/error.h>

#include "compiler/check.h"
#include "compiler/lower.h"
#include "ir/named.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/machine/options.h"
#include "runtime/machine/tensor.h"
#include "tools/measure/bench.h"
#include "tools/mod/line_reader.h"
#include "tools/options/picture.h"
#include "tools/options/text.h"
#include "tools/output/manual.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

/// The first word of a line, and the rest without blanks around it.
std::pair<std::string, std::string> first_word(std::string_view line) {
  line = trimmed(line);
  const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
  return {std::string(line.substr(0, end)), std::string(trimmed(line.substr(end)))};
}

/// Splits words as a shell does: at blanks, with quotes around words that contain some.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  bool within = false;
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && (c == ' ' || c == '\t')) {
      within = false;
      continue;
    }
    if (!within) out.emplace_back();
    within = true;
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    else
      out.back() += c;
  }
  if (quote != 0)
    throw Error("stray-argument", "a quote is not closed", {.text = std::string(text), .begin = 0, .end = text.size()},
                fmt::format("there is no second {}", quote), "close it");
  return out;
}

double distance(const Tensor& x, const Tensor& from) {
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double a = runtime::load(x, i), b = runtime::load(from, i);
    if (a == b || !std::isfinite(b)) continue;
    error += (a - b) * (a - b);
    size += b * b;
  }
  return size > 0 ? std::sqrt(error / size) : 0;
}

class Repl {
 public:
  Repl() : app_("", "attune") {
    add_verbs(app_);
    page_ = manual_page(app_, "attune");
  }

  /// Returns whether every line succeeded.
  bool operator()() {
    const std::string& state = runtime::options().state;
    const std::unique_ptr<LineReader> reader = line_reader(
        "attune> ", state.empty() ? std::filesystem::path() : std::filesystem::path(state) / "repl_history",
        [this](std::string_view line, std::string_view word) { return completions(line, word); });
    if (::isatty(STDIN_FILENO)) print_out("attune {}: an expression, or :help\n", version());
    while (!done_) {
      const std::optional<std::string> line = reader->next();
      if (!line) break;
      try {
        handle(*line);
      } catch (const Error& e) {
        if (e.code == "output-unwritable") throw;
        tell(e.what());
      } catch (const Bug& e) {
        tell(e.what());
      }
      flush_out();
    }
    return good_;
  }

 private:
  struct Command {
    const char* name;
    const char* takes;
    const char* about;
    void (Repl::*act)(const std::string& rest);
  };
  static std::span<const Command> commands() {
    static constexpr Command all[] = {
        {"show", "", "the mod so far", &Repl::show},
        {"drop", "WORD|NAME", "removes an expression, a let, a capture or a parameter", &Repl::drop},
        {"clear", "", "removes everything", &Repl::clear},
        {"run", "[OPTION]...", "computes a small random call on the CPU engine and the oracle", &Repl::run},
        {"load", "FILE.mod", "loads a saved mod", &Repl::load},
        {"save", "FILE.mod", "writes the mod to a file, which attune diff also reads", &Repl::save},
        {"help", "", "this", &Repl::help},
        {"quit", "", "ends, as Ctrl-D does", &Repl::quit},
    };
    return all;
  }

  void tell(const char* what) {
    good_ = false;
    flush_out();
    std::fprintf(stderr, "%s\n", what);
    std::fflush(stderr);
  }

  /// Whether a verb takes a mod.
  bool is_for_mods(const ManualPage& verb) const {
    return std::ranges::any_of(verb.options, [](const ManualOption& o) {
      return std::ranges::find(o.names, "--score") != o.names.end() && o.group == "The attention";
    });
  }

  void handle(const std::string& line) {
    const auto [word, rest] = first_word(line);
    if (word.empty() || word.starts_with('#')) return;
    if (!word.starts_with(':')) {
      const bool mask = expression(line);
      if (::isatty(STDIN_FILENO)) print_out("only shown; :{} makes it the mod's\n", mask ? "mask" : "score");
      return;
    }
    const std::string name = word.substr(1);
    for (const Command& command : commands())
      if (name == command.name) return (this->*command.act)(rest);
    const std::vector<std::string> known = mod_words();
    if (std::ranges::find(known, name) != known.end()) return change(name, rest);
    for (const ManualPage& verb : page_.verbs)
      if (name == verb.verb() && is_for_mods(verb)) return hand_over(name, words_of(rest));
    std::vector<std::string> all = command_names();
    const auto near = ir::nearest(word, all);
    throw Error("unknown-verb", fmt::format("there is no command `{}`", word),
                {.text = line, .begin = line.find(word), .end = line.find(word) + word.size()},
                fmt::format("known here: {}", fmt::join(all, " ")),
                near ? fmt::format("did you mean {}?", *near) : "see :help");
  }

  std::vector<std::string> command_names() const {
    std::vector<std::string> out;
    for (const std::string& word : mod_words()) out.push_back(":" + word);
    for (const Command& command : commands()) out.push_back(std::string(":") + command.name);
    for (const ManualPage& verb : page_.verbs)
      if (is_for_mods(verb) && verb.verb() != "run") out.push_back(":" + verb.verb());
    return out;
  }

  /// Changes the mod only if the changed mod parses.
  void change(const std::string& word, const std::string& rest) {
    TextOptions changed = mod_;
    add_to_mod(changed, word + " " + rest);
    build(changed, Captures::FilesOrTypes);
    mod_ = changed;
    if (word == "score" || word == "mask") expression(rest);
  }

  /// Shows an expression simplified; for a score, its derivative; for one that removes pairs, a picture. Returns
  /// whether it is a mask.
  bool expression(const std::string& text) {
    TextOptions one = mod_;
    one.score = one.mask = one.prob = one.sink = std::nullopt;
    one.bare = text;
    const TextAttention built = build(one, Captures::FilesOrTypes);
    const compiler::Mod mod = compiler::lower(built.attention).mod;
    const bool mask = bool(built.attention.mask);
    print_out("{:<11} {}\n", mask ? "mask" : "score", ir::print(mask ? mod.mask : mod.score, mod.signature()));
    flush_out();
    if (!mask) call("grad", mod_arguments(one));
    picture(one);
    return mask;
  }

  void picture(const TextOptions& one) {
    BenchOptions o;
    o.text = one;
    Data data;
    const Case made = std::move(bench_cases(o, data).at(0));
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const compiler::Cover& cover = lowered.cover;
    if (ir::is_literal(cover.mask)) return;
    constexpr std::int32_t cells = 32;
    std::int32_t length = 64;
    while (length < 4 * largest_literal(cover.mask) && length < 32768) length *= 2;
    runtime::Extent extent;
    extent.q_len = extent.kv_len = length;
    extent.tile_q = extent.tile_kv = length / cells;
    compiler::Problem problem;
    problem.q.length = problem.kv.length = length;
    try {
      compiler::check_reads(lowered.mod, lowered.slots.captures, problem);
    } catch (const Error&) {
      // The captures are shorter than the picture; `:cover --q-len N` draws another.
      return;
    }
    const runtime::Grid tiles = runtime::grid(runtime::Tiles(lowered).lists(extent), 0, 0, cells);
    print_out("{}{} queries down, {} keys across\n", characters(tiles).lines, length, length);
  }

  void show(const std::string&) { write_out(mod_text(mod_)); }
  void clear(const std::string&) { mod_ = {}; }
  void quit(const std::string&) { done_ = true; }
  void load(const std::string& path) {
    const TextOptions loaded = read_mod(path);
    build(loaded, Captures::FilesOrTypes);
    mod_ = loaded;
    show("");
  }
  void save(const std::string& path) {
    const std::array files{FileBytes{path, mod_text(mod_)}};
    write_files(files);
  }

  void drop(const std::string& what) {
    TextOptions changed = mod_;
    bool any = false;
    for (const auto& [word, member] : runtime::written_parts)
      if (what == word) any = std::exchange(changed.*member, std::nullopt).has_value();
    for (const auto& [word, member] : assignments)
      any |= std::erase_if(changed.*member, [&](const std::string& one) { return one.starts_with(what + "="); }) > 0;
    if (!any)
      throw Error("unknown-name", fmt::format("the mod has no `{}`", what), {}, "see :show", "name what is there");
    build(changed, Captures::FilesOrTypes);
    mod_ = changed;
  }

  void run(const std::string& rest) {
    BenchOptions o;
    o.heads = 2;
    o.seq = 64;
    o.d = 16;
    CLI::App options("", ":run");
    options.formatter(manual_formatter());
    o.add_to(options);
    if (!parse(options, words_of(rest))) return;
    o.text = mod_;
    if (!mod_.given()) o.text.score = "s";
    o.check();
    Data data;
    const Case one = std::move(bench_cases(o, data).at(0));
    const ForwardTensors tensors(o, data);
    const auto seconds = [&] {
      const auto start = std::chrono::steady_clock::now();
      one.attention.run(tensors.call());
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const double first = seconds(), then = std::min({seconds(), seconds(), seconds()});
    Attention exactly = one.attention;
    exactly.target = Target::oracle;
    const Owned out = data.zeros(DType::f32, tensors.o.tensor), lse = data.zeros(DType::f32, tensors.lse.tensor);
    Forward call = tensors.call();
    call.o = out.tensor;
    call.lse = lse.tensor;
    exactly.run(call);
    print_out("{}, B={} H={}/{} S={}x{} D={}/{}: {:.3f} ms, the first call {:.3f} ms\n", o.dtype, o.batch, o.heads,
              o.of_kv_heads(), o.seq, o.of_kv_seq(), o.d, o.of_dv(), then * 1e3, first * 1e3);
    print_out("error against the oracle: o {:.1e}, lse {:.1e}, relative to the whole result\n",
              distance(tensors.o.tensor, out.tensor), distance(tensors.lse.tensor, lse.tensor));
    std::string some;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(4, o.of_dv()); ++i)
      some += fmt::format(" {:.5g}", runtime::load(tensors.o.tensor, tensors.o.tensor.size() - o.of_dv() + i));
    print_out("the last row of o begins{}\n", some);
  }

  /// False if the words asked for help, which is then printed.
  bool parse(CLI::App& options, std::vector<std::string> words) {
    std::ranges::reverse(words);
    try {
      options.parse(words);
    } catch (const CLI::Success& e) {
      options.exit(e);
      return false;
    } catch (const CLI::ParseError& e) {
      throw Error("bad-usage", "the command line cannot be read", {}, e.what(),
                  fmt::format("see {} --help", options.get_name()));
    }
    return true;
  }

  void help(const std::string&) {
    const auto line = [](const std::string& head, const std::string& about) {
      print_out("  {:<22} {}\n", head, about);
    };
    print_out("An expression is shown simplified, with its derivative, and a picture of what it keeps.\n\n");
    line("EXPR", "a mask if it is a Bool, else a score");
    for (const auto& [word, member] : runtime::written_parts) line(fmt::format(":{} EXPR", word), "makes it the mod's");
    line(":let NAME=EXPR", "names a sub-expression");
    line(":capture NAME=f32[16]", "declares a captured tensor; NAME=FILE.npy reads one");
    line(":param NAME=NUMBER", "a scalar argument: 2 is an Int, 2.0 a Float");
    for (const Command& c : commands()) line(fmt::format(":{} {}", c.name, c.takes), c.about);
    print_out("\nWith the mod, and the options of the command line:\n\n");
    for (const ManualPage& verb : page_.verbs)
      if (is_for_mods(verb) && verb.verb() != "run") line(fmt::format(":{} [OPTION]...", verb.verb()), verb.about);
  }

  void call(const std::string& verb, const std::vector<std::string>& options) {
    std::vector<const char*> words{"attune", verb.c_str()};
    for (const std::string& one : options) words.push_back(one.c_str());
    run_verb(static_cast<int>(words.size()), words.data());
  }

  void hand_over(const std::string& verb, const std::vector<std::string>& more) {
    std::vector<std::string> all = mod_arguments(mod_);
    // The mod is side A of the comparison, to which nothing is added.
    if (verb == "diff" && !more.empty() && !more[0].starts_with("-")) all.emplace_back("");
    all.insert(all.end(), more.begin(), more.end());
    call(verb, all);
  }

  std::vector<std::string> completions(std::string_view line, std::string_view word) const {
    std::vector<std::string> words;
    const std::string command = first_word(line).first;
    if (command.empty()) words = command_names();
    for (const ManualPage& verb : page_.verbs) {
      if (command != ":" + verb.verb()) continue;
      const std::string_view before = line.substr(0, line.find_last_not_of(' ') + 1);
      for (const ManualOption& o : verb.options) {
        words.insert(words.end(), o.names.begin(), o.names.end());
        for (const std::string& name : o.names)
          if (before.ends_with(" " + name) && !o.choices.empty()) return beginning_with(word, o.choices);
      }
    }
    if (!word.starts_with(':') && !word.starts_with("--")) {
      for (std::size_t i = 0; i < ir::user_input_count; ++i) words.emplace_back(ir::input_names[i]);
      for (const ir::OpRow& row : ir::op_rows)
        if (row.bind == 0 && !row.spelling.empty()) words.push_back(std::string(row.spelling) + "(");
      for (const ir::NamedMod& mod : ir::named_mods()) words.push_back(std::string(mod.name) + "(");
      for (const auto& [word_of, member] : assignments)
        for (const std::string& one : mod_.*member) words.push_back(one.substr(0, one.find('=')));
    }
    return beginning_with(word, std::move(words));
  }

  CLI::App app_;
  ManualPage page_;
  TextOptions mod_;
  bool done_ = false, good_ = true;
};

}  // namespace

void add_repl(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("repl", "tries mods line by line, with history and completion");
  verb.footer(
      "An expression is shown simplified, with its derivative and a picture of the tiles that it keeps; the same "
      "expressions after :score, :mask, :prob and :sink make a mod, which :run compares with the oracle, and which "
      ":explain, :cover, :cuda, :bench, :verify and others take with the options they have as verbs. :help lists all. "
      "A mistake is shown, and changes nothing.\n"
      "\n"
      "On a terminal, lines are edited as in a shell: Tab completes commands, options, functions and names, and the "
      "arrows and Ctrl-R find earlier lines. Lines from a file or a pipe are read as they are, and only results are "
      "printed.\n"
      "Examples:\n"
      "  printf ':mask kv <= q\\n:run\\n' | attune repl\n"
      "Exit:\n"
      "  2  a line of a file or a pipe had a mistake: it is on stderr\n"
      "Environment:\n"
      "  XDG_STATE_HOME     where the history is: attune/repl_history\n"
      "Files:\n"
      "  ~/.editrc          settings of libedit");
  verb.callback([] {
    const bool good = Repl{}();
    if (!good && !::isatty(STDIN_FILENO)) throw CLI::RuntimeError(2);
  });
}

}  // namespace attune::tools
