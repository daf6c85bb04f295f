// runtime/platform/emulated/driver.cpp — replaces NVIDIA's driver: host memory, streams that complete at once, kernels
// that are libraries
#include "runtime/platform/emulated/driver.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <dlfcn.h>
#include <elf.h>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/platform/emulated/command.h"
#include "runtime/platform/emulated/files.h"
#include "runtime/platform/emulated/grid.h"

namespace attune::runtime::emulated {

Mutex device_mutex;

namespace {

namespace cu = cuda::cu;

std::map<cu::Address, std::size_t> taken;  ///< bytes

std::byte* at(cu::Address address) { return reinterpret_cast<std::byte*>(address); }

/// Fills memory that the previous kernel was the first to write with large numbers: with NaN, kernels would recompute
/// tiles.
void hide(std::vector<std::byte>& before, const std::vector<std::byte>& after) {
  constexpr std::uint32_t never_written = ~0u;
  for (std::size_t i = 0; i + sizeof(float) <= before.size(); i += sizeof(float)) {
    std::uint32_t word = 0;
    std::memcpy(&word, &before[i], sizeof word);
    if (word == never_written && std::memcmp(&before[i], &after[i], sizeof word) != 0)
      std::memcpy(&before[i], &unknown_number, sizeof unknown_number);
  }
}

}  // namespace

cu::Result take(cu::Address* into, std::size_t bytes) {
  constexpr std::size_t grain = 256;
  void* const made = std::aligned_alloc(grain, (bytes + grain) / grain * grain);
  if (!made) return cu::Result::out_of_memory;
  // Memory that was never written is NaN.
  std::memset(made, 0xff, bytes);
  *into = reinterpret_cast<cu::Address>(made);
  const std::lock_guard lock(device_mutex);
  taken.emplace(*into, bytes);
  return cu::Result::success;
}

cu::Result give_back(cu::Address address) {
  {
    const std::lock_guard lock(device_mutex);
    if (!taken.erase(address)) return cu::Result::invalid_value;
  }
  std::free(at(address));
  return cu::Result::success;
}

Contents contents() {
  constexpr std::size_t most = 64 << 20;
  std::size_t all = 0;
  for (const auto& [address, bytes] : taken) all += bytes;
  Contents out;
  if (all > most) return out;
  for (const auto& [address, bytes] : taken) out.emplace_back(address, std::vector(at(address), at(address) + bytes));
  return out;
}

std::function<void()> put_back(const Contents& earlier) {
  struct Piece {
    std::byte* memory;
    std::vector<std::byte> before, after;
  };
  auto all = std::make_shared<std::vector<Piece>>();
  for (const auto& [address, bytes] : earlier) {
    const auto now = taken.find(address);
    if (now == taken.end() || now->second != bytes.size()) continue;
    std::byte* const memory = at(address);
    all->push_back({memory, bytes, std::vector(memory, memory + bytes.size())});
    hide(all->back().before, all->back().after);
    std::ranges::copy(all->back().before, memory);
  }
  return [all] {
    for (const Piece& one : *all)
      for (std::size_t i = 0; i < one.before.size(); ++i)
        if (one.memory[i] == one.before[i]) one.memory[i] = one.after[i];
  };
}

namespace {

namespace cu = cuda::cu;
using cu::Result;

thread_local std::vector<cu::Context> contexts;
int context_of_all = 0;

using Step = std::function<void()>;
/// A stream, with the work that was enqueued while a graph was captured from it.
struct Stream {
  bool capturing = false;
  std::vector<Step> steps{};
};
struct Event {
  std::chrono::steady_clock::time_point at;
};
struct Graph {
  std::vector<Step> steps;
};
struct Loaded {
  void* library = nullptr;
};

Stream default_stream;
Stream& of(cu::Stream stream) { return stream ? *reinterpret_cast<Stream*>(stream) : default_stream; }
void* memory_at(cu::Address address) { return reinterpret_cast<void*>(address); }

template <class T>
Result give(T* into, T value) {
  *into = value;
  return Result::success;
}
/// What a kernel that starts early sees before it waits: launches in a row on one stream set it, other work resets it.
struct Early {
  cu::Stream stream = nullptr;
  Contents sees;
};
std::optional<Early> early;

/// Runs the step now, or whenever the graph runs that is captured from the stream.
Result put(cu::Stream stream, Step step) {
  if (of(stream).capturing)
    of(stream).steps.push_back(std::move(step));
  else
    step();
  return Result::success;
}
/// The same for work that is no kernel.
template <class Work>
Result put_other(cu::Stream stream, Work work) {
  return put(stream, [work] {
    const std::lock_guard lock(device_mutex);
    early.reset();
    work();
  });
}

// ---- devices --------------------------------------------------------------------------------------------------------

Result cuInit(unsigned) { return Result::success; }
Result cuDriverGetVersion(int* version) { return give(version, 13000); }
Result cuDeviceGetCount(int* devices) { return give(devices, 1); }
Result cuDeviceGet(cu::Device* device, int) { return give(device, 0); }
Result cuDeviceGetName(char* name, int room, cu::Device) {
  std::strncpy(name, emulated_gpu().gpu.arch == 80 ? "emulated sm_80" : "emulated sm_90a",
               static_cast<std::size_t>(room));
  return Result::success;
}
Result cuDeviceGetAttribute(int* value, cu::DeviceAttribute which, cu::Device) {
  // From NVIDIA's tables of compute capabilities.
  const Gpu& gpu = emulated_gpu().gpu;
  const int per_sm = gpu.arch == 80 ? 164 : 228;
  using enum cu::DeviceAttribute;
  switch (which) {
    case sm_count: return give(value, gpu.sms);
    case l2_bytes: return give(value, 50 << 20);
    case major: return give(value, gpu.arch / 10);
    case minor: return give(value, gpu.arch % 10);
    case shared_per_sm: return give(value, per_sm << 10);
    case shared_per_block: return give(value, (per_sm - 1) << 10);
    case memory_pools: return give(value, 1);
  }
  return Result::invalid_value;
}

Result cuDevicePrimaryCtxRetain(cu::Context* context, cu::Device) {
  return give(context, reinterpret_cast<cu::Context>(&context_of_all));
}
Result cuCtxGetCurrent(cu::Context* context) { return give(context, contexts.empty() ? nullptr : contexts.back()); }
Result cuCtxGetDevice(cu::Device* device) { return give(device, 0); }
Result cuCtxPushCurrent(cu::Context context) {
  contexts.push_back(context);
  return Result::success;
}
Result cuCtxPopCurrent(cu::Context* context) {
  if (contexts.empty()) return Result::invalid_context;
  *context = contexts.back();
  contexts.pop_back();
  return Result::success;
}
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  return give(greatest, 0);
}
Result cuCtxEnablePeerAccess(cu::Context, unsigned) { return Result::success; }

// ---- memory ---------------------------------------------------------------------------------------------------------

Result cuMemAlloc(cu::Address* into, std::size_t bytes) { return take(into, bytes); }
Result cuMemFree(cu::Address address) { return give_back(address); }
Result cuMemAllocAsync(cu::Address* into, std::size_t bytes, cu::Stream) { return take(into, bytes); }
/// A captured graph may still use the memory.
Result cuMemFreeAsync(cu::Address address, cu::Stream stream) {
  return of(stream).capturing ? Result::success : give_back(address);
}
Result cuMemcpyAsync(cu::Address to, cu::Address from, std::size_t bytes, cu::Stream stream) {
  return put_other(stream, [=] { std::memmove(memory_at(to), memory_at(from), bytes); });
}
Result cuMemcpy2DAsync(const cu::Copy2D* copy, cu::Stream stream) {
  return put_other(stream, [copy = *copy] {
    for (std::size_t i = 0; i < copy.height; ++i)
      std::memmove(memory_at(copy.to + i * copy.to_pitch), memory_at(copy.from + i * copy.from_pitch), copy.width);
  });
}
Result cuMemsetD8Async(cu::Address to, unsigned char value, std::size_t bytes, cu::Stream stream) {
  return put_other(stream, [=] { std::memset(memory_at(to), value, bytes); });
}
Result cuMemsetD32Async(cu::Address to, unsigned value, std::size_t words, cu::Stream stream) {
  return put_other(stream, [=] { std::fill_n(static_cast<unsigned*>(memory_at(to)), words, value); });
}

// ---- streams, events, graphs ----------------------------------------------------------------------------------------

Result cuStreamCreate(cu::Stream* stream, unsigned) { return give(stream, reinterpret_cast<cu::Stream>(new Stream)); }
Result cuStreamCreateWithPriority(cu::Stream* stream, unsigned, int) { return cuStreamCreate(stream, 0); }
Result cuStreamWaitEvent(cu::Stream, cu::Event, unsigned) { return Result::success; }
Result cuStreamDestroy(cu::Stream stream) {
  delete &of(stream);
  return Result::success;
}
Result cuStreamSynchronize(cu::Stream) { return Result::success; }
Result cuStreamQuery(cu::Stream) { return Result::success; }
Result cuStreamIsCapturing(cu::Stream stream, cu::Capture* status) {
  return give(status, of(stream).capturing ? cu::Capture::active : cu::Capture::none);
}
/// Work completes when it is enqueued, so a stream that reuses another's address may have the same id.
Result cuStreamGetId(cu::Stream stream, unsigned long long* id) {
  return give(id, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(stream)));
}
Result cuThreadExchangeStreamCaptureMode(cu::CaptureMode*) { return Result::success; }
Result cuStreamBeginCapture(cu::Stream stream, cu::CaptureMode) {
  of(stream) = {.capturing = true};
  return Result::success;
}
Result cuStreamEndCapture(cu::Stream stream, cu::Graph* graph) {
  of(stream).capturing = false;
  return give(graph, reinterpret_cast<cu::Graph>(new Graph{std::move(of(stream).steps)}));
}
Result cuGraphInstantiateWithFlags(cu::GraphExec* into, cu::Graph graph, unsigned long long) {
  return give(into, reinterpret_cast<cu::GraphExec>(new Graph(*reinterpret_cast<Graph*>(graph))));
}
Result cuGraphLaunch(cu::GraphExec graph, cu::Stream) {
  for (const Step& step : reinterpret_cast<Graph*>(graph)->steps) step();
  return Result::success;
}
Result cuGraphExecDestroy(cu::GraphExec graph) {
  delete reinterpret_cast<Graph*>(graph);
  return Result::success;
}
Result cuGraphDestroy(cu::Graph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return Result::success;
}
Result cuEventCreate(cu::Event* event, unsigned) { return give(event, reinterpret_cast<cu::Event>(new Event{})); }
Result cuEventDestroy(cu::Event event) {
  delete reinterpret_cast<Event*>(event);
  return Result::success;
}
Result cuEventRecord(cu::Event event, cu::Stream) {
  reinterpret_cast<Event*>(event)->at = std::chrono::steady_clock::now();
  return Result::success;
}
Result cuEventQuery(cu::Event) { return Result::success; }
Result cuEventSynchronize(cu::Event) { return Result::success; }
Result cuEventElapsedTime(float* milliseconds, cu::Event from, cu::Event to) {
  return give(milliseconds, std::chrono::duration<float, std::milli>(reinterpret_cast<Event*>(to)->at -
                                                                     reinterpret_cast<Event*>(from)->at)
                                .count());
}

