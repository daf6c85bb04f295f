// runtime/engines/dump.h — what was built: facts for watchers, and ATTUNE_DUMP's folder for each kernel, with its
// source, the steps on the way and the result
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/lower.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

/// True if ATTUNE_DUMP names a folder.
bool dumps();

/// Records how a Mod was lowered, for the dumps of its kernels.
void remember_steps(const compiler::Mod& written, const compiler::LoweredMod& lowered, const compiler::Steps& steps);

struct DumpFile {
  std::string name, text;
};

/// Identifies a kernel. `all` distinguishes kernels of the same name: it is the whole input of their compiler.
struct DumpOf {
  const compiler::Mod* mod = nullptr;  ///< null: a kernel without user expressions
  std::string target, kernel;
  std::string all;
};
/// <digest>-<target>-<kernel>-<8 digits of `all`>, in the folder that ATTUNE_DUMP names.
std::filesystem::path dump_folder(const DumpOf& of);

/// Writes the attention's files and `files`, all of them or none. An existing folder stays as it is. Errors are
/// reported to watchers, not thrown.
void dump(const DumpOf& of, const std::function<std::vector<DumpFile>()>& files);

/// An attention as text, a line each: captures, parameters, then expressions.
std::string mod_file(const compiler::Mod& mod);

struct KernelName {
  const compiler::Mod* mod = nullptr;  ///< null: a kernel without user expressions
  std::string kernel, target;
};

struct KernelFacts {
  std::size_t bytes = 0;
  int registers = 0, spilled = 0, shared = 0;
  std::string flaw{};
  std::vector<watch::Built::Phase> phases{};
  std::string tier{};
};

/// Records Fact::built, unless the object was already in memory. `asked`: the request to Objects.
void record_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts);

/// Writes a dump if ATTUNE_DUMP asks for one.
void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files);

}  // namespace attune::runtime
