// c/compile.cpp — kernels compiled ahead of time, as attune compile does it
#include <attune/c.h>
#include <attune/error.h>

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "c/error.h"
#include "runtime/attention/offline/builds.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"

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
