// runtime/engines/oracle/verify.h — ATTUNE_VERIFY: computes some rows of a result again with the oracle and compares
// them
#pragma once

#include <cstdint>

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

}  // namespace attune::runtime
