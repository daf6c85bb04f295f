// tests/driver/fake_driver.cpp — a libcuda.so.1 that launches nothing: its memory is the host's, its kernels are names
#include "tests/driver/fake_driver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>

#include "runtime/platform/nvidia/driver.h"

namespace attune::tests::fake_driver {
namespace {

namespace cu = runtime::cuda::cu;
using cu::Result;

enum class Index : std::size_t {
#define ATTUNE_CU(function, ...) function,
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
  count
};
constexpr auto count = static_cast<std::size_t>(Index::count);
constexpr std::array<std::string_view, count> names{
#define ATTUNE_CU(function, ...) #function,
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
};

std::array<std::atomic<int>, count> called{};
std::array<std::atomic<int>, count> refused{};
std::mutex mutex;  // guards what follows
std::vector<Launch> launched;
std::vector<Step> given;
int streams_made = 0, events_recorded = 0;
std::function<void(const Launch&, void* const*)> watching;
std::set<cu::Address> live;
int to_record = -1;  // events that will pass before streams are stuck; negative: all
thread_local std::vector<cu::Context> stack;

std::size_t index_of(std::string_view function) {
  for (std::size_t i = 0; i < count; ++i)
    if (names[i] == function) return i;
  std::abort();
}

/// The object behind a driver's handle.
struct Object {
  std::string name;
  bool capturing = false;
  bool stuck = false;
  int number = 0;             ///< of a stream, or of an event's latest record
  Object* library = nullptr;  ///< of a kernel
};
/// Objects not destroyed yet.
std::set<Object*>& objects = *new std::set<Object*>;
template <class Handle>
Handle handle(std::string name = {}) {
  const std::lock_guard lock(mutex);
  return reinterpret_cast<Handle>(*objects.insert(new Object{std::move(name)}).first);
}
template <class Handle>
Object& object(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}
template <class Handle>
Result destroy(Handle handle) {
  const std::lock_guard lock(mutex);
  objects.erase(&object(handle));
  delete &object(handle);
  return Result::success;
}
template <class T>
Result give(T* into, T value) {
  *into = value;
  return Result::success;
}
void* at(cu::Address address) { return reinterpret_cast<void*>(address); }
void tell_step(const char* kernel, std::size_t size, cu::Address to) {
  void* const place = at(to);
  if (watching) watching({.kernel = kernel, .blocks = static_cast<unsigned>(size)}, &place);
}
std::array<Object, std::size(archs)> primaries;
Object legacy_stream;
Object& stream_of(cu::Stream stream) { return stream ? object(stream) : legacy_stream; }
/// The number of a stream; 0 for the default stream, and for handles that tests make up. With the mutex held.
int number_of(cu::Stream stream) {
  const auto found = objects.find(reinterpret_cast<Object*>(stream));
  return found == objects.end() ? 0 : (*found)->number;
}
/// With the mutex held.
void give_step(cu::Stream stream, std::string what) {
  constexpr std::size_t most = 10000;
  if (given.size() < most) given.push_back({number_of(stream), std::move(what)});
}
Result step(cu::Stream stream, std::string what) {
  const std::lock_guard lock(mutex);
  give_step(stream, std::move(what));
  return Result::success;
}
Result numbered_stream(cu::Stream* stream) {
  give(stream, handle<cu::Stream>());
  const std::lock_guard lock(mutex);
  object(*stream).number = ++streams_made;
  return Result::success;
}

// ---- The functions, in the order of driver.def

Result cuInit(unsigned) { return Result::success; }
Result cuDriverGetVersion(int* version) { return give(version, 13000); }
Result cuDeviceGetCount(int* devices) { return give(devices, static_cast<int>(std::size(archs))); }
Result cuDeviceGet(cu::Device* device, int index) { return give(device, index); }
Result cuDeviceGetName(char* name, int room, cu::Device) {
  std::strncpy(name, "a fake", static_cast<std::size_t>(room));
  return Result::success;
}
Result cuDeviceGetAttribute(int* value, cu::DeviceAttribute which, cu::Device device) {
  const int arch = archs[device];
  // From NVIDIA's tables of compute capabilities.
  const int per_sm = arch == 80 ? 164 : arch == 90 || arch == 100 ? 228 : 100;
  using enum cu::DeviceAttribute;
  switch (which) {
    case sm_count: return give(value, 132);
    case l2_bytes: return give(value, 50 << 20);
    case major: return give(value, arch / 10);
    case minor: return give(value, arch % 10);
    case shared_per_sm: return give(value, per_sm << 10);
    case shared_per_block: return give(value, (per_sm - 1) << 10);
    case memory_pools: return give(value, 1);
  }
  return Result::invalid_value;
}

Result cuDevicePrimaryCtxRetain(cu::Context* context, cu::Device device) {
  return give(context, reinterpret_cast<cu::Context>(&primaries[static_cast<std::size_t>(device)]));
}
Result cuCtxGetCurrent(cu::Context* context) { return give(context, stack.empty() ? nullptr : stack.back()); }
Result cuCtxGetDevice(cu::Device* device) {
  if (stack.empty()) return Result::invalid_context;
  return give(device, static_cast<cu::Device>(&object(stack.back()) - primaries.data()));
}
Result cuCtxPushCurrent(cu::Context context) {
  stack.push_back(context);
  return Result::success;
}
Result cuCtxPopCurrent(cu::Context* context) {
  if (stack.empty()) return Result::invalid_context;
  *context = stack.back();
  stack.pop_back();
  return Result::success;
}
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  return give(greatest, -5);
}
Result cuCtxEnablePeerAccess(cu::Context, unsigned) { return Result::success; }

Result take(cu::Address* into, std::size_t bytes) {
  constexpr std::size_t block = 256, most = std::size_t{1} << 32;
  if (bytes > most) return Result::out_of_memory;
  *into = reinterpret_cast<cu::Address>(std::aligned_alloc(block, (bytes + block) / block * block));
  const std::lock_guard lock(mutex);
  live.insert(*into);
  return Result::success;
}
Result give_back(cu::Address address) {
  {
    const std::lock_guard lock(mutex);
    if (!live.erase(address)) return Result::invalid_value;
  }
  std::free(at(address));
  return Result::success;
}
Result cuMemAlloc(cu::Address* into, std::size_t bytes) { return take(into, bytes); }
Result cuMemFree(cu::Address address) { return give_back(address); }
Result cuMemAllocAsync(cu::Address* into, std::size_t bytes, cu::Stream) { return take(into, bytes); }
Result cuMemFreeAsync(cu::Address address, cu::Stream) { return give_back(address); }
Result cuMemcpyAsync(cu::Address to, cu::Address from, std::size_t bytes, cu::Stream stream) {
  tell_step("copy", bytes, to);
  std::memcpy(at(to), at(from), bytes);
  return step(stream, "copies " + std::to_string(bytes) + " bytes");
}
Result cuMemcpy2DAsync(const cu::Copy2D* copy, cu::Stream stream) {
  for (std::size_t i = 0; i < copy->height; ++i)
    std::memcpy(at(copy->to + i * copy->to_pitch), at(copy->from + i * copy->from_pitch), copy->width);
  return step(stream, "copies " + std::to_string(copy->height) + " x " + std::to_string(copy->width) + " bytes");
}
Result cuMemsetD8Async(cu::Address to, unsigned char value, std::size_t bytes, cu::Stream stream) {
  std::memset(at(to), value, bytes);
  return step(stream, "clears " + std::to_string(bytes) + " bytes");
}
Result cuMemsetD32Async(cu::Address to, unsigned value, std::size_t words, cu::Stream stream) {
  tell_step("set", words, to);
  for (std::size_t i = 0; i < words; ++i) static_cast<unsigned*>(at(to))[i] = value;
  return step(stream, "fills " + std::to_string(words) + " words");
}

Result cuStreamCreate(cu::Stream* stream, unsigned) { return numbered_stream(stream); }
Result cuStreamCreateWithPriority(cu::Stream* stream, unsigned, int) { return numbered_stream(stream); }
Result cuStreamWaitEvent(cu::Stream stream, cu::Event event, unsigned) {
  const std::lock_guard lock(mutex);
  give_step(stream, "waits for #" + std::to_string(object(event).number));
  return Result::success;
}
Result cuStreamDestroy(cu::Stream stream) { return destroy(stream); }
Result cuStreamSynchronize(cu::Stream) { return Result::success; }
Result cuStreamQuery(cu::Stream) { return Result::success; }
Result cuStreamIsCapturing(cu::Stream stream, cu::Capture* status) {
  return give(status, stream_of(stream).capturing ? cu::Capture::active : cu::Capture::none);
}
Result cuStreamGetId(cu::Stream stream, unsigned long long* id) {
  const std::lock_guard lock(mutex);
  return give(id, static_cast<unsigned long long>(number_of(stream)));
}
Result cuThreadExchangeStreamCaptureMode(cu::CaptureMode* mode) {
  thread_local cu::CaptureMode of_thread = cu::CaptureMode::global;
  std::swap(of_thread, *mode);
  return Result::success;
}
Result cuStreamBeginCapture(cu::Stream stream, cu::CaptureMode) {
  stream_of(stream).capturing = true;
  return Result::success;
}
Result cuStreamEndCapture(cu::Stream stream, cu::Graph* graph) {
  stream_of(stream).capturing = false;
  return give(graph, handle<cu::Graph>());
}
Result cuGraphInstantiateWithFlags(cu::GraphExec* into, cu::Graph, unsigned long long) {
  return give(into, handle<cu::GraphExec>());
}
Result cuGraphLaunch(cu::GraphExec, cu::Stream) { return Result::success; }
Result cuGraphExecDestroy(cu::GraphExec graph) { return destroy(graph); }
Result cuGraphDestroy(cu::Graph graph) { return destroy(graph); }
Result cuEventCreate(cu::Event* event, unsigned) { return give(event, handle<cu::Event>()); }
Result cuEventDestroy(cu::Event event) { return destroy(event); }
Result cuEventRecord(cu::Event event, cu::Stream stream) {
  const std::lock_guard lock(mutex);
  object(event).number = ++events_recorded;
  give_step(stream, "records #" + std::to_string(events_recorded));
  object(event).stuck = to_record == 0;
  if (to_record > 0) --to_record;
  return Result::success;
}
Result cuEventQuery(cu::Event event) {
  const std::lock_guard lock(mutex);
  return object(event).stuck ? Result::not_ready : Result::success;
}
Result cuEventSynchronize(cu::Event) { return Result::success; }
Result cuEventElapsedTime(float* milliseconds, cu::Event, cu::Event) { return give(milliseconds, 1.0f); }

Result cuLibraryLoadData(cu::Library* library, const void* image, int*, void**, unsigned, int*, void**, unsigned) {
  if (std::memcmp(image, "\177ELF", 4) != 0) return Result::invalid_image;
  return give(library, handle<cu::Library>());
}
Result cuLibraryUnload(cu::Library library) {
  const std::lock_guard lock(mutex);
  std::erase_if(objects, [library](Object* one) {
    if (one != &object(library) && one->library != &object(library)) return false;
    delete one;
    return true;
  });
  return Result::success;
}
Result cuLibraryGetKernel(cu::Kernel* kernel, cu::Library library, const char* name) {
  give(kernel, handle<cu::Kernel>(name));
  object(*kernel).library = &object(library);
  return Result::success;
}
Result cuKernelGetFunction(cu::Function* function, cu::Kernel kernel) {
  return give(function, reinterpret_cast<cu::Function>(kernel));
}
Result cuKernelGetAttribute(int* value, cu::KernelAttribute, cu::Kernel, cu::Device) { return give(value, 0); }
Result cuKernelSetAttribute(cu::KernelAttribute, int, cu::Kernel, cu::Device) { return Result::success; }
Result cuLaunchKernelEx(const cu::LaunchConfig* config, cu::Function function, void** arguments, void**) {
  constexpr std::size_t most = 1000;
  const std::lock_guard lock(mutex);
  if (!objects.contains(&object(function))) return Result::invalid_value;  // it was unloaded
  give_step(config->stream, "launches " + object(function).name);
  if (launched.size() >= most) return Result::success;
  Launch& one = launched.emplace_back();
  one = {.kernel = object(function).name,
         .blocks = config->grid[0] * config->grid[1] * config->grid[2],
         .threads = config->block[0],
         .shared_bytes = config->shared_bytes,
         .stream = config->stream};
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const cu::LaunchAttribute& attribute = config->attributes[i];
    if (attribute.key == cu::LaunchAttributeKey::early) one.early = attribute.value[0] == 1;
    if (attribute.key == cu::LaunchAttributeKey::cluster) one.cluster = static_cast<unsigned>(attribute.value[0]);
  }
  if (watching) watching(one, arguments);
  return Result::success;
}
/// What the map was made of, a word each: its address and rank, extents, strides and sides of a box.
Result cuTensorMapEncodeTiled(void* map, cu::Element, unsigned rank, void* data, const std::uint64_t* extents,
                              const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t*,
                              cu::Interleave, cu::Swizzle, cu::Promote, cu::Fill) {
  constexpr std::size_t first_extent = 2, first_stride = 7, first_side = 11;
  std::array<std::uint64_t, 16> words{};
  words[0] = reinterpret_cast<std::uintptr_t>(data);
  words[1] = rank;
  std::copy_n(extents, rank, words.begin() + first_extent);
  std::copy_n(strides, rank - 1, words.begin() + first_stride);
  std::copy_n(box, rank, words.begin() + first_side);
  std::memcpy(map, words.data(), sizeof words);
  return Result::success;
}

