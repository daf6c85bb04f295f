// compiler/bind.h — the tensors and numbers of a Mod's slots in a call: bound by the call, else captured; and the Mod
// of calls that are parts
#pragma once

#include "compiler/trace.h"

namespace attune::compiler {

/// The place of a part in the whole call, as expressions see it. The first query needs no member: the part's q_offset
/// gives its position.
struct Slice {
  std::int64_t first_batch = 0, first_head = 0;  ///< entry and query head of the whole call at which the part begins
  std::int64_t more_queries = 0, more_keys = 0;  ///< queries and keys that an entry has in addition to the part's
};
enum class PartSink : std::uint8_t { kept, dropped };

/// The Mod with four more parameters, a Slice's, if its expressions depend on any of them; else the Mod as it is, whose
/// kernels then serve parts too.
BoundMod part_of(BoundMod traced, PartSink sink);

/// The parameters of a call of such a Mod: the user's, then the Slice's.
std::vector<double> params_of(const Mod& part, std::vector<double> users, const Slice& values);

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
