// runtime/machine/options.h — the process's options: its environment variables ATTUNE_*, read once
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/isa.h"

namespace attune::runtime {

/// Whether GPU kernels are spliced: as measured for each, all that can be, or none.
enum class Splice : std::uint8_t { measured, on, off };

/// Where a call that waits for compilers is shown: see watch/log.h.
enum class ShowProgress : std::uint8_t { off, on_terminal, on };

struct Options {
  std::vector<std::string> bundles{};       ///< files of kernels compiled ahead of time
  std::optional<codegen::Isa> cpu{};        ///< none: the widest that this CPU supports
  std::string cache{};                      ///< a folder; empty: none
  bool cache_read_only = false;             ///< true: nothing in that folder is changed
  std::uint64_t cache_bytes = 1ull << 30;   ///< limit for compiled kernels in it; 0: they are not kept
  std::string cache_system{};               ///< a folder of compiled kernels, only read; empty: none
  bool check_range = false;                 ///< see docs/debugging.md, "Is it the right function?"
  std::string dump{};                       ///< a folder; empty: nothing is dumped
  std::string emulated{};                   ///< a GPU that is emulated; empty: this machine's GPUs are used
  bool lineinfo = false;                    ///< true: GPU kernels contain source line information
  std::size_t loaded = 1024;                ///< kernels of a kind that stay loaded
  std::uint64_t loaded_bytes = 256u << 20;  ///< and how much they may take
  unsigned log = 0;                         ///< bits of channel_names
  bool jit = true;                          ///< true if kernels may be compiled
  ShowProgress progress = ShowProgress::off;
  std::string record{};              ///< a file for what was compiled; empty: none
  std::string nvrtc{};               ///< empty: the usual places
  Splice splice = Splice::measured;  ///< see engines/cuda/kernels/spliced.h
  std::string state{};               ///< a folder for what a user's work leaves behind; empty: none
  bool terminal = false;             ///< true: the terminal, if there is one, can move its cursor
  bool tiers = true;                 ///< true: a slower kernel may answer first: see engines/cuda/tiers.h
  int threads = 1;                   ///< 1 to max_threads, including the caller's
  int verify = 0;                    ///< rows of each result to compute again
};

inline constexpr int max_threads = 1024;

/// One row per variable; parsing, the docs and the advice on typos are generated from them.
struct OptionRow {
  std::string_view name, meaning, otherwise;              ///< `otherwise`: what holds without the variable
  std::string_view takes;                                 ///< in words, if `words` is not the whole answer
  std::span<const std::string_view> words;                ///< the allowed words, if there is a list of them
  bool (*set)(Options& options, std::string_view value);  ///< false: not a valid value; is given an allowed word
  bool several = false;                                   ///< takes several words, separated by commas
};
std::span<const OptionRow> option_rows();

/// The value of a variable by its full name, if it is set.
using Lookup = std::function<std::optional<std::string>(std::string_view name)>;

/// An empty variable counts as not set. `cpus`: the default of `threads`.
Options parse_options(const Lookup& lookup, int cpus);

/// The process's options. An invalid value throws an Error at every call until it is fixed.
const Options& options();

/// Sets an option by its full name, which overrides the environment; no value removes the override. Throws an Error for
/// an unknown name or an invalid value. Returns false, and sets nothing, if the options were already read.
bool set_option(const std::string& name, const std::optional<std::string>& value);

/// The value that an option has in this program unless the environment or set_option() gives one. Before options().
void usual_option(const std::string& name, const std::string& value);

/// The values that an option takes, in words.
std::string takes(const OptionRow& row);

/// The number of CPUs that the calling thread may run on, at most the quota of its container. New threads inherit the
/// set.
int usable_cpus();

/// A variable that begins with ATTUNE_ and has no row.
struct UnknownVariable {
  std::string name;
  std::optional<std::string> meant;  ///< the row with a similar name
};
/// Among these names. Variables of tests and benches do not count: APPROVE, BENCH, FUZZ or TEST follows the prefix.
std::vector<UnknownVariable> unknown_variables(std::span<const std::string> names);
std::vector<UnknownVariable> unknown_variables();  ///< in the environment

/// The rows as a table for the docs.
std::string option_table();

}  // namespace attune::runtime
