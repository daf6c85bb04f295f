// runtime/engines/dump.cpp — ATTUNE_DUMP: a folder for each kernel, with its source, the steps on the way and the
// result
#include "runtime/engines/dump.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>

#include "compiler/explain.h"
#include "ir/print.h"
#include "runtime/machine/cache/cache.h"
#include "runtime/machine/files.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;

/// The lowering steps, by the digest of the lowered Mod.
struct Remembered {
  Mutex mutex;
  std::map<ir::Digest, std::vector<DumpFile>> files;
};
Remembered& remembered() {
  static constinit Once<Remembered> made;
  return made.get();
}

std::string steps_file(const compiler::Steps& steps, const ir::Signature& names) {
  std::string out;
  for (const auto& step : steps.steps)
    out += fmt::format("{:<10} {:>9.1f} us  {:>5} nodes\n{}{}", step.name,
                       std::chrono::duration<double, std::micro>(step.took).count(), step.nodes, step.text,
                       step.text.empty() ? "" : "\n");
  for (const compiler::Rewrite& r : steps.rewrites)
    out += fmt::format("{}  ->  {}   by {}\n", ir::print(r.from, names), ir::print(r.to, names), r.rule);
  return out;
}

std::vector<DumpFile> files_of(const compiler::Mod& mod) {
  const std::lock_guard lock(remembered().mutex);
  const auto found = remembered().files.find(mod.digest());
  if (found != remembered().files.end()) return found->second;
  return {{"00-attention.mod", mod_file(mod)}};
}

/// Replaces what a file's name should not hold.
std::string file_name(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '/' || c == ':' || c == ',' || c == '=' || c == ' '; }, '-');
  return text;
}

/// Returns an empty text, or the error. Writes to a folder next to the final one, so that one rename moves it.
std::string write_folder(const fs::path& folder, const std::vector<DumpFile>& files) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (error) return fmt::format("{}: {}", folder.parent_path().string(), error.message());
  std::string unfinished = (folder.parent_path() / ".unfinished-XXXXXX").string();
  if (!mkdtemp(unfinished.data())) return fmt::format("{}: no folder can be made in it", folder.parent_path().string());
  std::string wrong;
  for (const DumpFile& file : files) {
    wrong = replace_file(fs::path(unfinished) / file.name, file.text, unfinished + "/XXXXXX", Durable::no);
    if (!wrong.empty()) break;
  }
  if (wrong.empty()) {
    fs::rename(unfinished, folder, error);
    // Another process may have been faster; it wrote the same.
    if (error && !fs::exists(folder)) wrong = error.message();
    if (!error) return {};
  }
  fs::remove_all(unfinished, error);
  return wrong.empty() ? "" : fmt::format("{}: {}", folder.string(), wrong);
}

}  // namespace

bool dumps() { return !options().dump.empty(); }

std::string mod_file(const compiler::Mod& mod) {
  std::string out;
  for (const compiler::CaptureSlot& c : mod.captures)
    out += fmt::format("capture {} {} rank {}\n", c.name, name_of(c.dtype), c.rank);
  for (const ir::Signature::Param& p : mod.params) out += fmt::format("param   {} {}\n", p.name, name_of(p.type));
  return out + mod.text();
}

void remember_steps(const compiler::Mod& written, const compiler::LoweredMod& lowered, const compiler::Steps& steps) {
  const ir::Signature names = lowered.mod.signature();
  const std::string bands = compiler::explain(lowered.cover, names);
  std::vector<DumpFile> files{{"00-attention.mod", mod_file(written)},
                              {"01-steps.txt", steps_file(steps, names)},
                              {"02-lowered.txt", compiler::explain(lowered, steps)},
                              {"03-cover.txt", bands.empty() ? "every pair is kept\n" : bands}};
  const std::lock_guard lock(remembered().mutex);
  remembered().files.insert_or_assign(lowered.digest, std::move(files));
}

fs::path dump_folder(const DumpOf& of) {
  return fs::path(options().dump) /
         fmt::format("{}-{}-{}-{}", of.mod ? of.mod->digest().hex().substr(0, 16) : "any", file_name(of.target),
                     file_name(of.kernel.substr(0, of.kernel.find(':'))), cache_key(of.all).name().substr(0, 8));
}

void dump(const DumpOf& of, const std::function<std::vector<DumpFile>()>& files) {
  try {
    const fs::path folder = dump_folder(of);
    if (fs::exists(folder)) return;
    std::vector<DumpFile> all = of.mod ? files_of(*of.mod) : std::vector<DumpFile>{};
    for (DumpFile& file : files()) all.push_back(std::move(file));
    if (const std::string wrong = write_folder(folder, all); !wrong.empty())
      note(watch::Notice::Of::dump, "a kernel is not dumped: " + wrong);
  } catch (const std::exception& e) {
    note(watch::Notice::Of::dump, fmt::format("a kernel is not dumped: {}", e.what()));
  }
}

}  // namespace attune::runtime
