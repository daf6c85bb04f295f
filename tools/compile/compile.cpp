// tools/compile/compile.cpp — attune compile: kernels for other machines, into a bundle or plain files
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>
#include <vector>

#include "runtime/attention/offline/builds.h"
#include "runtime/attention/offline/request.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/options.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tools/compile/launch_header.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/output/progress.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 7> kinds_{"cu", "ptx", "cubin", "sass", "o", "ll", "h"};

/// The output of a shell command, or nothing if it fails.
std::optional<std::string> printed(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return std::nullopt;
  std::string out;
  std::array<char, 4096> some{};
  while (const std::size_t got = std::fread(some.data(), 1, some.size(), pipe)) out.append(some.data(), got);
  return pclose(pipe) == 0 ? std::optional(out) : std::nullopt;
}

/// The command that prints SASS, up to the file's name; empty if no disassembler is installed.
std::string disassembler() {
  for (const char* folder : {"", "/usr/local/cuda/bin/"})
    for (const auto& [program, options] : {std::pair{"cuobjdump", " --dump-sass "}, {"nvdisasm", " "}}) {
      const std::string whole = std::string(folder) + program;
      if (printed(fmt::format("{} --version 2>/dev/null", whole))) return whole + options;
    }
  return {};
}

std::string sass_of(const std::string& cubin) {
  std::string path = (fs::temp_directory_path() / "attune-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) throw Bug("no temporary file can be made");
  close(file);
  std::ofstream(path, std::ios::binary) << cubin;
  const auto out = printed(fmt::format("{}{} 2>/dev/null", disassembler(), runtime::shell_quoted(path)));
  std::error_code ignored;
  fs::remove(path, ignored);
  if (!out || out->empty())
    throw Error("no-disassembler", "SASS cannot be shown", {.name = "--emit sass"}, "the disassembler rejects a cubin",
                "install a CUDA toolkit at least as new as NVRTC, or leave sass out");
  return *out;
}

std::string symbol_of(const runtime::CacheEntry& entry) {
  for (const auto& [name, value] : entry.facts)
    if (name == "symbol") return value;
  return {};
}

/// A kernel as a file of one kind; nothing if this sort of kernel has no such file.
std::optional<std::string> text_of(const runtime::Built& one, const std::string& kind, const std::string& name) {
  const std::string& bytes = one.entry.entry.bytes;
  if (!one.source) {
    if (kind == "o") return bytes;
    if (kind != "ll") return std::nullopt;
    codegen::Listing listing;
    one.write(&listing);
    return listing.after;
  }
  if (kind == "cu") return one.source->text;
  if (kind == "ptx") return runtime::cuda::compile(*one.source, runtime::cuda::Ptx::yes).ptx;
  if (kind == "cubin") return bytes;
  if (kind == "sass") return sass_of(bytes);
  // A backward needs several launches and a workspace between them.
  if (kind == "h" && one.of && one.way == codegen::Way::forward)
    return launch_header({.mod = one.of->mod,
                          .choice = one.choice ? &*one.choice : nullptr,
                          .offsets64 = one.offsets64,
                          .listed = one.listed,
                          .name = name,
                          .symbol = symbol_of(one.entry.entry),
                          .target = one.target});
  return std::nullopt;
}

/// A file name such as NAME-sm_90a-3f2a91c0
std::string name_of(const runtime::Built& one) {
  std::string stem = one.source ? one.source->name : one.entry.label.substr(0, one.entry.label.rfind(' '));
  std::replace(stem.begin(), stem.end(), ' ', '-');
  return fmt::format("{}-{}-{}", stem, one.target, one.entry.key.hex().substr(0, 8));
}

/// Kinds of files: cu, ptx, cubin, sass, o, ll and h. Throws an Error if one is none of them, or needs a program that
/// is not installed.
void check_kinds(const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds) runtime::require_word("--emit", kind, kinds_);
  if (std::ranges::find(kinds, "sass") != kinds.end() && disassembler().empty())
    throw Error("no-disassembler", "SASS cannot be shown", {.name = "--emit sass"},
                "neither cuobjdump nor nvdisasm is found, in PATH or in /usr/local/cuda/bin",
                "install the CUDA toolkit, or leave sass out");
}

