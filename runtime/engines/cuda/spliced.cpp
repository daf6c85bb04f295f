// runtime/engines/cuda/spliced.cpp — kernels from a skeleton that is compiled once, and a mod's functions put into it
#include "runtime/engines/cuda/spliced.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <attune/error.h>

#include "codegen/kernel.h"
#include "codegen/splice.h"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/platform.h"
#include "runtime/machine/background.h"
#include "runtime/machine/options.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> skeletons_so_far{0};

/// What a mod that was no good in a skeleton left behind, so that others do not try: the fact "why".
Asked asked_if_tight(const codegen::Source& skeleton) {
  Asked what = asked(skeleton);
  what.content += "\nspills";
  return what;
}
CacheEntry about(const codegen::Source& skeleton, std::string kind) {
  CacheEntry out{{{"kind", std::move(kind)}, {"kernel", skeleton.name}}, {}};
  out.facts.insert(out.facts.end(), skeleton.facts.begin(), skeleton.facts.end());
  return out;
}
void keep_off(const codegen::Source& skeleton) {
  objects().get(asked_if_tight(skeleton), [&] { return about(skeleton, "tight skeleton"); });
}

CacheEntry compiled(const codegen::Source& skeleton) {
  ++skeletons_so_far;
  Binary made = compile_to_ptx(skeleton);
  CacheEntry out = about(skeleton, "skeleton");
  out.facts.emplace_back("symbol", std::move(made.symbol));
  out.bytes = std::move(made.ptx);
  return out;
}

/// The skeletons that a thread in the background compiles or is about to. While this object
/// lives, a skeleton is one of them.
class Coming {
 public:
  explicit Coming(std::string name) : name_(std::move(name)) {}
  ~Coming() {
    const std::lock_guard lock(mutex);
    all.erase(name_);
  }
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;

  /// The skeleton, if nobody must be waited for; else null, and if nobody compiles it, an object for who shall.
  static std::pair<Objects::Kept, std::shared_ptr<Coming>> find(const Asked& what) {
    // In a forked child, no thread continues what the parent was making.
    std::string name = fmt::format("{} {}", getpid(), what.content);
    const std::lock_guard lock(mutex);
    if (all.contains(name)) return {};
    if (Objects::Kept kept = objects().find(what)) return {std::move(kept), nullptr};
    all.insert(name);
    return {nullptr, std::make_shared<Coming>(std::move(name))};
  }

 private:
  // Never destroyed: the background may end after them.
  static inline std::mutex& mutex = *new std::mutex;
  static inline std::set<std::string>& all = *new std::set<std::string>;
  const std::string name_;
};

/// A mod in a skeleton; without a cubin, if there is none: then `made` is the reason.
Binary joined(const codegen::Source& whole, const codegen::SplitSource& split, const CacheEntry& skeleton) {
  const codegen::SplicedPtx ptx = codegen::splice(skeleton.bytes, compile_to_ptx(split.mod).ptx);
  if (!ptx.why_not.empty()) return {.made = ptx.why_not};
  codegen::Source around{
      .name = whole.name, .text = codegen::around_ptx(ptx.text), .options = whole.options, .symbol = {}};
  if (around.text.empty()) return {.made = "the skeleton's PTX cannot be inline PTX"};
  const auto symbol = std::ranges::find(skeleton.facts, "symbol", &runtime::Facts::value_type::first);
  if (symbol == skeleton.facts.end()) return {.made = "the skeleton does not say its symbol"};
  Binary out = assemble(around, symbol->second);
  if (out.spilled > 0) keep_off(split.skeleton);
  out.made = "spliced";
  return out;
}

/// Compiles a skeleton, then tries it with the mod that wanted it, which is compiled as a whole: if that spills
/// registers, later mods need not find out. A process that ends waits for one of the two at most.
void compile_later(const codegen::Source& whole, codegen::SplitSource split, std::shared_ptr<Coming> mine) {
  struct Task {
    codegen::Source whole;
    codegen::SplitSource split;
    Asked what;
    std::shared_ptr<Coming> mine;
  };
  Asked what = asked_for_skeleton(split.skeleton);
  auto task = std::make_shared<Task>(Task{whole, std::move(split), std::move(what), std::move(mine)});
  in_spare_time([task] {
    objects().get(task->what, [&] { return compiled(task->split.skeleton); });
    task->mine.reset();
  });
  in_spare_time([task] {
    if (const Objects::Kept made = objects().find(task->what)) joined(task->whole, task->split, *made);
  });
}

/// The spliced kernel; without a cubin, if there is none: then `made` is the reason.
Binary spliced(const codegen::Source& whole, const codegen::SplitSource& split, Splicing how,
               std::shared_ptr<Coming>& missing) {
  if (objects().find(asked_if_tight(split.skeleton))) return {.made = "another mod spilled registers in this skeleton"};
  const Asked what = asked_for_skeleton(split.skeleton);
  if (how == Splicing::at_once)
    return joined(whole, split, *objects().get(what, [&] { return compiled(split.skeleton); }));
  auto [skeleton, mine] = Coming::find(what);
  missing = std::move(mine);
  return skeleton ? joined(whole, split, *skeleton) : Binary{.made = "the tile's skeleton was not compiled yet"};
}

/// The mod's kernel as a whole, unless the spliced one is better.
Binary better(const codegen::Source& whole, Binary spliced) {
  std::string why = spliced.cubin.empty()       ? std::move(spliced.made)
                    : !spliced.warnings.empty() ? "spliced, its products would wait for each other"
                                                : fmt::format("spliced, it would spill {} bytes", spliced.spilled);
  Binary made = platform().compile(whole, Ptx::no);
  if (!spliced.cubin.empty() && spliced.warnings.size() <= made.warnings.size() && spliced.spilled < made.spilled)
    return spliced;
  made.made = std::move(why);
  return made;
}

}  // namespace

Splicing splicing_of(const codegen::KernelPlan& plan) {
  const Options& set = options();
  // Dumps and line numbers show the source that is compiled as a whole.
  if (!platform().splices || set.splice == Splice::off || set.lineinfo || !set.dump.empty()) return Splicing::never;
  if (set.splice == Splice::on) return Splicing::at_once;
  return plan.kernel->spliced == codegen::Spliced::always ? Splicing::if_there : Splicing::never;
}

Binary compile_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan,
                       Splicing how) {
  Binary out{.made = codegen::why_not_spliced(parts, plan)};
  if (!out.made.empty()) return better(whole, std::move(out));
  codegen::SplitSource split = codegen::split_source(parts, plan);
  std::shared_ptr<Coming> missing;
  try {
    out = spliced(whole, split, how, missing);
  } catch (const Bug& refused) {
    // A mistake of attune's, but not one that a call should fail for.
    out.made = fmt::format("NVRTC refuses: {}", std::string_view(refused.what()).substr(0, 200));
  }
  if (!out.cubin.empty() && out.spilled == 0 && out.warnings.empty()) return out;
  out = better(whole, std::move(out));
  // Only now, so that the call itself has all cores.
  if (missing) compile_later(whole, std::move(split), std::move(missing));
  return out;
}

Asked asked_for_skeleton(const codegen::Source& skeleton) {
  Asked what = asked(skeleton);
  what.content += "\nto PTX";
  return what;
}

std::size_t compiled_skeletons() { return skeletons_so_far; }

}  // namespace attune::runtime::cuda