/// Counts a function's calls, and refuses them when told to.
template <Index I, auto F>
struct Watched;
template <Index I, class... A, Result (*F)(A...)>
struct Watched<I, F> {
  static Result call(A... arguments) {
    constexpr auto i = static_cast<std::size_t>(I);
    called[i].fetch_add(1, std::memory_order_relaxed);
    if (const int wanted = refused[i].load(std::memory_order_relaxed)) return static_cast<Result>(wanted);
    return F(arguments...);
  }
};

const std::array<void*, count> table{
#define ATTUNE_CU(function, ...) reinterpret_cast<void*>(&Watched<Index::function, &function>::call),
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU
};
#define ATTUNE_CU(function, abi, ...) static_assert(std::is_same_v<decltype(&function), Result (*)(__VA_ARGS__)>);
#include "runtime/platform/nvidia/driver.def"
#undef ATTUNE_CU

}  // namespace

int calls(std::string_view function) { return called[index_of(function)]; }
int calls_behind_the_back() {
  int all = 0;
  for (const char* function : {"cuMemAlloc", "cuMemFree", "cuStreamSynchronize", "cuEventSynchronize", "cuStreamCreate",
                               "cuLibraryLoadData", "cuDevicePrimaryCtxRetain"})
    all += calls(function);
  return all;
}
std::vector<Launch> launches() {
  const std::lock_guard lock(mutex);
  return launched;
}
std::vector<Step> steps() {
  const std::lock_guard lock(mutex);
  return given;
}
void add_step(void* stream, std::string what) { step(static_cast<cu::Stream>(stream), std::move(what)); }
void watch(std::function<void(const Launch&, void* const*)> step) {
  const std::lock_guard lock(mutex);
  watching = std::move(step);
}
void forget() {
  for (auto& n : called) n = 0;
  const std::lock_guard lock(mutex);
  launched.clear();
  given.clear();
}
void refuse(std::string_view function, int result) { refused[index_of(function)] = result; }
std::vector<std::string_view> functions() { return {names.begin(), names.end()}; }
int live_memory() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(live.size());
}
void stick(int events) {
  const std::lock_guard lock(mutex);
  to_record = events;
}
int contexts() { return static_cast<int>(stack.size()); }

}  // namespace attune::tests::fake_driver

// The symbols that attune looks up by name.
extern "C" {
using attune::runtime::cuda::cu::Result;

Result cuGetProcAddress_v2(const char* name, void** at, int, std::uint64_t, int* found) {
  namespace fake = attune::tests::fake_driver;
  *found = 0;
  for (std::size_t i = 0; i < fake::count; ++i)
    if (fake::names[i] == name) {
      *at = fake::table[i];
      return Result::success;
    }
  return Result::invalid_value;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == Result::success ? "CUDA_SUCCESS" : "CUDA_ERROR";
  return Result::success;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "as the test wants it";
  return Result::success;
}
}
