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
  std::string first;       ///< what it reads, and where
};

/// Counts at the pairs that are left, as the oracle finds them: in double precision, at the oracle's cost. `written` is
/// what the user wrote; the call is on the host.
OutsideReads outside_reads(const compiler::Mod& written, const Call& call);

/// Throws an Error if there are any, or if a page of the call that a pair which is left needs does not exist.
void refuse_outside_reads(const compiler::Mod& written, const Call& call);

}  // namespace attune::runtime
