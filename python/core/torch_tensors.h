// python/core/torch_tensors.h — torch's tensors: their memory, and new ones for results and workspaces
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "python/core/handle.h"

namespace attune::python {

/// Looks up torch; call it before the other functions. `output`(q, v) makes outputs that torch.empty_like(q) cannot;
/// `rows`(q) and `bytes`(count, q) make models for torch.empty_like: of one number a row, and of working memory.
void find_torch(nb::handle output, nb::handle rows, nb::handle bytes);

/// True if all are plain memory: no subclass and no pending negation.
bool plain(const nb::args& tensors);

/// Why Python must make the call.
enum class Why { none, special, elsewhere, large, shape, mistake };

/// The reason, as a word for Python.
nb::object said(Why why);

/// True if the rows of at most four dimensions are whole and touch one another in memory, in any order of the other
/// dimensions: torch.empty_like keeps strides.
bool is_dense(const attune_tensor& t);

/// The memory of a torch tensor, which must outlive this object.
class TorchTensor {
 public:
  /// `special` for what is more than its memory; `elsewhere` for what is neither on the host nor on a GPU, and for f64
  /// of a GPU, which only the host computes.
  Why read(nb::handle tensor);
  /// The same for tensors that torch has just made.
  Why read_memory(nb::handle tensor);

  const attune_tensor* at() const { return &tensor_; }
  double extent(int i) const { return static_cast<double>(tensor_.shape[i]); }
  bool on_device() const { return tensor_.device.device_type != ATTUNE_CPU; }

 private:
  attune_tensor tensor_;
};

/// A tensor like `tensor`, read into `as`; null without an exception on failure.
nb::object made_like(TorchTensor& as, nb::handle tensor);
/// A tensor for the output.
nb::object made_output(TorchTensor& as, const TorchTensor& q, const TorchTensor& v, nb::handle q_given,
                       nb::handle v_given);
/// A tensor of one number a row of q.
nb::object made_rows(TorchTensor& as, const TorchTensor& q, nb::handle q_given);

/// Sets `with` to torch's current stream on the GPU of q, and to working memory there: `memory` owns that. Calls
/// `then` after it has compiled the kernels of a first call. False on failure, without an exception.
bool set_device(attune_with& with, nb::object& memory, const Handle& handle, const attune_call& call,
                nb::handle q_given, const std::function<void()>& then);

/// Starts to compile the backward of a forward that is recorded, once the forward's own kernels are compiled: it would
/// wait for what only the backward needs. The gradients are of q, k, v and, where `wanted`, of the captured tensors.
/// The gradients are assumed to lie in memory as their tensors do, and grad_o as the output.
void start_backward(const attune_attention* attention, const attune_call& forward, const std::vector<bool>& wanted);

/// How many threads torch gives to a call on the host.
int torch_threads();

/// True for calls on the host that are so long that they listen to Ctrl-C, which Python sets up.
bool is_slow(const TorchTensor& q, const TorchTensor& k);

/// The shapes, strides, types and alignment of a call's tensors: equal calls take equal working memory.
std::vector<std::int64_t> key_of(const attune_call& call);

/// The threads of a dense call on the host. `most`() asks torch, which takes time, for how many it may have.
template <class Most>
int workers_of(const attune_call& call, const Most& most) {
  const int worthwhile = attune_worthwhile_workers(&call);
  return worthwhile == 1 ? 1 : std::min(worthwhile, most());
}

}  // namespace attune::python
