// c/describe.cpp — describes the compiler's result for an attention, as JSON
#include <nlohmann/json.hpp>

#include "c/attention.h"
#include "c/error.h"
#include "compiler/explain.h"
#include "ir/print.h"

namespace attune::c {
namespace {

using Json = nlohmann::ordered_json;

class Describe {
 public:
  explicit Describe(const attune_attention& a)
      : a_(a), steps_(a.story().steps), lowered_(a.story().lowered), mod_(lowered_.mod), names_(mod_.signature()) {}

  Json operator()() const {
    Json out{{"digest", lowered_.digest.hex()}, {"written", Json::object()}};
    for (const auto& [name, text] : a_.written) out["written"][name] = text;
    for (const auto& [name, root] :
         {std::pair{"score", mod_.score}, {"mask", mod_.mask}, {"prob", mod_.prob}, {"sink", mod_.sink}})
      if (root) out[name] = text(root);
    out["captures"] = captures();
    out["params"] = params();
    out["derivative"] = {{"score", text(mod_.dscore.by)}, {"prob", text(mod_.dprob.by)}};
    out["scatters"] = scatters();
    out["affine"] = mod_.fold.affine;
    out["bounded"] = mod_.fold.bounded();
    out["core"] = text(mod_.fold.core);
    out["row"] = text(mod_.fold.row);
    for (const auto& [name, level] : {std::pair{"head", &mod_.levels.head},
                                      {"row", &mod_.levels.row},
                                      {"col", &mod_.levels.col},
                                      {"left", &mod_.levels.element}})
      out["levels"][name] = texts(*level);
    out["rewrites"] = Json::array();
    for (const compiler::Rewrite& r : steps_.rewrites)
      out["rewrites"].push_back({{"rule", std::string(r.rule)}, {"from", text(r.from)}, {"to", text(r.to)}});
    out["steps"] = Json::array();
    for (const compiler::Steps::Step& step : steps_.steps)
      out["steps"].push_back({{"name", step.name}, {"nodes", step.nodes}, {"nanoseconds", step.took.count()}});
    out["sections"] = Json::array();
    for (const compiler::Section& s : compiler::sections(lowered_, steps_))
      out["sections"].push_back({{"title", s.title}, {"lines", s.lines}});
    out["text"] = compiler::explain(lowered_, steps_);
    out["mod"] = mod_of_manifest();
    return out;
  }

 private:
  std::string text(const ir::Expr& e) const { return ir::print(e, names_); }
  Json texts(const std::vector<ir::Expr>& all) const {
    Json out = Json::array();
    for (const ir::Expr& e : all) out.push_back(text(e));
    return out;
  }

  Json captures() const {
    Json out = Json::array();
    for (std::size_t i = 0; i < a_.captures.size(); ++i) {
      const Name& one = a_.captures[i];
      out.push_back({{"name", one.name},
                     {"kind", std::string(1, one.kind)},
                     {"rank", one.rank},
                     {"slot", i},
                     {"used", one.slot.has_value()},
                     {"gradient", one.kind == 'f' && has_gradient(one)}});
    }
    return out;
  }
  /// True if an expression adds to its gradient. Reads within a mask do not.
  bool has_gradient(const Name& one) const {
    for (const compiler::Derivative* d : {&mod_.dscore, &mod_.dprob, &mod_.dsink})
      for (const compiler::Scatter& s : d->captures)
        if (one.slot == s.capture) return true;
    return false;
  }
  Json params() const {
    Json out = Json::array();
    for (std::size_t i = 0; i < a_.params.size(); ++i)
      out.push_back({{"name", a_.params[i].name},
                     {"kind", std::string(1, a_.params[i].kind)},
                     {"slot", i},
                     {"used", a_.params[i].slot.has_value()}});
    return out;
  }

  Json scatters() const {
    Json out = Json::array();
    for (const auto& [of, d] : {std::pair{"score", &mod_.dscore}, {"prob", &mod_.dprob}, {"sink", &mod_.dsink}})
      for (const compiler::Scatter& s : d->captures) {
        Json loops = Json::array();
        for (const auto& loop : s.loops) loops.push_back(loop.count);
        out.push_back({{"of", of},
                       {"capture", mod_.captures[s.capture].name},
                       {"term", compiler::print(s, mod_)},
                       {"loops", loops}});
      }
    return out;
  }

  Json mod_of_manifest() const {
    Json out = Json::object();
    for (const auto& [name, text] : a_.written) out[name] = text;
    for (const auto& [name, text] : a_.lets) out["lets"][name] = text;
    for (const Name& one : a_.captures) {
      std::string type = one.kind == 'f' ? "f32[" : one.kind == 'i' ? "i32[" : "bool[";
      for (int i = 0; i < one.rank; ++i) type += i ? ", 1" : "1";
      out["captures"][one.name] = type + "]";
    }
    for (const Name& one : a_.params) out["params"][one.name] = one.kind == 'f' ? Json(0.0) : Json(0);
    return out;
  }

  const attune_attention& a_;
  const compiler::Steps& steps_;
  const compiler::LoweredMod& lowered_;
  const compiler::Mod& mod_;
  ir::Signature names_;
};

/// The JSON that attune_describe documents.
std::string describe(const attune_attention& attention) {
  // Names and texts come from the caller: bytes that are not UTF-8 become U+FFFD.
  return Describe(attention)().dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_explain(const attune_attention* attention, char** text) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_explain");
    c::require(text, "attune_explain", "text");
    const attune_attention::Story& story = held->story();
    *text = c::copied(compiler::explain(story.lowered, story.steps));
  });
}

attune_error* attune_describe(const attune_attention* attention, char** json) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_describe");
    c::require(json, "attune_describe", "json");
    *json = c::copied(c::describe(*attention));
  });
}
