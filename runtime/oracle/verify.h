// runtime/oracle/verify.h — ATTUNE_VERIFY: some rows of a result, computed again by the oracle and compared
#pragma once

#include <optional>

#include "compiler/problem.h"
#include "runtime/watch/watch.h"

namespace attune::runtime {

struct Verified {
  int rows = 0;                 ///< how many; all of them if there are no more
  std::uint64_t sample = 0;     ///< which
  void* stream = nullptr;       ///< of a call on a device, which is waited for
  Used used{};                  ///< what computed it
  std::optional<bool> exact{};  ///< as Attention::exact
};

/// Of calls one after the other: others each time, the same in each run of a program.
std::uint64_t next_sample();

/// o, and lse and max where they were asked for, at `rows` rows. A Bug where one is wrong, as semantics.md has it.
/// What is on a device is copied to the host.
void verify(const compiler::BoundMod& bound, const Forward& call, const compiler::Problem& problem,
            const Verified& which);
/// dq at `rows` rows of queries, dk and dv at as many of keys. o and lse are taken as they were given: whether they are
/// right is for their forward. What would cost more than rows do is left out: see docs/debugging.md.
void verify(const compiler::BoundMod& bound, const Backward& call, const compiler::Problem& problem,
            const Verified& which);

}  // namespace attune::runtime
