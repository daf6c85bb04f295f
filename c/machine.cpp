// c/machine.cpp — the library's version and options, the machine it is on, and bundles, loaded or compiled ahead of
// time
#include <chrono>
#include <mutex>
#include <string>

#include <attune/c.h>
#include <attune/error.h>
#include <attune/offline.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "c/error.h"
#include "codegen/isa.h"
#include "runtime/attention/offline/builds.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "runtime/platform/nvidia/driver.h"

namespace attune::c {
namespace {

using Json = nlohmann::ordered_json;

/// The engines that were built: "cpu", "cuda", "oracle".
constexpr bool has_cpu = ATTUNE_HAS_CPU, has_cuda = ATTUNE_HAS_CUDA;

Json processor() {
  Json out{{"threads", runtime::options().threads}, {"isa", nullptr}, {"isas", Json::array()}};
  if (!has_cpu) return out;
  const codegen::Isa best = runtime::cpu::isa();
  out["isa"] = std::string(codegen::name_of(best));
  for (std::size_t i = 0; i <= static_cast<std::size_t>(best); ++i)
    out["isas"].push_back(std::string(codegen::isa_names[i]));
  return out;
}

Json devices() {
  Json out{{"why", runtime::cuda::find_driver().why}, {"devices", Json::array()}};
  for (int i = 0; i < runtime::cuda::device_count(); ++i) {
    const runtime::cuda::Facts& facts = runtime::cuda::facts(i);
    out["devices"].push_back({{"index", i},
                              {"name", facts.name},
                              {"arch", facts.arch()},
                              {"target", runtime::name_of(runtime::TargetName{.arch = facts.arch()})},
                              {"multiprocessors", facts.sms}});
  }
  return out;
}

Json machine() {
  Json out{{"version", fmt::format("{}.{}.{}", ATTUNE_VERSION_MAJOR, ATTUNE_VERSION_MINOR, ATTUNE_VERSION_PATCH)},
           {"engines", Json::array()},
           {"cpu", processor()},
           {"cuda", has_cuda
                        ? devices()
                        : Json{{"why", "the library was built without the CUDA engine"}, {"devices", Json::array()}}}};
  if (has_cpu) out["engines"].push_back("cpu");
  if (has_cuda) out["engines"].push_back("cuda");
  out["engines"].push_back("oracle");
  out["targets"] = Json::array();
  for (const std::string_view target : runtime::known_targets()) out["targets"].push_back(std::string(target));
  out["options"] = Json::array();
  for (const runtime::OptionRow& row : runtime::option_rows())
    out["options"].push_back({{"name", std::string(row.name)},
                              {"takes", runtime::takes(row)},
                              {"meaning", std::string(row.meaning)},
                              {"otherwise", std::string(row.otherwise)}});
  return out;
}

void set(const std::string& name, const char* value) {
  const bool in_time = runtime::set_option(name, value ? std::optional<std::string>(value) : std::nullopt);
  if (in_time) return;
  if (name == "ATTUNE_JIT") return offline::jit(!value || std::string_view(value) != "off");
  throw Error("option-late", fmt::format("{} is set too late", name), {.name = name},
              "options were read already: an attention was made, or something compiled",
              "set it before the first call of attune, or in the environment");
}

}  // namespace
}  // namespace attune::c

using namespace attune;

uint32_t attune_version(void) { return ATTUNE_VERSION; }

attune_error* attune_option(const char* name, const char* value) {
  return c::guarded([&] {
    c::require(name, "attune_option", "name");
    c::set(name, value);
  });
}

attune_error* attune_machine(char** json) {
  return c::guarded([&] {
    c::require(json, "attune_machine", "json");
    *json = c::copied(c::machine().dump(-1, ' ', false, c::Json::error_handler_t::replace));
  });
}

attune_error* attune_load(const char* bundle) {
  return c::guarded([&] {
    c::require(bundle, "attune_load", "bundle");
    offline::load(bundle);
  });
}

attune_error* attune_load_bytes(const void* bytes, size_t count) {
  return c::guarded([&] {
    if (count > 0) c::require(bytes, "attune_load_bytes", "bytes");
    offline::load_bytes({static_cast<const std::byte*>(bytes), count});
  });
}

namespace attune::c {
namespace {

using Json = nlohmann::ordered_json;

Json compile(const attune_job& job) {
  require(job.manifest, "attune_compile", "job.manifest");
  require(job.bundle, "attune_compile", "job.bundle");
  if (job.jobs < 0)
    throw Error("bad-size", "`jobs` cannot be " + std::to_string(job.jobs), {}, "it is a number of threads",
                "set it to 0 for as many as there are CPUs");
  const runtime::Manifest manifest = runtime::parse_manifest(job.manifest, job.name ? job.name : "manifest");
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::size_t done = 0;
  bool stopped = false;
  const auto step = [&](const std::string& row, std::size_t of) {
    const std::lock_guard lock(mutex);
    ++done;
    if (!job.progress || stopped) return;
    stopped = job.progress(job.user, static_cast<double>(done) / static_cast<double>(of), row.c_str()) != 0;
    if (stopped)
      throw Error("stopped", "compiling was stopped", {}, "its progress callback did not return 0",
                  "call again; nothing was written");
  };
  const runtime::Builds builds = runtime::build_all(manifest, job.jobs ? job.jobs : runtime::usable_cpus(), step);
  std::vector<runtime::BundleEntry> entries;
  std::size_t facts = 0;
  for (const runtime::Built& one : builds.all) {
    entries.push_back(one.entry);
    facts += one.only_facts;
  }
  const std::string bytes = runtime::print_bundle(std::move(entries));
  // Unlike the command line, a library must not change the process's signal handlers.
  const std::string why = runtime::replace_file(job.bundle, bytes, std::string(job.bundle) + ".XXXXXX",
                                                runtime::Durable::yes);
  if (!why.empty())
    throw Error("file-unwritable", "the bundle cannot be written", {.name = job.bundle}, why,
                "name a file in a folder that may be written");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {{"rows", builds.rows},
          {"kernels", builds.kernels()},
          {"facts", facts},
          {"seconds", seconds},
          {"bundle", {{"file", job.bundle}, {"bytes", bytes.size()}}}};
}

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_compile(const attune_job* job, char** report) {
  return c::guarded([&] {
    const auto given = c::given(job, "attune_compile", "job");
    const c::Json built = c::compile(given);
    if (report) *report = c::copied(built.dump(-1, ' ', false, c::Json::error_handler_t::replace));
  });
}
