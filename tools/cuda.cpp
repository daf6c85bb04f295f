// tools/cuda.cpp — attune cuda: the page of CUDA that attention becomes, and the kernel that is chosen for it
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/choose.h"
#include "compiler/lower.h"
#include "tools/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct CudaOptions {
  TextOptions text;
  std::string dtype = "bf16";
  std::int64_t d = 128;
  std::optional<std::int64_t> dv;
  int arch = 90;
  bool max = false, packed = false, lists = false, json = false;
};

void check_options(const CudaOptions& o) {
  require_word("--dtype", o.dtype, std::array<std::string, 3>{"f32", "f16", "bf16"});
  for (const auto& [option, value] : {std::pair{"--d", o.d}, {"--dv", o.dv.value_or(1)}})
    if (value < 1)
      throw Error("bad-size", fmt::format("{} cannot be {}", option, value), {.name = option}, "it is above 0",
                  "see attune cuda --help");
}

codegen::ForwardSpec spec_of(const CudaOptions& o) {
  const DType type = o.dtype == "f16" ? DType::f16 : o.dtype == "bf16" ? DType::bf16 : DType::f32;
  return {.arch = o.arch,
          .dtype = type,
          .out = type,
          .d = o.d,
          .dv = o.dv.value_or(o.d),
          .max = o.max,
          .packed = o.packed,
          .exact = type == DType::f32};
}

void cuda(const CudaOptions& o) {
  const TextAttention text = build(o.text, Captures::FilesOrTypes);
  const compiler::Mod mod = compiler::lower(text.attention).mod;
  const compiler::Cover cover = compiler::cover(mod.mask, mod.signature(), mod.score);
  const codegen::ForwardSpec spec = spec_of(o);
  const codegen::ForwardFacts facts = codegen::forward_facts(mod, cover, spec.scale_positive);
  const codegen::ForwardChoices choices = codegen::choose(spec, facts);
  if (o.lists && !facts.listed)
    throw Error("no-lists", "this mask needs no lists", {.name = "--lists"},
                "which keys a tile of queries visits is known without looking at data", "leave --lists out");
  const codegen::ForwardChoice& first = choices.choices[0];
  const codegen::Source source = o.lists ? codegen::cover_source(mod, cover, spec.arch)
                                         : codegen::forward_source(mod, cover, first.plan, spec.arch);
  if (!o.json) {
    std::fputs(source.text.c_str(), stdout);
    return;
  }
  nlohmann::ordered_json all{{"kernel", source.name}, {"symbol", source.symbol}, {"options", source.options}};
  if (!o.lists) {
    all["threads"] = first.threads;
    all["shared_bytes"] = first.shared_bytes;
    all["story"] = choices.story;
    for (const codegen::ForwardChoice& c : choices.choices)
      all["candidates"].push_back(
          {{"kernel", c.plan.kernel}, {"m", c.plan.m}, {"n", c.plan.n}, {"stages", c.plan.stages}});
  }
  all["text"] = source.text;
  std::puts(all.dump(2).c_str());
}

}  // namespace

void add_cuda(CLI::App& app) {
  auto o = std::make_shared<CudaOptions>();
  CLI::App& verb = *app.add_subcommand("cuda", "the page of CUDA that an attention becomes");
  verb.add_option("EXPR", o->text.bare, "a mask if it is a Bool, else a score");
  o->text.add_to(verb, Captures::FilesOrTypes);
  verb.add_option("--dtype", o->dtype, "of q, k, v and o; bf16 if left out")->type_name("f32|f16|bf16");
  verb.add_option("--d", o->d, "width of a head; 128 if left out")->type_name("N");
  verb.add_option("--dv", o->dv, "width of the values; as --d if left out")->type_name("N");
  verb.add_option("--arch", o->arch, "compute capability times ten; 90 if left out")->type_name("N");
  verb.add_flag("--max", o->max, "with the largest score of each row");
  verb.add_flag("--packed", o->packed, "for packed sequences");
  verb.add_flag("--lists", o->lists, "the page that lists the tiles to visit, for masks that look at data");
  verb.add_flag("--json", o->json, "as JSON, with what NVRTC is told and the kernels that would be tried");
  verb.footer("Example:\n  attune cuda --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q' --d 64");
  verb.callback([o] {
    check_options(*o);
    cuda(*o);
  });
}

}  // namespace attune::tools