/// Throws an Error if no target of the manifest has files of a kind.
void check_targets(const std::vector<std::string>& kinds, const runtime::Manifest& manifest) {
  for (const std::string& kind : kinds) {
    const bool of_cpu = kind == "o" || kind == "ll";
    if (std::ranges::any_of(manifest, [&](const auto& one) { return one.target.arch.has_value() != of_cpu; })) continue;
    throw Error("emit-target", fmt::format("no target has files of the kind {}", kind), {.name = "--emit " + kind},
                of_cpu ? "kernels of GPUs have cu, ptx, cubin, sass and h" : "kernels of CPUs have o and ll",
                fmt::format("add a target that is a {}, or leave {} out",
                            of_cpu ? "CPU, such as host" : "GPU, such as sm_90a", kind));
  }
}

/// The files of these kinds, to write into `folder`.
std::vector<FileBytes> files_of(const runtime::Builds& builds, const std::vector<std::string>& kinds,
                                const fs::path& folder) {
  std::vector<FileBytes> out;
  for (const runtime::Built& one : builds.all) {
    if (one.only_facts || one.skeleton) continue;
    const std::string name = name_of(one);
    for (const std::string& kind : kinds)
      if (auto text = text_of(one, kind, name)) out.push_back({folder / (name + "." + kind), std::move(*text)});
  }
  return out;
}

struct CompileOptions {
  TextOptions text;
  std::vector<std::string> fields = std::vector<std::string>(runtime::shape_rows().size());
  std::vector<std::string> targets, passes, emit;
  std::string manifest, out, folder;
  ProgressOption progress;
  int jobs = 0;
  bool json = false, quiet = false;
};

runtime::Manifest manifest_of(const CompileOptions& o) {
  const bool said = o.text.given() || !o.targets.empty() ||
                    std::ranges::any_of(o.fields, [](const std::string& value) { return !value.empty(); });
  if (!o.manifest.empty()) {
    if (said)
      throw Error("manifest-and-options", "a manifest and options say what to compile", {.name = "--manifest"},
                  "expressions, targets and shapes come from one of them", "leave one of them out");
    return runtime::read_manifest(o.manifest);
  }
  runtime::ManifestLists lists{
      .mods = {o.text}, .shapes = {{}}, .targets = o.targets, .passes = o.passes, .at = "the options"};
  for (std::size_t i = 0; i < o.fields.size(); ++i) {
    const runtime::ShapeRow& row = runtime::shape_rows()[i];
    if (o.fields[i].empty()) continue;
    // A variant contains commas itself.
    lists.shapes[0].emplace_back(row.name, row.name == "kernel" ? std::vector{o.fields[i]} : split(o.fields[i], ','));
  }
  runtime::Manifest out;
  add_to(out, lists);
  return out;
}

void check_options(const CompileOptions& o) {
  if (o.emit.empty() != o.folder.empty())
    throw Error("emit-half", "--emit and --emit-dir go together",
                {.name = o.emit.empty() ? "--emit-dir " + o.folder : "--emit"},
                "--emit selects the files, and --emit-dir their folder", "give both of them, or neither");
  if (o.out.empty() && o.emit.empty())
    throw Error("no-output", "there is no output file", {}, "there is no -o, and no --emit", "write -o kernels.attune");
  if (o.jobs < 0)
    throw Error("bad-size", fmt::format("-j cannot be {}", o.jobs), {.name = "-j"}, "it is above 0", "leave it out");
  check_kinds(o.emit);
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error("folder-missing", "the files have no folder to go to", {.name = folder.string()}, error.message(),
                "name a folder that can be made");
}

