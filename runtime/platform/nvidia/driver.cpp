// runtime/platform/nvidia/driver.cpp — NVIDIA's driver, opened by name at run time: its functions, checked, and facts
// about devices
#include "runtime/platform/nvidia/driver.h"

#include <array>
#include <deque>
#include <map>
#include <mutex>

#include <dlfcn.h>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/background.h"
#include "runtime/machine/mutex.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::cuda {
namespace {

/// The oldest CUDA version whose driver has all functions used here and can load our cubins.
constexpr int oldest = 12040;

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// A result's name and description, from the driver.
std::string text_of(cu::Result result) {
  const char *name = nullptr, *text = nullptr;
  if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    using Text = cu::Result(cu::Result, const char**);
    if (auto* call = reinterpret_cast<Text*>(dlsym(library, "cuGetErrorName"))) call(result, &name);
    if (auto* call = reinterpret_cast<Text*>(dlsym(library, "cuGetErrorString"))) call(result, &text);
    dlclose(library);
  }
  if (!name) return fmt::format("error {}", static_cast<int>(result));
  return text ? fmt::format("{}: {}", name, text) : std::string(name);
}

Found open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return {std::nullopt, "there is no libcuda.so.1, the driver of an NVIDIA GPU"};
  stop_background_at_exit();
  using Find = cu::Result(const char*, void**, int, std::uint64_t, int*);
  auto* find = reinterpret_cast<Find*>(dlsym(library, "cuGetProcAddress_v2"));
  Driver d;
  const auto look_up = [&](auto& call, int version) {
    // The null stream waits for all other streams, as in the runtime's default.
    constexpr std::uint64_t legacy_stream = 1;
    void* at = nullptr;
    int found = 0;
    if (find(call.name, &at, version, legacy_stream, &found) != cu::Result::success) at = nullptr;
    call.raw = reinterpret_cast<decltype(call.raw)>(at);
    return at != nullptr;
  };
  const std::string old = fmt::format("the driver is older than CUDA {}", version_text(oldest));
  if (!find || !look_up(d.cuDriverGetVersion, 2020)) return {std::nullopt, old};
  if (d.cuDriverGetVersion.raw(&d.version) != cu::Result::success || d.version < oldest)
    return {std::nullopt, d.version ? fmt::format("{}: it is of CUDA {}", old, version_text(d.version)) : old};
#define ATTUNE_CU(function, abi, ...) \
  if (!look_up(d.function, abi))      \
    return {std::nullopt, fmt::format("the driver, of CUDA {}, has no " #function, version_text(d.version))};
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
  if (const cu::Result result = d.cuInit.raw(0); result != cu::Result::success)
    return {std::nullopt, fmt::format("the driver fails to start ({})", text_of(result))};
  return {d, ""};
}

int attribute(const Driver& d, cu::DeviceAttribute which, cu::Device device) {
  int value = 0;
  d.cuDeviceGetAttribute(&value, which, device);
  return value;
}

Facts ask(int index) {
  const Driver& d = driver();
  cu::Device device = 0;
  d.cuDeviceGet(&device, index);
  std::array<char, 256> name{};
  d.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device);
  using enum cu::DeviceAttribute;
  return {.index = index,
          .name = name.data(),
          .major = attribute(d, major, device),
          .minor = attribute(d, minor, device),
          .sms = attribute(d, sm_count, device),
          .shared_per_block = attribute(d, shared_per_block, device),
          .shared_per_sm = attribute(d, shared_per_sm, device),
          .l2_bytes = attribute(d, l2_bytes, device),
          .pools = attribute(d, memory_pools, device) != 0};
}

cu::Device device_of(int index) {
  cu::Device device = 0;
  driver().cuDeviceGet(&device, index);
  return device;
}

