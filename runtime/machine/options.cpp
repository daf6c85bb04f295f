// runtime/machine/options.cpp — the process's options: its environment variables ATTUNE_*, read once
#include "runtime/machine/options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <attune/error.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "ir/parse.h"
#include "runtime/machine/limits.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/watch/log.h"

namespace attune::runtime {
namespace {

constexpr std::string_view prefix = "ATTUNE_";

/// channel_names, and the word for all of them.
constexpr auto log_words = [] {
  std::array<std::string_view, channel_names.size() + 1> words{};
  std::ranges::copy(channel_names, words.begin());
  words.back() = "all";
  return words;
}();

/// The words of a comma-separated list, with their positions.
std::vector<std::pair<std::size_t, std::string_view>> list_of(std::string_view value) {
  std::vector<std::pair<std::size_t, std::string_view>> out;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t end = std::min(value.find(',', at), value.size());
    out.emplace_back(at, value.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool set_log(Options& options, std::string_view value) {
  for (const auto& [at, word] : list_of(value)) {
    const auto found = std::ranges::find(log_words, word);
    if (found == log_words.end()) return false;
    options.log |= word == "all" ? all_channels : 1u << (found - log_words.begin());
  }
  return true;
}

/// A number of bytes, or of K, M or G of them.
bool read_bytes(std::string_view value, std::uint64_t& into) {
  constexpr std::string_view units = "KMG";
  const std::size_t unit = units.find(value.back());
  if (unit != std::string_view::npos) value.remove_suffix(1);
  const auto [end, error] = std::from_chars(value.begin(), value.end(), into);
  const std::size_t shift = unit == std::string_view::npos ? 0 : 10 * (unit + 1);
  if (error != std::errc{} || end != value.end() || into > ~0ull >> shift) return false;
  into <<= shift;
  return true;
}

template <std::string Options::*at>
bool set_text(Options& options, std::string_view value) {
  options.*at = value;
  return true;
}

template <std::uint64_t Options::*at>
bool set_bytes(Options& options, std::string_view value) {
  return read_bytes(value, options.*at);
}

template <auto at, auto least, auto most>
bool set_number(Options& options, std::string_view value) {
  auto& into = options.*at;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), into);
  return error == std::errc{} && end == value.end() &&
         std::clamp<std::decay_t<decltype(into)>>(into, least, most) == into;
}

constexpr std::array<std::string_view, 2> switch_words{"0", "1"}, cache_modes{"rw", "ro"}, jit_words{"on", "off"},
    check_words{"range", "off"}, tier_words{"on", "off"};
constexpr std::array<std::string_view, 3> progress_words{"auto", "on", "off"}, splice_words{"auto", "on", "off"};

/// True for the `yes`th word.
template <bool Options::*at, const std::array<std::string_view, 2>& words, std::size_t yes>
bool set_if(Options& options, std::string_view value) {
  options.*at = value == words[yes];
  return true;
}

constexpr std::array rows{
    OptionRow{"ATTUNE_BUNDLE",
              "bundles: files of kernels compiled ahead of time",
              "none",
              "paths separated by :",
              {},
              [](Options& options, std::string_view value) {
                for (std::size_t begin = 0; begin < value.size();) {
                  const std::size_t end = std::min(value.find(':', begin), value.size());
                  if (end > begin) options.bundles.emplace_back(value.substr(begin, end - begin));
                  begin = end + 1;
                }
                return true;
              }},
    OptionRow{"ATTUNE_CACHE",
              "the folder for compiled kernels and tuning results; off: write no files",
              "attune in XDG_CACHE_HOME, or .cache/attune at home",
              "a path, or off",
              {},
              [](Options& options, std::string_view value) {
                options.cache = value;
                return value != "OFF" && value != "Off";  // nobody means a folder of this name
              }},
    OptionRow{"ATTUNE_CACHE_MODE", "rw: read and write that folder; ro: only read it", "rw", "", cache_modes,
              set_if<&Options::cache_read_only, cache_modes, 1>},
    OptionRow{"ATTUNE_CACHE_SIZE",
              "the most that compiled kernels may take in that folder",
              "1G",
              "a number of bytes, or with K, M or G; 0 keeps none",
              {},
              set_bytes<&Options::cache_bytes>},
    OptionRow{"ATTUNE_CACHE_SYSTEM",
              "a second folder of compiled kernels, searched after the user's; only read",
              "none",
              "a path",
              {},
              set_text<&Options::cache_system>},
    OptionRow{"ATTUNE_CHECK", "range: refuse reads outside of tensors, on a device missing pages and slots",
              "clamped reads", "", check_words, set_if<&Options::check_range, check_words, 0>},
    OptionRow{"ATTUNE_CPU", "the instruction set that CPU kernels use", "the widest that this CPU supports", "",
              codegen::isa_names,
              [](Options& options, std::string_view value) {
                options.cpu = codegen::isa_named(value);
                return options.cpu.has_value();
              }},
    OptionRow{"ATTUNE_DUMP",
              "a folder for each kernel's source, IR and machine code: see docs/debugging.md",
              "no dump",
              "a path",
              {},
              set_text<&Options::dump>},
    OptionRow{"ATTUNE_EMULATED",
              "emulate a GPU instead of using this machine's, slowly: see docs/debugging.md",
              "this machine's GPUs",
              "sm_80 or sm_90a, followed by optional :seed=N and :sms=N",
              {},
              [](Options& options, std::string_view value) {
                options.emulated = value;
                const std::string_view arch = value.substr(0, value.find(':'));
                return arch == "sm_80" || arch == "sm_90a";
              }},
    OptionRow{"ATTUNE_JIT", "off: compile no kernels, use only cached and bundled ones", "on", "", jit_words,
              set_if<&Options::jit, jit_words, 0>},
    OptionRow{"ATTUNE_LINEINFO", "1: GPU profilers show the source lines of expressions", "0", "", switch_words,
              set_if<&Options::lineinfo, switch_words, 1>},
    OptionRow{"ATTUNE_LOADED",
              "how many unused kernels of a kind (forward, backward, GPU) stay loaded",
              "1024",
              "a number",
              {},
              set_number<&Options::loaded, 0u, std::numeric_limits<std::size_t>::max()>},
    OptionRow{"ATTUNE_LOADED_SIZE",
              "how much memory unused kernels of a kind may take",
              "256M",
              "a number of bytes, or with K, M or G",
              {},
              set_bytes<&Options::loaded_bytes>},
    OptionRow{"ATTUNE_LOG", "what to log to stderr, separated by commas: see docs/debugging.md", "silence", "",
              log_words, set_log, true},
    OptionRow{"ATTUNE_NVRTC",
              "the NVRTC library, which compiles GPU kernels",
              "libnvrtc.so.13 or .12, from the loader's path or /usr/local/cuda",
              "a path",
              {},
              set_text<&Options::nvrtc>},
    OptionRow{"ATTUNE_PROGRESS", "show on stderr that a call waits for compilers; auto: on a terminal",
              "auto in Python and for the command line, off in other programs", "", progress_words,
              [](Options& options, std::string_view value) {
                options.progress = value == "auto" ? ShowProgress::on_terminal
                                   : value == "on" ? ShowProgress::on
                                                   : ShowProgress::off;
                return true;
              }},
    OptionRow{"ATTUNE_RECORD",
              "append a line to this file for each kernel that is needed: see docs/offline.md",
              "no file",
              "a path",
              {},
              set_text<&Options::record>},
    OptionRow{"ATTUNE_SPLICE", "put mods into GPU kernels that were compiled once; see docs/first-call.md", "auto", "",
              splice_words,
              [](Options& options, std::string_view value) {
                options.splice = value == "auto" ? Splice::measured : value == "on" ? Splice::on : Splice::off;
                return true;
              }},
    OptionRow{"ATTUNE_THREADS",
              "how many threads work on a call, including the caller's",
              "the number of CPUs that the process may run on",
              "a number from 1 to 1024",
              {},
              set_number<&Options::threads, 1, max_threads>},
    OptionRow{"ATTUNE_TIERS", "on: a GPU kernel that is ready sooner may answer until a faster one takes over", "on",
              "", tier_words, set_if<&Options::tiers, tier_words, 0>},
    OptionRow{"ATTUNE_VERIFY",
              "how many rows of each result to check against the oracle",
              "none",
              "a number from 0 to 1000000",
              {},
              set_number<&Options::verify, 0, 1000000>},
};
static_assert(max_threads == 1024, "ATTUNE_THREADS says so");

/// False: not a valid value.
bool set(const OptionRow& row, Options& options, std::string_view value) {
  const bool known = row.words.empty() || row.several || std::ranges::find(row.words, value) != row.words.end();
  return known && row.set(options, value);
}

[[noreturn]] void refuse(const OptionRow& row, const std::string& value) {
  const std::vector<std::string> words(row.words.begin(), row.words.end());
  // In a list, the first unknown word.
  std::pair<std::size_t, std::string_view> wrong{0, value};
  for (const auto& one : row.several ? list_of(value) : decltype(list_of(value)){})
    if (std::ranges::find(row.words, one.second) == row.words.end()) {
      wrong = one;
      break;
    }
  const std::string word(wrong.second);
  const auto meant = ir::nearest(word, words);
  const std::string otherwise = fmt::format("unset {} for {}", row.name, row.otherwise);
  throw Error(
      "option-value", fmt::format("{} cannot be `{}`", row.name, word),
      Place{.name = std::string(row.name), .text = value, .begin = wrong.first, .end = wrong.first + word.size()},
      fmt::format("it takes {}", takes(row)),
      meant ? fmt::format("write {} if you meant that, or {}", *meant, otherwise)
            : fmt::format("write one of these, or {}", otherwise));
}

std::optional<std::string> environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (!value) return std::nullopt;
  return value;
}

/// As in the XDG base directory specification: relative paths do not count.
std::string usual_folder(const Lookup& lookup, std::string_view variable, std::string_view at_home) {
  for (const auto& [name, below] : {std::pair{variable, std::string_view("/attune")}, {"HOME", at_home}}) {
    const auto folder = lookup(name);
    if (folder && folder->starts_with('/')) return *folder + std::string(below);
  }
  return {};
}

// Decides by the first word after ATTUNE_, so that a new variable of a test needs no line here.
bool is_of_tests(std::string_view name) {
  constexpr std::array<std::string_view, 4> words{"APPROVE", "BENCH", "FUZZ", "TEST"};
  name.remove_prefix(prefix.size());
  return std::ranges::find(words, name.substr(0, name.find('_'))) != words.end();
}

/// Options that were set by calls, and those of the program.
struct Given {
  Mutex mutex;
  std::map<std::string, std::string, std::less<>> values, usual;
  bool read = false;  ///< options() has its answer
};
Given& given() {
  static constinit Once<Given> only;
  return only.get();
}

}  // namespace

