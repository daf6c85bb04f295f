// runtime/engines/cuda/kernels/spliced.cpp — kernels from a skeleton that is compiled once, and a mod's functions put
// into it
#include "runtime/engines/cuda/kernels/spliced.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <attune/error.h>

#include "codegen/choose/kernel.h"
#include "codegen/source/skeleton.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/machine/background.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> skeletons_so_far{0};

/// What mods found out about a skeleton, kept in the cache next to it.
struct Note {
  const char* content;  ///< in the request, after the skeleton's
  const char* kind;     ///< of the entry
};
/// A mod spills in the skeleton no less than as a whole. Later mods most likely would too, so they are not spliced.
constexpr Note spills{"\nspills", "spills of a skeleton"};
/// Mods spill in the skeleton unless the assembler uses all registers.
constexpr Note more_registers{"\nmore registers", "registers of a skeleton"};

Asked asked_for(const Note& note, const codegen::Source& skeleton) {
  Asked what = asked_for_skeleton(skeleton);
  what.content += note.content;
  return what;
}
CacheEntry about(const codegen::Source& skeleton, std::string kind) {
  CacheEntry out{{{"kind", std::move(kind)}, {"kernel", skeleton.name}}, {}};
  out.facts.insert(out.facts.end(), skeleton.facts.begin(), skeleton.facts.end());
  return out;
}
Objects::Kept keep(const Note& note, const codegen::Source& skeleton) {
  return objects().get(asked_for(note, skeleton), [&] { return about(skeleton, note.kind); });
}
std::string fact_of(const CacheEntry& entry, std::string_view name) {
  const auto found = std::ranges::find(entry.facts, name, &runtime::Facts::value_type::first);
  return found == entry.facts.end() ? "" : found->second;
}

CacheEntry compiled(const codegen::Source& skeleton) {
  ++skeletons_so_far;
  Binary made = compile_to_ptx(skeleton);
  CacheEntry out = about(skeleton, "skeleton");
  out.facts.emplace_back("symbol", std::move(made.symbol));
  out.bytes = std::move(made.ptx);
  return out;
}

/// Has the assembler use up to all registers that a kernel may have. Without it ALiBi's spliced backward spills 8 bytes
/// and its other instructions are the same (13.0: levels 0 to 10, usually 5; 6 and above are alike).
constexpr const char* all_registers = "--ptxas-options=--register-usage-level=10";

/// While one lives, a thread in the background compiles a skeleton, or is about to.
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
    // Looked up without the mutex, because a thread that holds it may not wait for another.
    if (Objects::Kept kept = objects().find(what)) return {std::move(kept), nullptr};
    const std::lock_guard lock(mutex);
    if (!all.insert(name).second) return {};
    return {nullptr, std::make_shared<Coming>(std::move(name))};
  }

 private:
  // Never destroyed: the background may end after them.
  static inline Mutex& mutex = *new Mutex;
  static inline std::set<std::string>& all = *new std::set<std::string>;
  const std::string name_;
};

/// A mod in a skeleton; without a cubin, if there is none: then `made` is the reason.
Binary joined(const codegen::Source& whole, const codegen::SplitSource& split, const CacheEntry& skeleton) {
  Ahead ahead;
  Binary mod = compile_to_ptx(split.mod);
  const Clock splicing;
  const codegen::SplicedPtx ptx = codegen::splice(skeleton.bytes, mod.ptx);
  const double spliced = splicing.seconds();
  if (!ptx.why_not.empty()) return {.made = ptx.why_not};
  codegen::Source around{
      .name = whole.name, .text = codegen::around_ptx(ptx.text), .options = whole.options, .symbol = {}};
  if (around.text.empty()) return {.made = "the skeleton's PTX cannot be inline PTX"};
  const std::string symbol = fact_of(skeleton, "symbol");
  if (symbol.empty()) return {.made = "the skeleton does not say its symbol"};
  const bool more = objects().find(asked_for(more_registers, split.skeleton)) != nullptr;
  if (more) around.options.emplace_back(all_registers);
  Binary out = assemble(around, symbol, ahead);
  std::vector<watch::Built::Phase> phases{{"the mod to PTX", mod.phases.at(0).seconds}, {"splice", spliced}};
  if (out.spilled > 0 && !more) {
    around.options.emplace_back(all_registers);
    try {
      Binary again = assemble(around, symbol, ahead);
      if (again.spilled < out.spilled && again.warnings.size() <= out.warnings.size()) {
        keep(more_registers, split.skeleton);
        std::swap(out, again);
      }
      phases.insert(phases.end(), again.phases.begin(), again.phases.end());
    } catch (const Bug&) {
      // An assembler that does not have the option.
    }
  }
  out.made = "spliced";
  out.phases.insert(out.phases.begin(), phases.begin(), phases.end());
  return out;
}

