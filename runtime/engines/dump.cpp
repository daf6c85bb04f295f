// runtime/engines/dump.cpp — what was built: facts for watchers, and ATTUNE_DUMP's folder for each kernel, with its
// source, the steps on the way and the result
#include "runtime/engines/dump.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <system_error>

#include <sys/stat.h>

#include <fmt/format.h>

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

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_in_name(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// The expressions of a mod, with # for each number.
std::string without_numbers(const compiler::Mod& mod) {
  std::string out;
  for (const auto& [name, text] : mod.facts()) {
    out += name + ' ';
    for (std::size_t i = 0; i < text.size();) {
      if (!is_digit(text[i]) || (i > 0 && is_in_name(text[i - 1]))) {
        out += text[i++];
        continue;
      }
      out += '#';
      while (i < text.size() && (is_in_name(text[i]) || text[i] == '.' || (text[i] == '-' && text[i - 1] == 'e'))) ++i;
    }
    out += '\n';
  }
  return out;
}

/// Warns about a score with a new constant at each step of a loop, which compiles a new kernel at each step.
void record_alike(const KernelName& name) {
  static Mutex mutex;
  std::unique_lock lock(mutex);
  static std::map<std::string, std::size_t> kernels;
  constexpr std::size_t most_kinds = 1024, many = 64;  // each doubling of many is recorded again
  if (kernels.size() >= most_kinds) kernels.clear();
  const std::size_t count = ++kernels[fmt::format("{} {}\n{}", name.kernel, name.target, without_numbers(*name.mod))];
  lock.unlock();
  if (count >= many && std::has_single_bit(count))
    note(watch::Notice::Of::cache,
         fmt::format(
             "{} kernels {} of {} differ only in numbers, and each was compiled or read: make a number that changes "
             "a Param, and one kernel is enough",
             count, name.kernel, name.target));
}

}  // namespace

void record_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts) {
  if (name.mod && origin != Origin::memory && wants(Fact::notice)) record_alike(name);
  if (origin == Origin::memory || !wants(Fact::built)) return;
  using From = watch::Built::From;
  const auto on_disk = origin == Origin::bundle ? std::nullopt : asked.on_disk();
  record(watch::Built{.mod = name.mod ? name.mod->digest().hex() : "",
                      .kernel = name.kernel,
                      .target = name.target,
                      .from = origin == Origin::bundle ? From::bundle
                              : origin == Origin::disk ? From::disk
                                                       : From::compiler,
                      .seconds = seconds,
                      .phases = facts.phases,
                      .bytes = facts.bytes,
                      .registers = facts.registers,
                      .spilled = facts.spilled,
                      .shared = facts.shared,
                      .flaw = facts.flaw,
                      .key = on_disk.value_or(cache_key(asked.content)).name(),
                      .tier = facts.tier});
}

void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files) {
  if (dumps()) dump({.mod = name.mod, .target = name.target, .kernel = name.kernel, .all = key}, files);
}

}  // namespace attune::runtime