std::string takes(const OptionRow& row) {
  if (row.words.empty()) return std::string(row.takes);
  return fmt::format("{} or {}{}", fmt::join(row.words.begin(), row.words.end() - 1, ", "), row.words.back(),
                     row.several ? ", several separated by commas" : "");
}

bool set_option(const std::string& name, const std::optional<std::string>& value) {
  const auto row = std::ranges::find(rows, name, &OptionRow::name);
  if (row == rows.end()) {
    std::vector<std::string> known;
    for (const OptionRow& one : rows) known.emplace_back(one.name);
    const auto near = ir::nearest(name, known);
    throw Error("unknown-option", fmt::format("there is no option `{}`", name), {.name = name},
                fmt::format("there are {}", fmt::join(known, ", ")),
                near ? fmt::format("did you mean {}?", *near) : "leave it out");
  }
  Options scratch;
  if (value && !value->empty() && !set(*row, scratch, *value)) refuse(*row, *value);
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  if (all.read) return false;
  value ? static_cast<void>(all.values.insert_or_assign(name, *value)) : static_cast<void>(all.values.erase(name));
  return true;
}

void usual_option(const std::string& name, const std::string& value) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  all.usual.insert_or_assign(name, value);
}

std::span<const OptionRow> option_rows() { return rows; }