// ---- kernels --------------------------------------------------------------------------------------------------------

Result cuLibraryLoadData(cu::Library* library, const void* image, int*, void**, unsigned, int*, void**, unsigned) {
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return Result::invalid_image;
  const std::string name = new_name("kernel");
  write_below(folder(), name, {static_cast<const char*>(image), size_of_elf(image)});
  const std::filesystem::path path = folder() / name;
  // Kernels name no libraries, and a program that opened attune with dlopen may have libm in attune's scope only.
  const NoFork whole;  // the loader's lists
  static const void* const numbers = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
  static_cast<void>(numbers);
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) refuse_library(path.string(), dlerror());
  std::error_code error;
  if (!options().lineinfo) std::filesystem::remove(path, error);
  return give(library, reinterpret_cast<cu::Library>(new Loaded{opened}));
}
Result cuLibraryUnload(cu::Library library) {
  const NoFork whole;
  dlclose(reinterpret_cast<Loaded*>(library)->library);
  delete reinterpret_cast<Loaded*>(library);
  return Result::success;
}
Result cuLibraryGetKernel(cu::Kernel* kernel, cu::Library library, const char* name) {
  void* const found = dlsym(reinterpret_cast<Loaded*>(library)->library, name);
  return found ? give(kernel, static_cast<cu::Kernel>(found)) : Result::invalid_image;
}
Result cuKernelGetFunction(cu::Function* function, cu::Kernel kernel) {
  return give(function, reinterpret_cast<cu::Function>(kernel));
}
Result cuKernelGetAttribute(int* value, cu::KernelAttribute, cu::Kernel, cu::Device) { return give(value, 0); }
Result cuKernelSetAttribute(cu::KernelAttribute, int, cu::Kernel, cu::Device) { return Result::success; }

