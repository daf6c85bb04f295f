// c/watch.cpp — facts as JSON, for callbacks of other languages
#include <attune/c.h>
#include <attune/watch.h>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <attune/error.h>

#include "c/error.h"
#include "ir/parse.h"

struct attune_watch {
  attune::watch::Watching watching;
};

namespace attune::c {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const watch::Lowered& fact) {
  Json steps = Json::array();
  for (const auto& step : fact.steps)
    steps.push_back({{"name", step.name}, {"seconds", step.seconds}, {"nodes", step.nodes}});
  return {{"fact", "lowered"}, {"mod", fact.mod}, {"steps", steps}, {"seconds", fact.seconds}};
}

Json json_of(const watch::Chosen& fact) {
  Json rejected = Json::array();
  for (const auto& one : fact.rejected) rejected.push_back({{"kernel", one.kernel}, {"why", one.why}});
  return {{"fact", "chosen"},      {"mod", fact.mod},     {"target", fact.target},
          {"kernel", fact.kernel}, {"notes", fact.notes}, {"rejected", rejected}};
}

const char* name_of(watch::Built::From from) {
  switch (from) {
    case watch::Built::From::compiler: return "compiler";
    case watch::Built::From::disk: return "disk";
    case watch::Built::From::bundle: return "bundle";
  }
  return "";
}

Json json_of(const watch::Built& fact) {
  Json phases = Json::array();
  for (const auto& one : fact.phases) phases.push_back({{"name", one.name}, {"seconds", one.seconds}});
  return {{"fact", "built"},
          {"mod", fact.mod},
          {"kernel", fact.kernel},
          {"target", fact.target},
          {"from", name_of(fact.from)},
          {"seconds", fact.seconds},
          {"phases", phases},
          {"bytes", fact.bytes},
          {"registers", fact.registers},
          {"spilled", fact.spilled},
          {"shared", fact.shared},
          {"flaw", fact.flaw},
          {"key", fact.key},
          {"tier", fact.tier}};
}

Json json_of(const watch::Called& fact) {
  Json out{{"fact", "called"},        {"call", fact.call},       {"mod", fact.mod},
           {"target", fact.target},   {"kernel", fact.kernel},   {"dtype", fact.dtype},
           {"batch", fact.batch},     {"q_heads", fact.q_heads}, {"kv_heads", fact.kv_heads},
           {"q_len", fact.q_len},     {"kv_len", fact.kv_len},   {"d", fact.d},
           {"dv", fact.dv},           {"packed", fact.packed},   {"workspace", fact.workspace},
           {"seconds", fact.seconds}, {"file", nullptr},         {"line", fact.line}};
  if (fact.file) out["file"] = fact.file;
  return out;
}

const char* name_of(watch::Notice::Of of) {
  switch (of) {
    case watch::Notice::Of::cache: return "cache";
    case watch::Notice::Of::dump: return "dump";
    case watch::Notice::Of::verify: return "verify";
    case watch::Notice::Of::watch: return "watch";
    case watch::Notice::Of::check: return "check";
  }
  return "";
}

Json json_of(const watch::Compiling& fact) {
  Json kernels = Json::array();
  for (const auto& one : fact.kernels) kernels.push_back({{"kernel", one.kernel}, {"seconds", one.seconds}});
  return {{"fact", "compiling"},     {"kernels", kernels}, {"done", fact.done},
          {"seconds", fact.seconds}, {"over", fact.over},  {"text", fact.text}};
}

Json json_of(const watch::Notice& fact) { return {{"fact", "notice"}, {"of", name_of(fact.of)}, {"text", fact.text}}; }

/// What `tell` listens to, of the facts in a list of names.
template <class Tell>
watch::Callbacks listening(std::string_view facts, const Tell& tell) {
  watch::Callbacks out;
  constexpr std::array<std::string_view, 6> names{"lowered", "chosen", "built", "called", "notice", "compiling"};
  for (std::size_t at = 0; at <= facts.size();) {
    const std::size_t end = std::min(facts.find(',', at), facts.size());
    const std::string name(facts.substr(at, end - at));
    switch (std::ranges::find(names, name) - names.begin()) {
      case 0: out.lowered = tell; break;
      case 1: out.chosen = tell; break;
      case 2: out.built = tell; break;
      case 3: out.called = tell; break;
      case 4: out.notice = tell; break;
      case 5: out.compiling = tell; break;
      default: {
        const std::vector<std::string> known(names.begin(), names.end());
        const auto near = ir::nearest(name, known);
        throw Error("unknown-fact", fmt::format("there is no fact `{}`", name), {.name = "facts"},
                    fmt::format("there are {}", fmt::join(names, ", ")),
                    near ? fmt::format("did you mean {}?", *near) : "write some of these, separated by commas");
      }
    }
    at = end + 1;
  }
  return out;
}

attune_error* listen(const char* function, const char* facts, void (*fact)(void* user, const char* json), void* user,
                     attune_watch** watch) {
  return guarded([&] {
    require(facts, function, "facts");
    require(reinterpret_cast<const void*>(fact), function, "fact");
    require(watch, function, "watch");
    const auto tell = [fact, user](const auto& what) {
      fact(user, json_of(what).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    };
    auto out = std::make_unique<attune_watch>();
    out->watching = watch::on(listening(facts, tell));
    *watch = out.release();
  });
}

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_watch_on(void (*fact)(void* user, const char* json), void* user, attune_watch** watch) {
  return c::listen("attune_watch_on", "lowered,chosen,built,called,notice", fact, user, watch);
}
attune_error* attune_watch_facts(const char* facts, void (*fact)(void* user, const char* json), void* user,
                                 attune_watch** watch) {
  return c::listen("attune_watch_facts", facts, fact, user, watch);
}
void attune_watch_off(attune_watch* watch) { delete watch; }
