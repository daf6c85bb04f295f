// runtime/engines/cuda/kernels/kernels.h — kernels in memory: each compiled once for its Mod and tile, loaded once per
// device, and unloaded once nothing can run it
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "codegen/choose/companion.h"
#include "codegen/facts/parts.h"
#include "codegen/source/source.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels/tuned.h"
#include "runtime/machine/background.h"
#include "runtime/machine/cache/single.h"
#include "runtime/platform/nvidia/driver.h"

namespace attune::runtime::cuda {

/// While this object lives, the calling thread may load code and query events during other threads' captures without
/// invalidating them.
class DespiteCaptures {
 public:
  DespiteCaptures() { driver().cuThreadExchangeStreamCaptureMode.raw(&mode_); }
  ~DespiteCaptures() { driver().cuThreadExchangeStreamCaptureMode.raw(&mode_); }
  DespiteCaptures(const DespiteCaptures&) = delete;
  DespiteCaptures& operator=(const DespiteCaptures&) = delete;

 private:
  cu::CaptureMode mode_ = cu::CaptureMode::relaxed;
};

/// Libraries of the driver. Launches outlive the calls that enqueue them, and graphs outlive launches. The code is
/// therefore unloaded only if all its launches were enqueued on one stream, none of them within a capture, and that
/// stream has completed them. Otherwise it stays loaded until the process ends.
class Libraries {
 public:
  Libraries(int device, std::vector<cu::Library> all) : driver_(driver()), device_(device), all_(std::move(all)) {}
  /// Hands the libraries over to unload_finished, unless they stay loaded.
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  /// Must be called before launches of a call are enqueued on the stream, with the stream's context current.
  void used_on(cu::Stream stream);
  bool may_go() const { return !stays_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned long long none = ~0ull;
  const Driver& driver_;  ///< which may not be that of the thread that lets go of the kernel
  int device_;
  std::vector<cu::Library> all_;
  std::atomic<unsigned long long> stream_ = none;  ///< the driver's id of the stream, which no later stream gets
  std::atomic<bool> stays_ = false;
};

/// Unloads the libraries that were handed over and whose launches are complete. Only `stream` itself is queried: other
/// streams may no longer exist, so their libraries wait for a call with their stream. `stream` belongs to the current
/// context, on this device, and is not capturing.
void unload_finished(int device, cu::Stream stream);

/// A kernel that a device has loaded.
struct Kernel {
  cu::Kernel handle = nullptr;
  int registers = 0, spilled = 0;
  cu::Library library = nullptr;  ///< the library that contains it
  std::size_t bytes = 0;          ///< of the library's image
};

/// A companion of a kernel, for its launches.
struct LoadedCompanion {
  const codegen::Companion* what;
  Kernel kernel;
};

/// A kernel of a Mod on a device, and the companions and facts that its launches need.
struct LoadedKernel {
  Kernel kernel;
  codegen::KernelChoice choice;
  std::vector<LoadedCompanion> companions;  ///< in the order of their launches
  bool skips = false;                       ///< as in Traits
  std::string flaw;                         ///< as in Candidate
  compiler::CoverOf cover_of{};             ///< the dependencies of its lists, if the launch needs lists
  double delta_degree = 1;                  ///< for a backward: as in GradientParts
  std::vector<std::string> story;           ///< the origin of the choice; rejected kernels, and the reasons
  std::string made{};                       ///< as in Considered
  std::unique_ptr<Libraries> libraries{};   ///< null: the kernel stays loaded
  std::shared_ptr<Later> successor{};       ///< compiles the kernel that takes over from this one; null: none does

  /// Must be called before its launches are enqueued on the stream.
  void used_on(cu::Stream stream) const {
    if (libraries) libraries->used_on(stream);
  }

  bool has(const codegen::Companion& one) const {
    return std::ranges::find(companions, &one, &LoadedCompanion::what) != companions.end();
  }
  /// The companion that writes its lists of tiles; null: it needs none.
  const LoadedCompanion* lists() const {
    const auto found = std::ranges::find_if(companions,
                                            [](const LoadedCompanion& one) { return one.what->writes_lists(); });
    return found == companions.end() ? nullptr : &*found;
  }
  bool writes_lists() const { return lists() != nullptr; }
};

KernelStory story_of(const LoadedKernel& kernel);

/// The kernel of one way of a call on a device.
struct KernelKey {
  int device = 0;
  codegen::Way way = codegen::Way::forward;
  codegen::CallSpec call{};  ///< of_way()
  ir::Digest mod;
  auto operator<=>(const KernelKey&) const = default;
};

/// True if this process has the kernel.
bool is_loaded(const KernelKey& key);
/// Compiles and loads the kernel unless this process has it; then `stream` must not be captured. Its plan has no kernel
/// if no kernel of key.way supports the call, which can happen for a whole backward. The first kernels of a process
/// stay loaded, so that most processes need not track which streams their kernels run on; ATTUNE_LOADED bounds the
/// number of further kernels that stay.
///
/// The first kernel of a key may be one that is compiled sooner and runs slower, with the same plan and the same
/// results, bit by bit. Its successor is compiled in spare time, and later calls get that. A call whose stream is
/// captured waits for it. If it cannot be compiled or would have a flaw, the first kernel stays.
Held<LoadedKernel> loaded_kernel(const KernelKey& key, const compiler::LoweredMod& lowered, cu::Stream stream,
                                 const Purpose* purpose);

/// The same for kernels that hold no user's expressions: rows.cuh of this spec, or plain_source() of its arch. `mod`,
/// `purpose`: of the call, for those that watch; null for other calls than attention.
Held<Kernel> loaded_plain(int device, std::string_view kernel, const codegen::RowsSpec& spec, cu::Stream stream,
                          const compiler::Mod* mod = nullptr, const Purpose* purpose = nullptr);

}  // namespace attune::runtime::cuda