Options parse_options(const Lookup& lookup, int cpus) {
  Options options{.cache = usual_folder(lookup, "XDG_CACHE_HOME", "/.cache/attune"),
                  .state = usual_folder(lookup, "XDG_STATE_HOME", "/.local/state/attune"),
                  .threads = std::clamp(cpus, 1, max_threads)};
  for (const OptionRow& row : rows) {
    const auto value = lookup(row.name);
    if (value && !value->empty() && !set(row, options, *value)) refuse(row, *value);
  }
  if (options.cache == "off") options.cache = options.cache_system = "";
  const auto terminal = lookup("TERM");
  options.terminal = terminal && !terminal->empty() && *terminal != "dumb";
  return options;
}

const Options& options() {
  static constinit Once<const Options> made;
  return made.get([] {
    Given& all = given();
    const std::lock_guard lock(all.mutex);
    const auto lookup = [&](std::string_view name) {
      const auto found = all.values.find(name), usual = all.usual.find(name);
      if (found != all.values.end()) return std::optional(found->second);
      std::optional<std::string> set = environment(name);
      if ((!set || set->empty()) && usual != all.usual.end()) set = usual->second;
      return set;
    };
    Options out = parse_options(lookup, usable_cpus());
    all.read = true;
    return out;
  });
}

namespace {

int allowed_cpus() {
  // The kernel refuses a set that is smaller than its own; no machine has a million CPUs.
  for (std::size_t room = CPU_SETSIZE; room <= (1u << 20); room *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(room), [](cpu_set_t* s) { CPU_FREE(s); });
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(room), set.get()) == 0)
      return std::max(1, CPU_COUNT_S(CPU_ALLOC_SIZE(room), set.get()));
    if (errno != EINVAL) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int usable_cpus() {
  const int allowed = allowed_cpus();
  const std::optional<double> quota = cpu_quota();
  return quota && *quota < allowed ? std::max(1, static_cast<int>(std::ceil(*quota))) : allowed;
}

std::vector<UnknownVariable> unknown_variables(std::span<const std::string> names) {
  std::vector<std::string> known;  // without the prefix, which would make any two names alike
  for (const OptionRow& row : rows) known.emplace_back(row.name.substr(prefix.size()));
  std::vector<UnknownVariable> out;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix) || is_of_tests(name) || std::ranges::find(rows, name, &OptionRow::name) != rows.end())
      continue;
    auto meant = ir::nearest(std::string_view(name).substr(prefix.size()), known);
    if (meant) meant->insert(0, prefix);
    out.push_back({name, std::move(meant)});
  }
  return out;
}

std::vector<UnknownVariable> unknown_variables() {
  std::vector<std::string> names;
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string_view text = *variable;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  std::ranges::sort(names);
  return unknown_variables(names);
}

std::string option_table() {
  std::string out = "| variable | takes | meaning | without it |\n|---|---|---|---|\n";
  for (const OptionRow& row : rows)
    out += fmt::format("| `{}` | {} | {} | {} |\n", row.name, takes(row), row.meaning, row.otherwise);
  return out;
}

}  // namespace attune::runtime
