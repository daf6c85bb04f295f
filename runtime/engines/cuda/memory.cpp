// runtime/engines/cuda/memory.cpp — device memory, and copies from and to it
#include "runtime/engines/cuda/memory.h"

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime::cuda {
namespace {

/// Frees memory in its context. Results of the driver are ignored: at process exit the driver may already be unloaded,
/// and the memory is then gone too.
struct Free {
  cu::Context context;
  void operator()(void* p) const {
    const Driver& d = driver();
    cu::Context popped = nullptr;
    if (d.cuCtxPushCurrent.raw(context) != cu::Result::success) return;
    d.cuMemFree.raw(reinterpret_cast<cu::Address>(p));
    d.cuCtxPopCurrent.raw(&popped);
  }
};

cu::Address address(const Tensor& t) { return reinterpret_cast<cu::Address>(t.data); }

}  // namespace

std::shared_ptr<void> allocate(int device, std::size_t bytes) {
  const Current current(device);
  const Driver& d = driver();
  cu::Address at = 0;
  const cu::Result result = d.cuMemAlloc.raw(&at, bytes);
  if (result == cu::Result::out_of_memory) return nullptr;
  if (result != cu::Result::success) refuse(result, d.cuMemAlloc.name);
  std::shared_ptr<void> memory(reinterpret_cast<void*>(at), Free{current.context()});
  // Waits, because the array may next be used on a stream that does not wait for this one.
  d.cuMemsetD8Async(at, 0, bytes, nullptr);
  d.cuStreamSynchronize(nullptr);
  return memory;
}

void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream) {
  const Tensor& on_device = from.device.kind == Device::Kind::cuda ? from : to;
  const Current current(on_device.device.index);
  const Driver& d = driver();
  const auto on = static_cast<cu::Stream>(stream);
  // The driver derives the location of each side from its address.
  d.cuMemcpyAsync(address(to), address(from), bytes, on);
  d.cuStreamSynchronize(on);
}

void Pooled::take(const Facts& device, std::size_t bytes) {
  if (!device.pools)
    throw Error("workspace-missing", "the call needs a workspace", {},
                fmt::format("it needs {} bytes, and {} has no stream-ordered memory pools", bytes, device.name),
                "pass a workspace of that many bytes on the device");
  driver().cuMemAllocAsync(&at_, bytes, stream_);
  bytes_ = {reinterpret_cast<std::byte*>(at_), bytes};
}

void Pooled::give_back() { driver().cuMemFreeAsync.raw(at_, stream_); }

bool is_captured(void* stream) { return capturing(static_cast<cu::Stream>(stream)); }

}  // namespace attune::runtime::cuda
