// c/watch.cpp — facts as JSON, for callbacks of other languages
#include <attune/c.h>
#include <attune/watch.h>

#include <nlohmann/json.hpp>
#include <string>

#include "c/error.h"

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
  return {{"fact", "built"},
          {"mod", fact.mod},
          {"kernel", fact.kernel},
          {"target", fact.target},
          {"from", name_of(fact.from)},
          {"seconds", fact.seconds},
          {"bytes", fact.bytes},
          {"registers", fact.registers},
          {"spilled", fact.spilled},
          {"shared", fact.shared},
          {"flaw", fact.flaw},
          {"key", fact.key}};
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
  }
  return "";
}

Json json_of(const watch::Notice& fact) { return {{"fact", "notice"}, {"of", name_of(fact.of)}, {"text", fact.text}}; }

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_watch_on(void (*fact)(void* user, const char* json), void* user, attune_watch** watch) {
  return c::guarded([&] {
    c::require(reinterpret_cast<const void*>(fact), "attune_watch_on", "fact");
    c::require(watch, "attune_watch_on", "watch");
    const auto tell = [fact, user](const auto& what) {
      fact(user, c::json_of(what).dump(-1, ' ', false, c::Json::error_handler_t::replace).c_str());
    };
    auto out = std::make_unique<attune_watch>();
    out->watching = watch::on({.lowered = tell, .chosen = tell, .built = tell, .called = tell, .notice = tell});
    *watch = out.release();
  });
}

void attune_watch_off(attune_watch* watch) { delete watch; }
