// runtime/engines/oracle/outside.h — ATTUNE_CHECK=range: counts the reads of captured tensors that a call makes outside
// of them
#pragma once

#include <optional>
#include <string>

#include "runtime/engines/call.h"

namespace attune::runtime {

struct OutsideReads {
  std::int64_t count = 0;  ///< each one is clamped
  std::string name;        ///< of the first: the captured tensor
  std::string first;       ///< the first read and its place
};

/// Counts at the pairs that are kept, which the oracle determines in double precision, at the oracle's cost. `written`
/// is the Mod as the user wrote it; the call is on the host.
OutsideReads outside_reads(const compiler::Mod& written, const Call& call);

/// Throws an Error if there are any.
void refuse_outside_reads(const compiler::Mod& written, const Call& call);

}  // namespace attune::runtime
