// c/machine.cpp — the library's version and options, the machine it is on, and bundles
#include <attune/c.h>
#include <attune/error.h>
#include <attune/offline.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "c/error.h"
#include "codegen/isa.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/engines/cpu/engine.h"
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
