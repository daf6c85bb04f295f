// runtime/options.cpp — the options of the process: the variables ATTUNE_* of its environment, read once
#include "runtime/options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <thread>

#include <attune/error.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "ir/parse.h"

namespace attune::runtime {
namespace {

constexpr std::string_view prefix = "ATTUNE_";

constexpr std::array rows{
    OptionRow{"ATTUNE_CACHE",
              "the folder for what attune remembers, and for compiled kernels",
              "attune in XDG_CACHE_HOME, or .cache/attune at home",
              "a path",
              {},
              [](Options& options, std::string_view value) {
                options.cache = value;
                return true;
              }},
    OptionRow{"ATTUNE_CACHE_SIZE",
              "how much compiled kernels may take in that folder",
              "1G",
              "a number of bytes, or of K, M or G of them; 0 keeps none",
              {},
              [](Options& options, std::string_view value) {
                constexpr std::string_view units = "KMG";
                const std::size_t unit = units.find(value.back());
                if (unit != std::string_view::npos) value.remove_suffix(1);
                const auto [end, error] = std::from_chars(value.begin(), value.end(), options.cache_bytes);
                if (error != std::errc{} || end != value.end() || options.cache_bytes > (1ull << 33)) return false;
                if (unit != std::string_view::npos) options.cache_bytes <<= 10 * (unit + 1);
                return true;
              }},
    OptionRow{"ATTUNE_CPU", "the kind of CPU that code is made for", "the widest that this CPU has", "",
              codegen::isa_names,
              [](Options& options, std::string_view value) {
                options.cpu = codegen::isa_named(value);
                return options.cpu.has_value();
              }},
    OptionRow{"ATTUNE_NVRTC",
              "the library that compiles for NVIDIA's GPUs",
              "libnvrtc.so.13 or .12, where the system finds it or in /usr/local/cuda",
              "a path",
              {},
              [](Options& options, std::string_view value) {
                options.nvrtc = value;
                return true;
              }},
    OptionRow{"ATTUNE_THREADS",
              "how many threads work on a call, the caller's among them",
              "as many as there are CPUs that the process may run on",
              "a number from 1 to 1024",
              {},
              [](Options& options, std::string_view value) {
                const auto [end, error] = std::from_chars(value.begin(), value.end(), options.threads);
                return error == std::errc{} && end == value.end() && options.threads >= 1 &&
                       options.threads <= max_threads;
              }},
};
static_assert(max_threads == 1024, "ATTUNE_THREADS says so");

std::string takes(const OptionRow& row) {
  if (row.words.empty()) return std::string(row.takes);
  return fmt::format("{} or {}", fmt::join(row.words.begin(), row.words.end() - 1, ", "), row.words.back());
}

[[noreturn]] void refuse(const OptionRow& row, const std::string& value) {
  const std::vector<std::string> words(row.words.begin(), row.words.end());
  const auto meant = ir::nearest(value, words);
  const std::string otherwise = fmt::format("unset {} for {}", row.name, row.otherwise);
  throw Error("option-value", fmt::format("{} cannot be `{}`", row.name, value),
              Place{.name = std::string(row.name), .text = value, .begin = 0, .end = value.size()},
              fmt::format("it takes {}", takes(row)),
              meant ? fmt::format("write {}, if that is meant, or {}", *meant, otherwise)
                    : fmt::format("write one of these, or {}", otherwise));
}

std::optional<std::string> environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (!value) return std::nullopt;
  return value;
}

/// As the XDG base directory specification has it: paths that are not absolute do not count.
std::string usual_folder(const Lookup& lookup, std::string_view variable, std::string_view at_home) {
  for (const auto& [name, below] : {std::pair{variable, std::string_view("/attune")}, {"HOME", at_home}}) {
    const auto folder = lookup(name);
    if (folder && folder->starts_with('/')) return *folder + std::string(below);
  }
  return {};
}

// By the first word behind ATTUNE_, so that a test's new variable needs no line here.
bool is_of_tests(std::string_view name) {
  constexpr std::array<std::string_view, 4> words{"APPROVE", "BENCH", "FUZZ", "TEST"};
  name.remove_prefix(prefix.size());
  return std::ranges::find(words, name.substr(0, name.find('_'))) != words.end();
}

}  // namespace

std::span<const OptionRow> option_rows() { return rows; }

Options parse_options(const Lookup& lookup, int cpus) {
  Options options{.cache = usual_folder(lookup, "XDG_CACHE_HOME", "/.cache/attune"),
                  .state = usual_folder(lookup, "XDG_STATE_HOME", "/.local/state/attune"),
                  .threads = std::clamp(cpus, 1, max_threads)};
  for (const OptionRow& row : rows) {
    const auto value = lookup(row.name);
    if (value && !value->empty() && !row.set(options, *value)) refuse(row, *value);
  }
  return options;
}

const Options& options() {
  static const Options made = parse_options(environment, usable_cpus());
  return made;
}

int usable_cpus() {
  // The kernel refuses a set that is smaller than its own; no machine has a million CPUs.
  for (std::size_t room = CPU_SETSIZE; room <= (1u << 20); room *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(room), [](cpu_set_t* s) { CPU_FREE(s); });
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(room), set.get()) == 0)
      return std::max(1, CPU_COUNT_S(CPU_ALLOC_SIZE(room), set.get()));
    if (errno != EINVAL) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::vector<UnknownVariable> unknown_variables(std::span<const std::string> names) {
  std::vector<std::string> known;  // behind the prefix, which would make any two names alike
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
