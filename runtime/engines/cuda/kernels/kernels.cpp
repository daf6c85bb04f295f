// runtime/engines/cuda/kernels/kernels.cpp — kernels in memory: each compiled once for its Mod and tile, loaded once
// per device, and unloaded once nothing can run it
#include "runtime/engines/cuda/kernels/kernels.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/waits.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::cuda {
namespace {

/// An event after all earlier work of its stream.
class End {
 public:
  explicit End(cu::Stream stream) {
    const Driver& d = driver();
    if (d.cuEventCreate.raw(&event_, cu::event_without_time) == cu::Result::success &&
        d.cuEventRecord.raw(event_, stream) == cu::Result::success)
      recorded_ = true;
  }
  ~End() {
    if (event_) driver().cuEventDestroy.raw(event_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  bool recorded() const { return recorded_; }
  bool has_passed() const { return driver().cuEventQuery.raw(event_) == cu::Result::success; }

 private:
  cu::Event event_ = nullptr;
  bool recorded_ = false;
};

struct Waiting {
  const Driver* driver;
  int device;
  unsigned long long stream;
  std::vector<cu::Library> all;
  std::shared_ptr<const End> end{};  ///< null until a stream was given
};
struct AllWaiting {
  Mutex mutex;
  std::vector<Waiting> all;
};
AllWaiting& waiting() {
  static constinit Once<AllWaiting> only;
  return only.get();
}

void unload(const Driver& of, const std::vector<cu::Library>& all) {
  for (const cu::Library one : all) of.cuLibraryUnload.raw(one);
}

unsigned long long number_of(cu::Stream stream) {
  unsigned long long out = 0;
  driver().cuStreamGetId(stream, &out);
  return out;
}

}  // namespace

Libraries::~Libraries() {
  if (stays_) return;
  if (stream_ == none) {
    const DespiteCaptures relaxed;
    unload(driver_, all_);
  } else {
    const std::lock_guard lock(waiting().mutex);
    waiting().all.push_back({&driver_, device_, stream_, std::move(all_)});
  }
}

void Libraries::used_on(cu::Stream stream) {
  if (stays_.load(std::memory_order_relaxed)) return;
  if (capturing(stream)) {
    stays_ = true;
    return;
  }
  const unsigned long long number = number_of(stream);
  unsigned long long before = none;
  if (!stream_.compare_exchange_strong(before, number) && before != number) stays_ = true;
}

void unload_finished(int device, cu::Stream stream) {
  AllWaiting& those = waiting();
  const std::lock_guard lock(those.mutex);
  if (those.all.empty()) return;
  const DespiteCaptures relaxed;
  const unsigned long long number = number_of(stream);
  std::shared_ptr<const End> end;
  for (Waiting& one : those.all) {
    if (one.end || one.device != device || one.stream != number) continue;
    if (!end) end = std::make_shared<const End>(stream);
    if (end->recorded()) one.end = end;
  }
  std::erase_if(those.all, [&](const Waiting& one) {
    if (one.device != device || !one.end || !one.end->has_passed()) return false;
    unload(*one.driver, one.all);
    return true;
  });
}

namespace {

Kernel load(const Binary& binary, int device, int shared_bytes) {
  const Driver& d = driver();
  const DespiteCaptures relaxed;
  cu::Library library = nullptr;
  const cu::Result result = d.cuLibraryLoadData.raw(&library, binary.cubin.data(), nullptr, nullptr, 0, nullptr,
                                                    nullptr, 0);
  if (result == cu::Result::invalid_image || result == cu::Result::no_binary_for_gpu ||
      result == cu::Result::unsupported_ptx_version)
    throw Error("driver-old", "the driver cannot load what NVRTC compiled", {},
                fmt::format("the driver is of CUDA {}.{}, and NVRTC {}.{} is newer", d.version / 1000,
                            d.version % 1000 / 10, nvrtc().major, nvrtc().minor),
                "install a newer driver, or an older NVRTC");
  if (result != cu::Result::success) refuse(result, d.cuLibraryLoadData.name);
  Kernel kernel{
      .registers = binary.registers, .spilled = binary.spilled, .library = library, .bytes = binary.cubin.size()};
  d.cuLibraryGetKernel(&kernel.handle, library, binary.symbol.c_str());
  cu::Device of = 0;
  d.cuDeviceGet(&of, device);
  d.cuKernelSetAttribute(cu::KernelAttribute::dynamic_shared, shared_bytes, kernel.handle, of);
  // Otherwise loading is lazy, and happens at the first launch.
  cu::Function loaded = nullptr;
  d.cuKernelGetFunction(&loaded, kernel.handle);
  return kernel;
}

void own_libraries(LoadedKernel& kernel, int device) {
  std::vector<cu::Library> all{kernel.kernel.library};
  for (const LoadedCompanion& one : kernel.companions) all.push_back(one.kernel.library);
  kernel.libraries = std::make_unique<Libraries>(device, std::move(all));
}

/// The first kernels of a process stay loaded.
void let_go_later(LoadedKernel& kernel, int device) {
  static std::atomic<std::size_t> loaded = 0;
  if (loaded++ >= options().loaded / 2) own_libraries(kernel, device);
}

std::string take_over(const KernelKey& key, const compiler::LoweredMod& lowered, const Later& as,
                      const codegen::Variant& variant);

/// What compiles the kernel that takes over. It has copies, because the call and its attention may be gone by then.
std::shared_ptr<Later> successor_of(const KernelKey& key, const compiler::LoweredMod& lowered,
                                    const codegen::KernelPlan& plan) {
  struct Work {
    KernelKey key;
    compiler::LoweredMod lowered;
    codegen::Variant variant;
    std::weak_ptr<const Later> as{};
  };
  const auto work = std::make_shared<Work>(Work{key, lowered, codegen::variant_of(plan)});
  auto out = std::make_shared<Later>([work] {
    const auto as = work->as.lock();
    return take_over(work->key, work->lowered, *as, work->variant);
  });
  work->as = out;
  return out;
}

LoadedKernel made(const KernelKey& key, const compiler::LoweredMod& lowered, const Purpose* purpose, Compiles what) {
  const compiler::Mod& mod = lowered.mod;
  const bool forward = key.way == codegen::Way::forward;
  codegen::CallSpec call = key.call;
  const codegen::KernelSpec& spec = call.spec;
  const codegen::GpuParts parts = codegen::parts_of(lowered, call, key.way);
  LoadedKernel out;
  if (parts.gradient) out.delta_degree = parts.gradient->delta_degree;
  const auto refuses = [&](const codegen::KernelDescriptor* one) { return !one->why_not(spec, parts.facts).empty(); };
  // Other kernels then compute the backward. A forward has no alternative: choose() reports the reason.
  if (!forward && std::ranges::all_of(codegen::kernels(key.way), refuses)) {
    for (const codegen::KernelDescriptor* one : codegen::kernels(key.way))
      out.story.push_back(fmt::format("not {}: {}", one->name, one->why_not(spec, parts.facts)));
    return out;
  }
  Remembered found;
  // Measurements of prefill do not apply to decode.
  if (forward && !call.preference && !spec.sharing.decode()) {
    found = remembered(tuned_key(facts(key.device).name, parts, call));
    call.preference = std::move(found.preference);
  }
  Considered all = consider(parts, call, codegen::kernels(key.way), what, purpose);
  const Candidate& chosen = all.candidates[all.chosen];
  out.kernel = load(*chosen.binary, key.device, chosen.choice.shared_bytes);
  out.choice = chosen.choice;
  out.skips = parts.facts.skips;
  out.flaw = chosen.flaw;
  out.story = std::move(found.notes);
  const codegen::KernelPlan& plan = out.choice.plan;
  for (const codegen::Companion* one : codegen::companions_of(parts, plan)) {
    const codegen::Source source = companion_source_of(*one, parts, plan);
    const KernelOf of{.mod = &mod, .kernel = source.name, .arch = spec.arch, .purpose = purpose};
    out.companions.push_back({one, load(*binary_of(source, of), key.device, 0)});
  }
  if (call.preference && !call.preference->origin.empty()) out.story.push_back(call.preference->origin);
  out.story.insert(out.story.end(), all.story.begin(), all.story.end());
  out.made = std::move(all.made);
  for (std::size_t i = 0; i < all.chosen; ++i)
    out.story.push_back(
        fmt::format("not {}: {}", codegen::variant_of(all.candidates[i].choice.plan).text(), all.candidates[i].flaw));
  if (out.writes_lists()) out.cover_of = compiler::cover_of(lowered.cover);
  if (!all.first_tier || !objects().jit()) {
    let_go_later(out, key.device);
    return out;
  }
  out.successor = successor_of(key, lowered, plan);
  own_libraries(out, key.device);
  return out;
}

/// For a call that asks for a certain kernel, such as one of attune tune, and for threads whose device may be gone
/// later, there is one tier.
bool has_tiers(const KernelKey& key) { return options().tiers && !key.call.preference && !platform_of_thread(); }

constexpr const char* by_preparing = "call Attention::prepare before the capture";

/// The kernel of `key` if this process has it, else the result of `make`, which may not run during a capture.
template <class Kept, class Key, class Make>
auto kept_or_made(Kept& kept, const Key& key, cu::Stream stream, const Make& make, const char* fix) {
  if (auto found = kept.find(key)) return found;
  if (capturing(stream))
    throw Error("stream-capture", "a kernel would be loaded while a graph is captured", {},
                "this is the first call of its kind on this device", fix);
  const Waits waits;
  return kept.get(key, make);
}

}  // namespace

Held<Kernel> loaded_plain(int device, std::string_view kernel, const codegen::RowsSpec& spec, cu::Stream stream,
                          const compiler::Mod* mod, const Purpose* purpose) {
  struct Key {
    int device;
    std::string_view kernel;
    codegen::RowsSpec spec;
    auto operator<=>(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.kernel) + static_cast<std::size_t>(key.device);
    }
  };
  static constinit Once<Single<Key, Kernel, Hash>> kept;
  const auto make = [&] {
    const codegen::Source source = kernel == codegen::delta_rows.name ? codegen::rows_source(spec)
                                                                      : codegen::plain_source(kernel, spec.arch);
    const KernelOf of{.mod = mod, .kernel = source.name, .arch = spec.arch, .purpose = purpose};
    return std::make_shared<const Kernel>(load(*binary_of(source, of), device, 0));
  };
  return kept_or_made(kept.get(), Key{device, kernel, spec}, stream, make,
                      mod ? by_preparing : "make one such call before the capture");
}

namespace {

std::string text_of(const Later& successor) {
  if (!successor.done())
    return "the first of two tiers: the kernel compiled as a whole, which is faster and has the same results, will "
           "take over";
  const std::string why = successor.why_failed();
  return why.empty() ? "the first of two tiers: the last one has taken over" : "the first of two tiers stays: " + why;
}

}  // namespace

KernelStory story_of(const LoadedKernel& kernel) {
  const codegen::KernelChoice& choice = kernel.choice;
  KernelStory out{.variant = codegen::variant_of(choice.plan),
                  .kernel = {},
                  .notes = kernel.story,
                  .registers = kernel.kernel.registers,
                  .spilled = kernel.kernel.spilled,
                  .shared_bytes = choice.shared_bytes,
                  .flaw = kernel.flaw};
  if (!kernel.made.empty()) out.notes.push_back(kernel.made);
  if (kernel.successor) out.notes.push_back(text_of(*kernel.successor));
  out.kernel = fmt::format("{}, {} threads, {} registers, {} bytes of shared memory", out.variant.text(),
                           choice.threads, out.registers, out.shared_bytes);
  if (choice.plan.tile.heads > 1) out.kernel += fmt::format(", {} heads share a tile", choice.plan.tile.heads);
  if (out.spilled) out.kernel += fmt::format(", {} bytes spilled", out.spilled);
  return out;
}

namespace {

auto& kept_kernels() {
  struct Hash {
    std::size_t operator()(const KernelKey& key) const {
      return ir::DigestHash()(key.mod) + static_cast<std::size_t>(key.call.spec.d) +
             17 * static_cast<std::size_t>(key.call.length) + 5 * static_cast<std::size_t>(key.device);
    }
  };
  using All = Single<KernelKey, LoadedKernel, Hash>;
  static constinit Once<All> kept;
  return kept.get([] {
    return All({.count = options().loaded,
                .bytes = options().loaded_bytes,
                .bytes_of =
                    [](const LoadedKernel& one) {
                      std::size_t bytes = one.kernel.bytes;
                      for (const LoadedCompanion& companion : one.companions) bytes += companion.kernel.bytes;
                      return bytes;
                    },
                .may_go = [](const LoadedKernel& one) { return one.libraries && one.libraries->may_go(); }});
  });
}

/// Compiles and loads the kernel for the last tier, and gives it to later calls. The reason why not, if so.
std::string take_over(const KernelKey& key, const compiler::LoweredMod& lowered, const Later& as,
                      const codegen::Variant& variant) {
  const Current current(key.device);
  const auto last = std::make_shared<LoadedKernel>(made(key, lowered, nullptr, Compiles::last_tier));
  const std::string its = codegen::variant_of(last->choice.plan).text();
  std::string why_not;
  if (its != variant.text())
    why_not = fmt::format("compiled as a whole, {} would be chosen", its);
  else if (!last->flaw.empty())
    why_not = fmt::format("compiled as a whole, it {}", last->flaw);
  last->made = "compiled as a whole in the background: the last of two tiers";
  const auto is_first = [&](const LoadedKernel& now) { return now.successor.get() == &as; };
  if (why_not.empty() && kept_kernels().replace(key, is_first, last)) return {};
  own_libraries(*last, key.device);  // nothing has used it
  return why_not;
}

}  // namespace

bool is_loaded(const KernelKey& key) { return kept_kernels().find(key) != nullptr; }

Held<LoadedKernel> loaded_kernel(const KernelKey& key, const compiler::LoweredMod& lowered, cu::Stream stream,
                                 const Purpose* purpose) {
  const auto make = [&] {
    const Compiles what = has_tiers(key) ? Compiles::first_tier : Compiles::with_companions;
    auto out = std::make_shared<const LoadedKernel>(made(key, lowered, purpose, what));
    unload_finished(key.device, stream);
    return out;
  };
  Held<LoadedKernel> out = kept_or_made(kept_kernels(), key, stream, make, by_preparing);
  if (!out->successor) return out;
  // The default stream is never captured, and may not be asked while other streams are.
  if (!stream || !capturing(stream)) {
    out->successor->start();
    return out;
  }
  // A graph keeps its kernels for good.
  const Waits waits;
  out->successor->finish();
  const Held<LoadedKernel> last = kept_kernels().find(key);
  return last ? last : out;
}

}  // namespace attune::runtime::cuda
