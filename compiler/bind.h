// compiler/bind.h — what a Mod's slots stand for in a call: what the call binds, else what was captured
#pragma once

#include "compiler/trace.h"

namespace attune::compiler {

/// What the slots of a Mod stand for in one call. Refers to the memory of the call or of the Mod's Slots.
struct Args {
  std::span<const Tensor> captures;
  std::vector<double> params;  ///< as kernels read them: those that are Floats are rounded to f32
};

/// Where the spans are not empty they have an entry for each slot.
Args args(const BoundMod& bound, std::span<const Tensor> captures = {}, std::span<const double> params = {});
/// Of a call that binds nothing, or has passed `check_bound` with nothing left open.
template <class Call>
Args args_of(const BoundMod& bound, const Call& call) {
  return args(bound, call.captures, call.params);
}

/// Throws an Error unless the call binds as many captures and parameters as there are, of their kinds and ranks. A call
/// may leave a capture open that has a tensor already. True if it does so.
bool check_bound(const BoundMod& bound, std::span<const Tensor> captures, std::span<const double> params);
/// The captures of such a call, with those that it leaves open.
std::vector<Tensor> filled(const Slots& slots, std::span<const Tensor> captures);

/// Is this the gradient of the capture in that slot?
bool is_of(const Backward::Captured& gradient, const Args& args, std::uint32_t slot);

}  // namespace attune::compiler