/// Compiles a skeleton, then tries it with the mod that wanted it: if that spills registers, later mods need not find
/// out. A process that ends waits for one of the two at most. `spilled`: by the mod as a whole.
void compile_later(const codegen::Source& whole, int spilled, codegen::SplitSource split,
                   std::shared_ptr<Coming> mine) {
  struct Task {
    codegen::Source whole;
    int spilled;
    codegen::SplitSource split;
    Asked what;
    std::shared_ptr<Coming> mine;
  };
  Asked what = asked_for_skeleton(split.skeleton);
  auto task = std::make_shared<Task>(Task{whole, spilled, std::move(split), std::move(what), std::move(mine)});
  in_spare_time([task] {
    objects().get(task->what, [&] { return compiled(task->split.skeleton); });
    task->mine.reset();
  });
  in_spare_time([task] {
    const Objects::Kept made = objects().find(task->what);
    if (!made) return;
    const Binary tried = joined(task->whole, task->split, *made);
    if (tried.spilled > 0 && tried.spilled >= task->spilled) keep(spills, task->split.skeleton);
  });
}

/// The spliced kernel. If there is none, the result has no cubin, and its `made` says why.
Binary spliced(const codegen::Source& whole, const codegen::SplitSource& split, Splicing how,
               std::shared_ptr<Coming>& missing) {
  if (objects().find(asked_for(spills, split.skeleton)))
    return {.made = "another mod spilled registers in this skeleton"};
  const Asked what = asked_for_skeleton(split.skeleton);
  if (how == Splicing::at_once) {
    const Clock clock;
    const Objects::Kept kept = objects().get(what, [&] { return compiled(split.skeleton); });
    const double seconds = clock.seconds();
    Binary out = joined(whole, split, *kept);
    out.phases.insert(out.phases.begin(), {"skeleton", seconds});
    return out;
  }
  auto [skeleton, mine] = Coming::find(what);
  missing = std::move(mine);
  return skeleton ? joined(whole, split, *skeleton) : Binary{.made = "the tile's skeleton was not compiled yet"};
}

/// The same for any kernel. `split` is set, unless the kernel has no skeleton.
Binary attempt(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan,
               Splicing how, std::shared_ptr<Coming>& missing, std::optional<codegen::SplitSource>& split) {
  if (std::string why = codegen::why_not_spliced(parts, plan); !why.empty()) return {.made = std::move(why)};
  try {
    split = codegen::split_source(parts, plan);
    return spliced(whole, *split, how, missing);
  } catch (const Bug& refused) {
    // A mistake of attune's, but not one that a call should fail for.
    return {.made = fmt::format("NVRTC refuses: {}", std::string_view(refused.what()).substr(0, 200))};
  }
}

bool is_clean(const Binary& kernel) { return kernel.warnings.empty() && kernel.spilled == 0; }

}  // namespace

Splicing splicing_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan, CompiledFor what) {
  const Options& set = options();
  // Dumps and line numbers show the source that is compiled as a whole.
  if (!platform().splices || set.splice == Splice::off || set.lineinfo || !set.dump.empty()) return Splicing::never;
  if (set.splice == Splice::on) return Splicing::at_once;
  const codegen::Spliced kernel = plan.kernel->spliced;
  const bool affine = codegen::call_kind(parts, codegen::Length::longer).mod == codegen::ModKind::affine,
             wide = plan.spec.d == 128 && plan.spec.dv == 128, narrow = plan.spec.d == 64 && plan.spec.dv == 64,
             own_tanh = parts.facts.has_tanh && plan.spec.exact;
  const bool by_width = kernel == codegen::Spliced::but_terms,
             fast = kernel == codegen::Spliced::always || (by_width && ((narrow && !own_tanh) || (wide && !affine))),
             slower = by_width && wide && affine;
  const bool splices = (what != CompiledFor::bundle && fast) || (what == CompiledFor::first_tier && slower);
  return splices ? Splicing::if_there : Splicing::never;
}

