// runtime/platform/nvidia/driver.h — NVIDIA's driver, opened by name at run time: its functions, checked, and facts
// about devices
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "codegen/choose/gpu_element.h"

namespace attune::runtime::cuda {

/// The driver's types, as far as they are used. They are declared here so that this builds without CUDA. Layouts and
/// numbers follow the driver's ABI, which does not change.
namespace cu {

using Device = int;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;
using Library = struct CUlib_st*;
using Kernel = struct CUkern_st*;
using Function = struct CUfunc_st*;
using Address = std::uint64_t;

enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  deinitialized = 4,
  stub_library = 34,
  no_device = 100,
  invalid_image = 200,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  unsupported_ptx_version = 222,
  invalid_handle = 400,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  assert_failed = 710,
  launch_failed = 719,
  system_not_ready = 802,
  driver_mismatch = 803,
  stream_capture_unsupported = 900,
  stream_capture_wrong_thread = 908,
};
enum class DeviceAttribute : int {
  sm_count = 16,
  l2_bytes = 38,
  major = 75,
  minor = 76,
  shared_per_sm = 81,
  shared_per_block = 97,
  memory_pools = 115,
};
enum class KernelAttribute : int { static_shared = 1, local_bytes = 3, registers = 4, dynamic_shared = 8 };
enum class Capture : int { none, active, invalidated };
enum class CaptureMode : int { global, thread_local_, relaxed };
using Element = codegen::MapElement;
enum class Interleave : int { none };
enum class Swizzle : int { none, b32, b64, b128 };
enum class Promote : int { none, b64, b128, b256 };
enum class Fill : int { zero };
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_without_time = 2;

enum class LaunchAttributeKey : int {
  cluster = 4,  ///< blocks in x, y and z
  early = 6     ///< the launch may start before the previous kernel has ended
};
struct LaunchAttribute {
  LaunchAttributeKey key;
  int unused = 0;
  int value[16] = {};
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(void*) != 8 || (sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32));

/// Addresses tell which memory each side is in.
enum class MemoryType : int { unified = 4 };
struct Copy2D {
  std::size_t from_x = 0, from_y = 0;
  MemoryType from_type = MemoryType::unified;
  const void* from_host = nullptr;
  Address from = 0;
  void* from_array = nullptr;
  std::size_t from_pitch = 0;
  std::size_t to_x = 0, to_y = 0;
  MemoryType to_type = MemoryType::unified;
  void* to_host = nullptr;
  Address to = 0;
  void* to_array = nullptr;
  std::size_t to_pitch = 0;
  std::size_t width = 0, height = 0;
};
static_assert(sizeof(void*) != 8 || (sizeof(Copy2D) == 128 && offsetof(Copy2D, to) == 88));

}  // namespace cu

inline cu::Address address(const void* p) { return reinterpret_cast<cu::Address>(p); }

/// Throws for a driver result other than success: an Error if the caller can act on it, else a Bug.
[[noreturn]] void refuse(cu::Result result, const char* function);

/// A function of the driver.
template <class... A>
struct DriverFunction {
  const char* name;
  cu::Result (*raw)(A...) = nullptr;

  /// Throws unless the result is success.
  void operator()(A... arguments) const {
    const cu::Result result = raw(arguments...);
    if (result != cu::Result::success) refuse(result, name);
  }
};

struct Driver {
#define ATTUNE_CU(function, abi, ...) DriverFunction<__VA_ARGS__> function{#function};
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
  int version = 0;  ///< the CUDA version, e.g. 12040
};

/// This machine's driver, or the reason why none can be used. Looked for once; the library stays open.
struct Found {
  std::optional<Driver> driver;
  std::string why;
};
const Found& find_nvidia_driver();
/// The driver of the current platform: see platform.h.
const Found& find_driver();
/// Throws an Error if there is none.
const Driver& find_or_refuse_driver();
inline std::atomic<const Driver*> driver_in_use{
    nullptr};  ///< null until it is asked for, after use() of platform.h, and where threads have platforms of their own
inline const Driver& driver() {
  const Driver* const known = driver_in_use.load(std::memory_order_acquire);
  return known ? *known : find_or_refuse_driver();
}

struct Facts {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;
  int sms = 0;
  int shared_per_block = 0, shared_per_sm = 0;  ///< bytes; the most that a kernel may request
  std::int64_t l2_bytes = 0;
  bool pools = false;  ///< memory can be allocated and freed in stream order

  int arch() const { return 10 * major + minor; }
};

/// 0 without a driver.
int device_count();
/// Throws an Error if there is no such device.
const Facts& facts(int index);

/// While this object lives, a context of the device is current: the caller's if it is on that device, else the primary
/// one, which the CUDA runtime and frameworks use.
class Current {
 public:
  explicit Current(int device);
  explicit Current(cu::Context context);  ///< a context that another thread has current
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  cu::Context context() const { return context_; }

 private:
  cu::Context context_ = nullptr;
  bool pushed_ = false;
};

/// True while a graph is being captured from this stream. Nothing may then be loaded or waited for.
bool capturing(cu::Stream stream);

}  // namespace attune::runtime::cuda