/// A copy of a kernel's arguments, which a graph has to keep.
class Arguments {
 public:
  Arguments(const Kernel& kernel, void** given) {
    for (unsigned i = 0; const unsigned bytes = kernel.bytes_of_argument(i); ++i) {
      // The alignment of the widest argument, a tensor map.
      constexpr std::size_t grain = 64;
      held_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(grain, (bytes + grain - 1) / grain * grain)),
                         &std::free);
      std::memcpy(held_.back().get(), given[i], bytes);
      all_.push_back(held_.back().get());
    }
  }
  void* const* get() const { return all_.data(); }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> held_;
  std::vector<void*> all_;
};

/// Runs a launch. One that starts early sees, until it waits, the memory as it was before the previous kernel.
void run_launch(LaunchOf& launch, bool starts_early, cu::Stream stream) {
  const std::lock_guard lock(device_mutex);
  const OfGpu& on = emulated_gpu();
  launch.sms = on.gpu.sms;
  launch.seed = on.gpu.seed + on.launches++;
  launch.end_previous = nullptr;  // of an earlier replay
  std::optional<Early> before = std::exchange(early, std::nullopt);
  if (before && before->stream != stream) before.reset();
  constexpr int first_with_early_start = 90;
  Contents now = on.gpu.arch >= first_with_early_start ? contents() : Contents{};
  if (starts_early && before && !now.empty()) launch.end_previous = put_back(before->sees);
  const Ended ended = run(launch);
  if (!ended.let_next_start || now.empty()) return;
  const bool still_the_same = launch.end_previous && !ended.had_waited;
  early = Early{stream, still_the_same ? std::move(before->sees) : std::move(now)};
}