void compile(const CompileOptions& o) {
  check_options(o);
  const runtime::Manifest manifest = manifest_of(o);
  check_targets(o.emit, manifest);
  // Regardless of the environment: this verb compiles.
  runtime::objects().jit(true);
  const auto start = std::chrono::steady_clock::now();
  const Progress::Style style = o.progress.style(o.quiet);
  runtime::Builds builds;
  {
    std::mutex mutex;
    std::optional<Progress> progress;
    builds = runtime::build_all(manifest, o.jobs ? o.jobs : runtime::usable_cpus(),
                                [&](const std::string& row, std::size_t of) {
                                  {
                                    const std::lock_guard lock(mutex);
                                    if (!progress) progress.emplace(style, "compile", of);
                                  }
                                  progress->step(row);
                                });
  }
  std::vector<FileBytes> files;
  if (!o.folder.empty()) {
    files = files_of(builds, o.emit, o.folder);
    make_folder(o.folder);
  }
  std::size_t size = 0;
  if (!o.out.empty()) {
    std::vector<runtime::BundleEntry> entries;
    for (const runtime::Built& one : builds.all) entries.push_back(one.entry);
    files.push_back({o.out, runtime::print_bundle(std::move(entries))});
    size = files.back().bytes.size();
  }
  write_files(files);
  if (o.quiet || is_stdout(o.out)) return;
  const auto facts = static_cast<std::size_t>(std::ranges::count_if(builds.all, &runtime::Built::only_facts));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.json) {
    nlohmann::ordered_json all{
        {"rows", builds.rows}, {"kernels", builds.kernels()}, {"facts", facts}, {"seconds", seconds}};
    if (!o.out.empty()) all["bundle"] = {{"file", o.out}, {"bytes", size}};
    all["files"] = nlohmann::ordered_json::array();
    for (const FileBytes& file : files)
      if (file.path != o.out) all["files"].push_back(file.path.string());
    write_json(all, 2);
  } else {
    if (!o.out.empty())
      print_out("{}  {} kernels, {:.1f} KB\n", o.out, builds.kernels(), static_cast<double>(size) / 1000);
    for (const FileBytes& file : files)
      if (file.path != o.out) print_out("{}\n", file.path.string());
  }
}

}  // namespace

void add_compile(CLI::App& app) {
  auto o = std::make_shared<CompileOptions>();
  CLI::App& verb = *app.add_subcommand("compile",
                                       "compiles kernels ahead of time, for other machines too, into one bundle");
  o->text.add_to(verb);
  verb.add_option("--manifest", o->manifest, "a JSON file with everything below: see docs/offline.md")
      ->type_name("FILE");
  add_words(verb, "--target", o->targets, "targets: sm_80, sm_90a, avx2, host, and others")
      ->type_name("NAME,...")
      ->allow_extra_args(false);
  add_words(verb, "--pass", o->passes, "forward or backward; forward if left out")
      ->type_name("NAME,...")
      ->allow_extra_args(false);
  for (std::size_t i = 0; i < o->fields.size(); ++i) {
    const runtime::ShapeRow& row = runtime::shape_rows()[i];
    verb.add_option(runtime::option_of(row), o->fields[i], std::string(row.meaning))->type_name(std::string(row.takes));
  }
  verb.add_option("-o", o->out, "the bundle; - for stdout, and nothing else is printed")->type_name("FILE.attune");
  add_words(verb, "--emit", o->emit, "plain files too: cu, ptx, cubin, sass, o, ll, h")
      ->type_name("KIND,...")
      ->allow_extra_args(false);
  verb.add_option("--emit-dir", o->folder, "where they go")->type_name("FOLDER");
  verb.add_option("-j", o->jobs, "this many at a time; the number of CPUs if left out")->type_name("N");
  o->progress.add_to(verb);
  verb.add_flag("--json", o->json, "print what was built as JSON");
  verb.add_flag("--quiet", o->quiet, "print nothing");
  verb.footer(
      "Fields of a shape take several values separated by commas, and each is built.\n"
      "Examples:\n  attune compile 'kv <= q' --target sm_90a --q-len 1 --group 4 --page-size 16 -o "
      "decode.attune\n  attune compile --score 's + slope[h] * f32(kv - q)' --mask 'kv <= q' --capture 'slope=f32[16]' "
      "\\\n"
      "    --target host,avx2 -o alibi.attune");
  verb.callback([o] { compile(*o); });
}

}  // namespace attune::tools
