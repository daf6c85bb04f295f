// runtime/engines/oracle/verify.h — ATTUNE_VERIFY: computes some rows of a result again with the oracle and compares
// them
#pragma once

#include <optional>

#include "compiler/problem.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

struct Verified {
  int rows = 0;                 ///< how many; all of them if there are no more
  std::uint64_t sample = 0;     ///< selects which rows
  void* stream = nullptr;       ///< of a call on a device; it is waited for
  Used used{};                  ///< what computed the result
  std::optional<bool> exact{};  ///< as in Attention::exact
};

/// Consecutive calls get different samples, the same ones in each run of a program.
std::uint64_t next_sample();

/// Checks `rows` rows of o, and of lse and max if the call asks for them. Throws a Bug if one is wrong by semantics.md.
/// Tensors on a device are copied to the host.
void verify(const compiler::BoundMod& bound, const Forward& call, const compiler::Problem& problem,
            const Verified& which);
/// Checks dq at `rows` rows of queries, dk and dv at `rows` rows of keys, and the gradients of captured tensors. o and
/// lse are taken as given; their forward verifies them. Checks that would cost more than rows do are left out: see
/// docs/debugging.md.
void verify(const compiler::BoundMod& bound, const Backward& call, const compiler::Problem& problem,
            const Verified& which);

}  // namespace attune::runtime
