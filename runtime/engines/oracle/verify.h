// runtime/engines/oracle/verify.h — checks of a call by the oracle: ATTUNE_VERIFY, some rows computed again;
// ATTUNE_CHECK=range, reads outside of captured tensors
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engines/call.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

struct Verified {
  int rows = 0;              ///< how many; all of them if there are no more
  std::uint64_t sample = 0;  ///< selects which rows
  Used used{};               ///< the kernel that computed the result
  bool by_device = false;    ///< true if a device computed the result: its functions and products may be less accurate
};

/// Consecutive calls get different samples, the same ones in each run of a program.
std::uint64_t next_sample();

/// Checks a call on the host. Throws a Bug if a row is wrong by semantics.md. Of a forward, `rows` rows of o, and of
/// lse and max if the call asks for them. Of a backward, dq at `rows` rows of queries, dk and dv at `rows` rows of
/// keys, and the gradients of captured tensors; o and lse are taken as given, since their forward verifies them. Checks
/// that would cost more than the rows themselves are left out: see docs/debugging.md.
void verify(const Call& call, const Verified& which);

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
