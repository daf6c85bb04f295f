// runtime/watch/dump.h — ATTUNE_DUMP: for each kernel a folder with what it was made from, on the way, and became
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/lower.h"

namespace attune::runtime {

/// Whether ATTUNE_DUMP names a folder.
bool dumps();

/// How a Mod came about, for the dumps of its kernels.
void remember_steps(const compiler::Mod& written, const compiler::LoweredMod& lowered, const compiler::Steps& steps);

struct DumpFile {
  std::string name, text;
};

/// Which kernel. `all` is what tells it from others of its name: everything its compiler was given.
struct DumpOf {
  const compiler::Mod* mod = nullptr;  ///< null: the same for all expressions
  std::string target, kernel;
  std::string all;
};
/// <digest>-<target>-<kernel>-<8 digits of `all`>, in the folder that ATTUNE_DUMP names.
std::filesystem::path dump_folder(const DumpOf& of);

/// The attention's files and `files`: all of them or none. What is there already stays. Trouble is told, not thrown.
void dump(const DumpOf& of, const std::function<std::vector<DumpFile>()>& files);

/// An attention as text: captures, parameters, then expressions, a line each.
std::string mod_file(const compiler::Mod& mod);

}  // namespace attune::runtime
