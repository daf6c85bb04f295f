// runtime/options.h — the options of the process: the variables ATTUNE_* of its environment, read once
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

struct Options {
  std::vector<std::string> bundles{};      ///< files of kernels that were compiled beforehand
  std::optional<codegen::Isa> cpu{};       ///< none: the widest that this CPU has
  std::string cache{};                     ///< a folder; empty: there is none
  bool cache_read_only = false;            ///< nothing of that folder is changed
  std::uint64_t cache_bytes = 1ull << 30;  ///< what compiled kernels may take there; 0: they are not kept
  std::string cache_system{};              ///< a folder of compiled kernels that is only read; empty: there is none
  std::string dump{};                      ///< a folder; empty: nothing is dumped
  bool lineinfo = false;                   ///< GPU kernels know which lines they were written in
  unsigned log = 0;                        ///< bits of channel_names
  bool jit = true;                         ///< may kernels be compiled?
  std::string record{};                    ///< a file for what was compiled; empty: there is none
  std::string nvrtc{};                     ///< empty: where it usually is
  std::string state{};                     ///< a folder for what a user's work leaves behind; empty: there is none
  int threads = 1;                         ///< 1 to max_threads, the caller's among them
  int verify = 0;                          ///< rows of each result that are computed again
};

inline constexpr int max_threads = 1024;

/// One row for each variable: parsing, the docs and the advice on typos are made from them.
struct OptionRow {
  std::string_view name, meaning, otherwise;              ///< `otherwise`: what holds without the variable
  std::string_view takes;                                 ///< in words, where `words` are not all of it
  std::span<const std::string_view> words;                ///< what may be written, where that is a list
  bool (*set)(Options& options, std::string_view value);  ///< false: the value is none of these
  bool several = false;                                   ///< of the words, with commas between them
};
std::span<const OptionRow> option_rows();

/// The value of a variable by its full name, if it is set.
using Lookup = std::function<std::optional<std::string>(std::string_view name)>;

/// A variable that is empty counts as not set. `cpus`: what `threads` is without its variable.
Options parse_options(const Lookup& lookup, int cpus);

/// The process's. A value that cannot be is an Error at every call, until it is mended.
const Options& options();

/// How many CPUs the calling thread may run on. New threads inherit them.
int usable_cpus();

/// A variable that begins with ATTUNE_ and that no row has.
struct UnknownVariable {
  std::string name;
  std::optional<std::string> meant;  ///< the row that resembles it
};
/// Among these names. Not what tests and benches read: their names go on with APPROVE, BENCH, FUZZ or TEST.
std::vector<UnknownVariable> unknown_variables(std::span<const std::string> names);
std::vector<UnknownVariable> unknown_variables();  ///< in the environment

/// The rows as a table for the docs.
std::string option_table();

}  // namespace attune::runtime
