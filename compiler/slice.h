// compiler/slice.h — a Mod for calls that are parts of a larger one: some of its batch entries, heads and queries
#pragma once

#include "compiler/trace.h"

namespace attune::compiler {

/// Where a part lies in the whole call, as expressions see it. Queries need nothing here: the part's q_offset tells.
struct Slice {
  std::int64_t first_batch = 0, first_head = 0;  ///< which entry and query head the part's first ones are
  std::int64_t more_queries = 0, more_keys = 0;  ///< that an entry has beyond the part's
};
enum class PartSink : std::uint8_t { kept, dropped };

/// The Mod with four more parameters, a Slice's, if its expressions depend on any of them; else the Mod as it is, whose
/// kernels then serve parts too.
BoundMod part_of(BoundMod traced, PartSink sink);

/// The parameters of a call of such a Mod, behind those of the user.
std::vector<double> params_of(const Mod& part, std::vector<double> users, const Slice& values);

}  // namespace attune::compiler
