// examples/runtime/stream.h — the program's own CUDA stream, from a driver that is opened at run time
#pragma once

#include <attune/tensor.h>

#include <dlfcn.h>

#include <optional>

namespace runtime {

/// Converts to the CUstream of a GPU, so that attune's work is ordered with this program's alone; without a device or a
/// driver to null, the default stream.
class Stream {
 public:
  explicit Stream(std::optional<attune::Device> device) {
    if (!device || !library_) return;
    const auto call = [&](const char* name, auto... arguments) {
      const auto function = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(library_, name));
      return function && function(arguments...) == 0;
    };
    int gpu = 0;
    void* context = nullptr;
    // The primary context, which attune takes too. Flags 0: the stream also waits for the default one, in which attune
    // zeroes new memory.
    if (!call("cuInit", 0U) || !call("cuDeviceGet", &gpu, device->index) ||
        !call("cuDevicePrimaryCtxRetain", &context, gpu) || !call("cuCtxSetCurrent", context) ||
        !call("cuStreamCreate", &stream_, 0U))
      stream_ = nullptr;
  }
  ~Stream() {
    if (stream_) reinterpret_cast<int (*)(void*)>(dlsym(library_, "cuStreamDestroy_v2"))(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator void*() const { return stream_; }

 private:
  void* library_ = dlopen("libcuda.so.1", RTLD_NOW);  // stays open, as attune keeps it
  void* stream_ = nullptr;
};

}  // namespace runtime
