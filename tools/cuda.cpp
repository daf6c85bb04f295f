// tools/cuda.cpp — attune cuda: the CUDA page of an attention, and the kernel that is chosen for it
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/choose.h"
#include "codegen/source.h"
#include "compiler/lower.h"
#include "tools/device_call.h"
#include "tools/output.h"
#include "tools/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct CudaOptions {
  TextOptions text;
  DeviceCall call;
  std::int64_t group = 1;
  bool lists = false, json = false;
};

void cuda(const CudaOptions& o) {
  const TextAttention text = build(o.text, Captures::FilesOrTypes);
  const compiler::LoweredMod lowered = compiler::lower(text.attention);
  const codegen::KernelSpec spec = o.call.spec(90, o.group);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, spec.scale_positive);
  const std::optional<codegen::Preference> preference = o.call.preference();
  const codegen::KernelChoices choices = codegen::choose(spec, parts.facts, codegen::call_kind(parts, o.call.length()),
                                                         preference ? &*preference : nullptr);
  if (o.lists && !parts.facts.listed)
    throw Error("no-lists", "this mask needs no lists", {.name = "--lists"},
                "which keys a tile of queries visits is known without looking at data", "leave --lists out");
  const codegen::KernelChoice& first = choices.choices[0];
  const codegen::Source source = o.lists ? codegen::cover_source(lowered, spec.wide, spec.arch)
                                         : codegen::kernel_source(parts, first.plan, spec.arch);
  if (!o.json) {
    write_out(source.text);
    return;
  }
  nlohmann::ordered_json all{{"kernel", source.name}, {"symbol", source.symbol}, {"options", source.options}};
  if (!o.lists) {
    all["threads"] = first.threads;
    all["shared_bytes"] = first.shared_bytes;
    all["story"] = fmt::format("{}", fmt::join(choices.story, "; "));
    for (const codegen::KernelChoice& c : choices.choices)
      all["candidates"].push_back({{"kernel", c.plan.kernel->name},
                                   {"m", c.plan.m},
                                   {"n", c.plan.n},
                                   {"stages", c.plan.stages},
                                   {"heads", c.plan.heads},
                                   {"variant", codegen::variant_of(c.plan).text()}});
  }
  all["text"] = source.text;
  write_json(all, 2);
}

}  // namespace

void add_cuda(CLI::App& app) {
  auto o = std::make_shared<CudaOptions>();
  CLI::App& verb = *app.add_subcommand("cuda", "the page of CUDA that an attention becomes");
  verb.add_option("EXPR", o->text.bare, "a mask if it is a Bool, else a score");
  o->text.add_to(verb, Captures::FilesOrTypes);
  o->call.add_to(verb);
  verb.add_option("--group", o->group, "query heads of a key head; 1 if left out")
      ->type_name("N")
      ->group("The call")
      ->check(CLI::PositiveNumber);
  verb.add_flag("--lists", o->lists, "the page that lists the tiles to visit, for masks that look at data");
  verb.add_flag("--json", o->json, "as JSON, with what NVRTC is told and the kernels that would be tried");
  verb.footer("Prints what NVRTC would be given for a forward call: the arguments and expressions of the mod as device "
              "code, and "
              "the kernel with its tile. Nothing is compiled, and no GPU is needed.\n"
              "Examples:\n"
              "  attune cuda --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q' --d 64\n"
              "  attune cuda 'kv <= q' --arch 80 --dtype f32 --json\n"
              "  attune cuda 'doc[q] == doc[kv]' --capture 'doc=i32[8192]' --lists");
  verb.callback([o] {
    o->call.check();
    cuda(*o);
  });
}

}  // namespace attune::tools