/// Each device's primary context, retained from first use until the process ends: releasing the last reference would
/// destroy other users' objects in it.
cu::Context primary(int index) {
  static Mutex mutex;
  const std::lock_guard lock(mutex);
  static std::deque<cu::Context>& retained = *new std::deque<cu::Context>;
  const auto i = static_cast<std::size_t>(index);
  if (retained.size() <= i) retained.resize(i + 1);
  if (!retained[i]) driver().cuDevicePrimaryCtxRetain(&retained[i], device_of(index));
  return retained[i];
}

}  // namespace

void refuse(cu::Result result, const char* function) {
  const std::string text = text_of(result), why = fmt::format("{} gives {}", function, text);
  using enum cu::Result;
  switch (result) {
    case out_of_memory:
      throw Error("device-memory", "the device is out of memory", {}, why,
                  "free device memory, or make the call smaller");
    case no_device:
    case stub_library:
    case system_not_ready:
    case driver_mismatch: throw Error("no-device", "there is no device to compute on", {}, why, "check nvidia-smi");
    case deinitialized:
      throw Error("no-device", "the driver has been shut down", {}, why, "call attune before the process ends");
    case illegal_address:
    case assert_failed:
    case launch_failed:
      throw Error("device-failed", "the device has failed and accepts no more work from this process", {}, why,
                  "a kernel of this process caused it, attune's or another's: run the process under compute-sanitizer, "
                  "which names the kernel");
    case invalid_handle:
    case invalid_context:
      throw Error("bad-stream", "the stream rejects the call", {}, why,
                  "pass a CUstream of the device that the tensors are on, or none");
    default: break;
  }
  if (result >= stream_capture_unsupported && result <= stream_capture_wrong_thread)
    throw Error("stream-capture", "the call cannot be captured into a graph as it is", {}, why,
                "prepare the call before, and capture on a stream of your own");
  throw Bug(why);
}

const Found& find_driver() { return platform().driver(); }

const Found& find_nvidia_driver() {
  static constinit Once<const Found> found;
  return found.get(&open);
}

const Driver& find_or_refuse_driver() {
  const Found& found = find_driver();
  if (!found.driver)
    throw Error("no-device", "there is no GPU to compute on", {}, found.why,
                "install NVIDIA's driver, or compute on the host: leave the tensors there, and take cpu as target");
  remember(*found.driver);
  return *found.driver;
}

int device_count() {
  const Found& found = find_driver();
  int count = 0;
  return found.driver && found.driver->cuDeviceGetCount.raw(&count) == cu::Result::success ? count : 0;
}

const Facts& facts(int index) {
  static Mutex mutex;
  driver();
  const std::lock_guard lock(mutex);
  static auto& all = *new std::map<std::uint64_t, std::deque<Facts>>;
  const int first = platform().first_device;
  std::deque<Facts>& known = all[platform().generation()];
  if (known.empty())
    for (int i = 0, count = device_count(); i < count; ++i) known.push_back(ask(first + i));
  if (index >= first) index -= first;
  if (index < 0 || static_cast<std::size_t>(index) >= known.size())
    throw Error("no-device", fmt::format("there is no device cuda:{}", index), {},
                known.empty() ? "the driver finds no device"
                              : fmt::format("the driver finds {}, counted from cuda:0", known.size()),
                "name one of these; CUDA_VISIBLE_DEVICES sets which devices the process sees");
  return known[static_cast<std::size_t>(index)];
}

Current::Current(int device) {
  facts(device);
  const Driver& d = driver();
  d.cuCtxGetCurrent(&context_);
  if (context_) {
    cu::Device of = 0;
    d.cuCtxGetDevice(&of);
    if (of == device_of(device)) return;
  }
  context_ = primary(device);
  d.cuCtxPushCurrent(context_);
  pushed_ = true;
}

Current::Current(cu::Context context) : context_(context) {
  driver().cuCtxPushCurrent(context_);
  pushed_ = true;
}

Current::~Current() {
  cu::Context popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent.raw(&popped);
}

bool capturing(cu::Stream stream) {
  cu::Capture status{};
  driver().cuStreamIsCapturing(stream, &status);
  return status != cu::Capture::none;
}

}  // namespace attune::runtime::cuda
