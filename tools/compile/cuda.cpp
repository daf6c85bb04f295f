// tools/compile/cuda.cpp — attune cuda: the CUDA source of an attention, and the chosen kernel
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/choose/call_choices.h"
#include "compiler/lower.h"
#include "runtime/attention/offline/builds.h"
#include "tools/options/call_options.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct CudaOptions {
  TextOptions text;
  DeviceCall call;
  std::string grads = "none";
  bool backward = false, lists = false, json = false;
};

nlohmann::ordered_json json_of(const codegen::CallSource& one) {
  nlohmann::ordered_json out{
      {"kernel", one.source.name}, {"symbol", one.source.symbol}, {"options", one.source.options}};
  if (one.choices) {
    const codegen::KernelChoice& first = one.choices->choices[0];
    out["threads"] = first.threads;
    out["shared_bytes"] = first.shared_bytes;
    out["story"] = fmt::format("{}", fmt::join(one.choices->story, "; "));
    for (const codegen::KernelChoice& c : one.choices->choices)
      out["candidates"].push_back({{"kernel", c.plan.kernel->name},
                                   {"m", c.plan.tile.m},
                                   {"n", c.plan.tile.n},
                                   {"stages", c.plan.tile.stages},
                                   {"heads", c.plan.tile.heads},
                                   {"variant", codegen::variant_of(c.plan).text()}});
  }
  out["text"] = one.source.text;
  return out;
}

std::vector<codegen::CallSource> sources(const CudaOptions& o, const compiler::LoweredMod& lowered) {
  codegen::SourcesOf what{.call = o.call.spec(lowered), .lists = o.lists};
  if (o.backward) what.call.backward = runtime::wanted_of(lowered.mod, o.grads)[0];
  std::vector<codegen::CallSource> out = codegen::call_sources(lowered, what);
  if (out.empty())
    throw Error("no-lists", "this mask needs no lists", {.name = "--lists"},
                "the keys that a tile of queries visits follow from the mask without data", "leave --lists out");
  return out;
}

void cuda(const CudaOptions& o) {
  const TextAttention text = built(o.text, Captures::FilesOrTypes);
  const compiler::LoweredMod lowered = compiler::lower(text.attention);
  const std::vector<codegen::CallSource> all = sources(o, lowered);
  if (o.json) {
    if (!o.backward) return write_json(json_of(all[0]), 2);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const codegen::CallSource& one : all) {
      list.push_back({{"of", one.of}});
      list.back().update(json_of(one));
    }
    return write_json({{"sources", list}}, 2);
  }
  for (const codegen::CallSource& one : all) {
    if (all.size() > 1) print_out("{}// ---- {} ----\n\n", &one == &all[0] ? "" : "\n", one.of);
    write_out(one.source.text);
  }
}

}  // namespace

void add_cuda(CLI::App& app) {
  auto o = std::make_shared<CudaOptions>();
  CLI::App& verb = *app.add_subcommand("cuda", "the CUDA source of an attention");
  o->text.add_to(verb);
  o->call.add_to(verb);
  verb.add_flag("--backward", o->backward, "the sources of the gradients, one after the other");
  verb.add_option("--grads", o->grads,
                  "with --backward: captured tensors whose gradients are asked for; none if left out")
      ->type_name("all|none|NAME+...");
  verb.add_flag("--lists", o->lists, "the source of the kernel that lists tiles, for masks that read data");
  verb.add_flag("--json", o->json, "as JSON, with NVRTC's options and the kernels that would be tried");
  verb.footer("Prints the source of a forward call's kernel, or with --backward of each kernel of a backward: "
              "the arguments and expressions of the mod as device code, and the kernel with its tile. Nothing is "
              "compiled, and no GPU is needed.\n"
              "Examples:\n"
              "  attune cuda --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q' --d 64\n"
              "  attune cuda 'kv <= q' --arch 80 --dtype f32 --json\n"
              "  attune cuda 'doc[q] == doc[kv]' --capture 'doc=i32[8192]' --lists\n"
              "  attune cuda 's + bias[h]' --capture 'bias=f32[16]' --backward --grads bias");
  verb.callback([o, &verb] {
    o->call.check();
    if (o->backward) o->call.check_for_backward();
    o->call.settle(verb.count("--seq") > 0);
    cuda(*o);
  });
}

}  // namespace attune::tools