bool is_first_tier(const Binary& kernel, const codegen::GpuParts& parts, const codegen::KernelPlan& plan) {
  return kernel.made == "spliced" && splicing_of(parts, plan, CompiledFor::call) == Splicing::never;
}

Binary only_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan) {
  std::shared_ptr<Coming> missing;
  std::optional<codegen::SplitSource> split;
  return attempt(whole, parts, plan, Splicing::at_once, missing, split);
}

bool is_taken(const Binary& spliced, const Binary& whole) {
  if (spliced.cubin.empty()) return false;
  return is_clean(spliced) || (spliced.warnings.size() <= whole.warnings.size() && spliced.spilled < whole.spilled);
}

Binary compile_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan,
                       Splicing how) {
  std::shared_ptr<Coming> missing;
  std::optional<codegen::SplitSource> split;
  Binary out = attempt(whole, parts, plan, how, missing, split);
  if (!out.cubin.empty() && is_clean(out)) return out;
  Binary made = platform().compile(whole, Ptx::no);
  made.phases.insert(made.phases.begin(), out.phases.begin(), out.phases.end());  // of the attempt
  if (out.spilled > 0 && out.spilled >= made.spilled) keep(spills, split->skeleton);
  // Only now, so that the call itself has all cores.
  if (missing) compile_later(whole, made.spilled, std::move(*split), std::move(missing));
  if (is_taken(out, made)) return out;
  made.made = out.cubin.empty()       ? std::move(out.made)
              : !out.warnings.empty() ? "spliced, its products would wait for each other"
                                      : fmt::format("spliced, it would spill {} bytes", out.spilled);
  return made;
}

namespace {

/// A skeleton, and the note on its registers if there is one.
std::vector<KeptSkeleton> with_note(const Asked& what, CacheEntry entry, const codegen::Source& skeleton) {
  std::vector<KeptSkeleton> out{{what.content, std::move(entry)}};
  const Asked note = asked_for(more_registers, skeleton);
  if (const Objects::Kept kept = objects().find(note)) out.push_back({note.content, *kept});
  return out;
}

}  // namespace

std::vector<KeptSkeleton> skeleton_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan) {
  if (splicing_of(parts, plan, CompiledFor::bundle) == Splicing::never ||
      !codegen::why_not_spliced(parts, plan).empty())
    return {};
  const codegen::Source skeleton = codegen::split_source(parts, plan).skeleton;
  const Asked what = asked_for_skeleton(skeleton);
  const Objects::Kept kept = objects().find(what);
  return kept ? with_note(what, *kept, skeleton) : std::vector<KeptSkeleton>();
}

std::vector<KeptSkeleton> make_skeleton(const codegen::Source& whole, int spilled, const codegen::GpuParts& parts,
                                        const codegen::KernelPlan& plan) {
  if (!codegen::why_not_spliced(parts, plan).empty()) return {};
  const codegen::SplitSource split = codegen::split_source(parts, plan);
  const Asked what = asked_for_skeleton(split.skeleton);
  try {
    const Objects::Kept made = objects().get(what, [&] { return compiled(split.skeleton); });
    const Binary tried = joined(whole, split, *made);
    if (tried.cubin.empty()) return {};
    if (tried.spilled > 0 && tried.spilled >= spilled)
      return {{asked_for(spills, split.skeleton).content, *keep(spills, split.skeleton)}};
    return with_note(what, *made, split.skeleton);
  } catch (const Bug&) {
    return {};
  }
}

Asked asked_for_skeleton(const codegen::Source& skeleton) {
  Asked what = asked(skeleton);
  what.content += fmt::format("\nto PTX by NVRTC {}.{}", nvrtc().major, nvrtc().minor);
  return what;
}

std::size_t compiled_skeletons() { return skeletons_so_far; }

}  // namespace attune::runtime::cuda
