// runtime/engines/cuda/spliced.cpp — kernels from a skeleton that is compiled once, and a mod's functions put into it
#include "runtime/engines/cuda/spliced.h"

#include <atomic>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/kernel.h"
#include "codegen/splice.h"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/platform.h"
#include "runtime/machine/options.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> skeletons_so_far{0};

/// What a mod that spilled registers in a skeleton left behind, so that others do not try.
Asked asked_if_tight(const codegen::Source& skeleton) {
  Asked what = asked(skeleton);
  what.content += "\nspills";
  return what;
}
CacheEntry about(const codegen::Source& skeleton, std::string kind, std::string symbol, std::string bytes) {
  CacheEntry out{{{"kind", std::move(kind)}, {"kernel", skeleton.name}}, std::move(bytes)};
  out.facts.insert(out.facts.end(), skeleton.facts.begin(), skeleton.facts.end());
  if (!symbol.empty()) out.facts.emplace_back("symbol", std::move(symbol));
  return out;
}

/// The skeleton's PTX and symbol, from memory, the disk or the compiler.
Binary skeleton_of(const codegen::Source& source) {
  const Objects::Kept kept = objects().get(asked_for_skeleton(source), [&] {
    ++skeletons_so_far;
    Binary made = compile_to_ptx(source);
    return about(source, "skeleton", std::move(made.symbol), std::move(made.ptx));
  });
  Binary out{.ptx = kept->bytes};
  for (const auto& [name, value] : kept->facts)
    if (name == "symbol") out.symbol = value;
  return out;
}

/// The spliced kernel; without a cubin, if there is none: then `made` is the reason.
Binary spliced(const codegen::Source& whole, const codegen::SplitSource& split) {
  if (objects().find(asked_if_tight(split.skeleton))) return {.made = "another mod spilled registers in this skeleton"};
  const Binary skeleton = skeleton_of(split.skeleton);
  const codegen::SplicedPtx ptx = codegen::splice(skeleton.ptx, compile_to_ptx(split.mod).ptx);
  if (!ptx.why_not.empty()) return {.made = ptx.why_not};
  codegen::Source around{
      .name = whole.name, .text = codegen::around_ptx(ptx.text), .options = whole.options, .symbol = {}};
  if (around.text.empty()) return {.made = "the skeleton's PTX cannot be inline PTX"};
  Binary out = assemble(around, skeleton.symbol);
  if (out.spilled > 0)
    objects().get(asked_if_tight(split.skeleton), [&] { return about(split.skeleton, "tight skeleton", {}, {}); });
  out.made = "spliced";
  return out;
}

}  // namespace

bool wants_spliced(const codegen::KernelPlan& plan) {
  const Options& set = options();
  // Dumps and line numbers show the source that is compiled as a whole.
  if (!platform().splices || set.splice == Splice::off || set.lineinfo || !set.dump.empty()) return false;
  return set.splice == Splice::on || plan.kernel->spliced == codegen::Spliced::always;
}

Binary compile_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan) {
  Binary out{.made = codegen::why_not_spliced(parts, plan)};
  if (out.made.empty()) try {
      out = spliced(whole, codegen::split_source(parts, plan));
    } catch (const Bug& refused) {
      // A mistake of attune's, but not one that a call should fail for.
      out.made = fmt::format("NVRTC refuses: {}", std::string_view(refused.what()).substr(0, 200));
    }
  if (!out.cubin.empty() && out.spilled == 0 && out.warnings.empty()) return out;
  std::string why = out.cubin.empty()       ? std::move(out.made)
                    : !out.warnings.empty() ? "spliced, its products would wait for each other"
                                            : fmt::format("spliced, it would spill {} bytes", out.spilled);
  Binary made = platform().compile(whole, Ptx::no);
  if (!out.cubin.empty() && out.warnings.size() <= made.warnings.size() && out.spilled < made.spilled) return out;
  made.made = std::move(why);
  return made;
}

Asked asked_for_skeleton(const codegen::Source& skeleton) {
  Asked what = asked(skeleton);
  what.content += "\nto PTX";
  return what;
}

std::size_t compiled_skeletons() { return skeletons_so_far; }

}  // namespace attune::runtime::cuda
