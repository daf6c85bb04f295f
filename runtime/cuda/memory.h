// runtime/cuda/memory.h — memory of a device, and copies from and to it
#pragma once

#include <cstddef>
#include <memory>

#include <attune/tensor.h>

namespace attune::runtime::cuda {

/// Zeroed bytes of a device; null where it has not as many left. They may outlive the driver: then the driver has freed
/// them.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

/// One of both is on a device. Behind what `stream` has to do, and done when this returns.
void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream);

/// Whether what is put on this CUstream becomes part of a graph: then nothing can be waited for.
bool is_captured(void* stream);

}  // namespace attune::runtime::cuda
