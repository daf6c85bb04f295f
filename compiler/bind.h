// compiler/bind.h — the tensors and numbers of a Mod's slots in a call: bound by the call, else captured
#pragma once

#include "compiler/trace.h"

namespace attune::compiler {

/// The tensors and numbers of a Mod's slots in one call. Refers to the memory of the call or of the Mod's Slots.
struct Args {
  std::span<const Tensor> captures;
  std::vector<double> params;  ///< as kernels read them: Floats are rounded to f32
};

/// Each span is empty or has an entry for each slot.
Args args(const BoundMod& bound, std::span<const Tensor> captures = {}, std::span<const double> params = {});
/// The Args of a call that binds nothing, or that has passed `check_bound` with all slots bound.
template <class Call>
Args args_of(const BoundMod& bound, const Call& call) {
  return args(bound, call.captures, call.params);
}

/// Throws an Error unless the call binds as many captures and parameters as there are, of their kinds and ranks. A call
/// may omit a capture that already has a tensor. Returns true if the call omits one.
bool check_bound(const BoundMod& bound, std::span<const Tensor> captures, std::span<const double> params);
/// The captures of such a call, including the ones that it omits.
std::vector<Tensor> filled(const Slots& slots, std::span<const Tensor> captures);

/// True if this is the gradient of the capture in that slot.
bool is_of(const Backward::Captured& gradient, const Args& args, std::uint32_t slot);

}  // namespace attune::compiler
