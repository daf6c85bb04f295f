// python/core/torch/call.h — calls with torch's tensors, stream, memory and threads; those that its autograd records
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "python/core/handle.h"
#include "python/core/torch/tensors.h"

namespace attune::python {

/// Functions of torch and of attune.torch, by name: see attune/torch/_record.py. False if torch has not the C ABI of
/// its tensors. Call it before the other functions.
bool find_torch(const nb::dict& functions);

/// True if all are plain memory: no subclass and no pending negation.
bool plain(const nb::args& tensors);

/// The fixed split size for torch's `num_splits`, where a call has so many rows: queries times the heads that share
/// keys.
std::int64_t split_size(std::int64_t splits, std::int64_t rows);

/// An attention and its integers, for kernels that are called with tensors alone.
struct Entry {
  std::shared_ptr<SharedAttention> attention;
  std::vector<double> ints{};
};

/// The results of a forward.
struct Results {
  Made out{}, lse{}, largest{};

  /// Makes them for a call whose other tensors are set, and adds them to the call. The Results must not move then.
  void make(attune_call& call, bool with_lse, bool with_max);
};

/// Runs a call whose tensors, captures and integers are set, with torch's stream, memory and threads. `compiled`() runs
/// once the kernels of a first call on a GPU are compiled. Needs no GIL.
attune_error* run(SharedAttention& attention, attune_call& call, attune_with& with,
                  const std::function<void()>& compiled);

/// Starts to compile the backward of a recorded forward. Call it once the forward's own kernels are compiled: earlier,
/// the forward would wait for kernels that only the backward needs. The gradients are of q, k, v and, where `wanted`,
/// of the captured tensors. The gradients are assumed to lie in memory as their tensors do, and grad_o as the output.
void start_backward(const attune_attention* attention, const attune_call& forward, const std::vector<bool>& wanted);

/// Calls of an attention with Python's tensors.
class TorchCall {
 public:
  /// `of`: an Attention.
  TorchCall(nb::object of, Handle& handle, const nb::tuple& ints);

  /// The output, the lse and the largest score; None for each that is not wanted. `recorded`: gradients will be wanted.
  /// The output alone if torch's own autograd has recorded it, as it does where neither of the others is wanted and
  /// nothing is captured. `more`: a dict of a call's further tensors and options, as of Attention.run, or None.
  ///
  /// A str says why there are no results: "special" (a tensor is more than its memory), or "far" (f64 on a GPU, which
  /// only the host computes).
  nb::object attend(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& captures, bool with_lse, bool with_max,
                    bool recorded, nb::handle more) const;

  /// `first` times None, then the gradients, None where `wanted` (also from `first` on) is false; or "far". `saved`: q,
  /// k, v, the output, the lse, the captured tensors.
  nb::object gradients(nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved, const nb::tuple& wanted,
                       std::size_t first, nb::handle more) const;

  const Entry& entry() const { return entry_; }

 private:
  class EagerCall;

  nb::object kept_;  ///< the Attention
  const Handle& handle_;
  Entry entry_;
  mutable nb::object keeper_{};  ///< as of record()
};

/// How torch's own autograd records calls. `op`: an operator of recorded calls; `efficient`: torch's function for the
/// one that the CPU has as well, which takes less time, or None; `hooks`: its function that gives the hooks of saved
/// tensors; `from_dlpack`: torch's.
void record_by(nb::object op, nb::object efficient, nb::object hooks, nb::object from_dlpack);

/// The output of a call, recorded by torch's own autograd. Not valid if that cannot be. `keeper`: a tensor that owns
/// the entry, which the graph saves; made where it is not valid.
nb::object record(const std::array<nb::handle, 3>& qkv, nb::object& keeper, const Entry& entry, bool on_gpu);

/// The entry in a tensor that comes to an operator as its attn_bias; throws for any other tensor.
const Entry& entry_in(Shim::Tensor keeper);

}  // namespace attune::python