Result cuLaunchKernelEx(const cu::LaunchConfig* config, cu::Function function, void** arguments, void**) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  LaunchOf launch{.kernel = &kernel,
                  .blocks = {config->grid[0], config->grid[1], config->grid[2]},
                  .threads = static_cast<int>(config->block[0]),
                  .shared_bytes = config->shared_bytes};
  bool starts_early = false;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const int value = config->attributes[i].value[0];
    if (config->attributes[i].key == cu::LaunchAttributeKey::cluster) launch.cluster = value;
    if (config->attributes[i].key == cu::LaunchAttributeKey::early) starts_early = value != 0;
  }
  if (launch.blocks.x % static_cast<unsigned>(launch.cluster) != 0) return Result::invalid_value;
  const cu::Stream stream = config->stream;
  return put(stream, [=, kept = std::make_shared<const Arguments>(kernel, arguments)]() mutable {
    launch.arguments = kept->get();
    run_launch(launch, starts_early, stream);
  });
}

Result cuTensorMapEncodeTiled(void* into, cu::Element element, unsigned rank, void* data, const std::uint64_t* extents,
                              const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t*,
                              cu::Interleave, cu::Swizzle swizzle, cu::Promote, cu::Fill) {
  Map map{.magic = Map::right, .rank = static_cast<std::uint16_t>(rank)};
  using enum codegen::MapElement;
  map.element = element == byte ? 1 : element == f32 ? 4 : 2;
  map.first = static_cast<const std::byte*>(data);
  for (std::size_t i = 0; i < rank; ++i) {
    map.extents[i] = static_cast<std::uint32_t>(extents[i]);
    map.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i + 1 < rank) map.strides[i] = strides[i];
  }
  if (swizzle != cu::Swizzle::b128 || rank > map.extents.size()) return Result::invalid_value;
  std::memcpy(into, &map, sizeof map);
  return Result::success;
}

}  // namespace

const cuda::Found& find_driver() {
  static constinit Once<const cuda::Found> found;
  return found.get([] {
    cuda::Driver out;
#define ATTUNE_CU(function, abi, ...) out.function.raw = &function;
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
    out.version = 13000;
    return cuda::Found{std::move(out), ""};
  });
}

const OfGpu& emulated_gpu() { return static_cast<const OfGpu&>(cuda::platform()); }

}  // namespace attune::runtime::emulated
