// compiler/slice.h — a Mod for calls that are parts of a larger one: some of its batch entries, heads and queries
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

}  // namespace attune::compiler
