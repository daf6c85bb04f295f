// tools/explain.cpp — attune explain: what the compiler makes of an Attention
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "runtime/cuda/consider.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/tuned.h"
#include "tools/device_call.h"
#include "tools/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainOptions {
  TextOptions text;
  std::string target = "auto";
  DeviceCall call;
  bool json = false;
};

/// What a GPU would make of a call; where there is none, what NVRTC does.
class OnDevice {
 public:
  OnDevice(const compiler::Mod& mod, const DeviceCall& call)
      : call_(call), there_(!call.arch && runtime::cuda::device_count() > 0),
        spec_(call.spec(there_ ? runtime::cuda::facts(0).arch() : 90)),
        cover_(compiler::cover(mod.mask, mod.signature(), mod.score)),
        facts_(codegen::forward_facts(mod, cover_, spec_.scale_positive)),
        kind_(codegen::forward_kind(mod, cover_, facts_, call.length())) {
    std::optional<codegen::Preference> preference = call.preference();
    if (!preference && there_) {
      runtime::cuda::Remembered found = runtime::cuda::remembered({.device = runtime::cuda::facts(0).name,
                                                                   .arch = spec_.arch,
                                                                   .dtype = spec_.dtype,
                                                                   .d = spec_.d,
                                                                   .dv = spec_.dv,
                                                                   .kind = kind_});
      preference = std::move(found.preference);
      notes_ = std::move(found.notes);
      if (preference) notes_.push_back(preference->origin);
    }
    considered_ = runtime::cuda::consider(mod, cover_, spec_, call.length(), preference ? &*preference : nullptr, true);
    notes_.insert(notes_.end(), considered_.story.begin(), considered_.story.end());
  }

  std::string text() const {
    std::string out = fmt::format("\non {}, compute capability {}.{}\n", name(), spec_.arch / 10, spec_.arch % 10);
    out += fmt::format("  call     {}, D={}/{}, S={}x{}\n", call_.dtype, spec_.d, spec_.dv, call_.seq,
                       call_.kv_seq.value_or(call_.seq));
    out += fmt::format("  kind     {}, {}, {}\n", name_of(kind_.cover), name_of(kind_.mod), name_of(kind_.length));
    out += fmt::format("  tiles    {}\n", tiles());
    for (std::size_t i = 0; i < considered_.candidates.size(); ++i) {
      const runtime::cuda::Candidate& c = considered_.candidates[i];
      out += fmt::format(
          "  {:<8} {}\n           {} threads, {} registers, {} bytes spilled, {} bytes of shared memory{}\n",
          verdict(i), codegen::variant_of(c.choice.plan).text(), c.choice.threads, c.binary->registers,
          c.binary->spilled, c.choice.shared_bytes, c.flaw.empty() ? "" : "   — " + c.flaw);
    }
    for (const std::string& note : notes_) out += fmt::format("  note     {}\n", note);
    return out;
  }

  Json json() const {
    Json out{{"device", name()},
             {"arch", spec_.arch},
             {"cover", std::string(name_of(kind_.cover))},
             {"mod", std::string(name_of(kind_.mod))},
             {"length", std::string(name_of(kind_.length))},
             {"tiles", tiles()},
             {"notes", notes_}};
    for (std::size_t i = 0; i < considered_.candidates.size(); ++i) {
      const runtime::cuda::Candidate& c = considered_.candidates[i];
      out["candidates"].push_back({{"kernel", codegen::variant_of(c.choice.plan).text()},
                                   {"verdict", verdict(i)},
                                   {"threads", c.choice.threads},
                                   {"registers", c.binary->registers},
                                   {"spilled", c.binary->spilled},
                                   {"shared_bytes", c.choice.shared_bytes},
                                   {"flaw", c.flaw}});
    }
    return out;
  }

 private:
  std::string name() const { return there_ ? runtime::cuda::facts(0).name : "a GPU that is not here"; }
  std::string verdict(std::size_t i) const {
    return i == considered_.chosen ? "chosen" : i < considered_.chosen ? "left" : "behind";
  }
  std::string tiles() const {
    switch (kind_.cover) {
      case codegen::CoverKind::full: return "all, and all of them full";
      case codegen::CoverKind::listed: return "as lists say that a kernel of their own writes at each call";
      case codegen::CoverKind::pairs: return "all, and each pair is asked for";
      case codegen::CoverKind::causal:
      case codegen::CoverKind::window: break;
    }
    return "within the bands along kv, above: full where nothing drops";
  }

  const DeviceCall& call_;
  bool there_;
  codegen::ForwardSpec spec_;
  compiler::Cover cover_;
  codegen::ForwardFacts facts_;
  codegen::ForwardKind kind_;
  runtime::cuda::Considered considered_;
  std::vector<std::string> notes_;
};

void explain(const ExplainOptions& o) {
  const TextAttention text = build(o.text, Captures::FilesOrTypes);
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::Mod mod = compiler::lower(text.attention, &steps).mod;
  const std::optional<OnDevice> device = o.target == "cuda" ? std::optional(OnDevice(mod, o.call)) : std::nullopt;
  if (!o.json) {
    std::fputs(compiler::explain(mod, steps).c_str(), stdout);
    if (device) std::fputs(device->text().c_str(), stdout);
    return;
  }
  const ir::Signature names = mod.signature();
  Json all;
  for (const auto& [name, root] :
       {std::pair{"score", mod.score}, {"mask", mod.mask}, {"prob", mod.prob}, {"sink", mod.sink}})
    if (root) all[name] = ir::print(root, names);
  all["digest"] = mod.digest().hex();
  all["rewrites"] = Json::array();
  for (const compiler::Rewrite& r : steps.rewrites)
    all["rewrites"].push_back(
        {{"rule", std::string(r.rule)}, {"from", ir::print(r.from, names)}, {"to", ir::print(r.to, names)}});
  all["affine"] = mod.fold.affine;
  all["bounded"] = mod.fold.bounded();
  if (mod.fold.row) all["row"] = ir::print(mod.fold.row, names);
  all["levels"] = {{"head", mod.levels.head.size()}, {"row", mod.levels.row.size()}, {"col", mod.levels.col.size()}};
  for (const compiler::Steps::Step& step : steps.steps)
    all["steps"].push_back({{"name", step.name}, {"nanoseconds", step.took.count()}});
  if (device) all["cuda"] = device->json();
  all["text"] = compiler::explain(mod, steps);
  std::puts(all.dump(2).c_str());
}

}  // namespace

void add_explain(CLI::App& app) {
  auto o = std::make_shared<ExplainOptions>();
  CLI::App& verb = *app.add_subcommand("explain", "what the compiler makes of an attention, and why");
  verb.add_option("EXPR", o->text.bare, "a mask if it is a Bool, else a score");
  o->text.add_to(verb, Captures::FilesOrTypes);
  verb.add_option("--target", o->target, "cuda: also which kernel of a GPU takes a call, and what it needs")
      ->type_name("auto|cpu|cuda");
  o->call.add_to(verb);
  verb.add_flag("--json", o->json, "as JSON");
  verb.footer("Examples:\n"
              "  attune explain --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q && doc[q] == doc[kv]' \\\n"
              "    --capture 'doc=i32[8192]'\n"
              "  attune explain --mask 'kv <= q' --target cuda --arch 90 --d 64");
  verb.callback([o] {
    require_word("--target", o->target, std::array<std::string, 3>{"auto", "cpu", "cuda"});
    o->call.check();
    require_expression(o->text, "explain");
    explain(*o);
  });
}

}  // namespace attune::tools
