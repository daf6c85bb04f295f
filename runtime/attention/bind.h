// runtime/attention/bind.h — a call bound to its attention and checked: what engines take, with all that it refers to
#pragma once

#include <memory>

#include <attune/attention.h>

#include "runtime/attention/lowered.h"
#include "runtime/attention/purpose.h"
#include "runtime/engines/call.h"

namespace attune::runtime {

/// Refers to what was asked, which must outlive it.
class Checked {
 public:
  /// Throws an Error for a call that no engine takes. `plan`: over ranks; the call is this rank's, and its problem that
  /// of all.
  Checked(const Attention& attention, const What& asked, const detail::Ranks* plan = nullptr);
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

  const Call& call() const { return call_; }
  /// The engine that computes it: never `automatic`.
  Target target() const { return bound_.target; }
  /// The Mod as the user wrote it.
  const compiler::Mod& written() const { return bound_.lowered->written; }
  const detail::Lowered& lowered() const { return *bound_.lowered; }

 private:
  struct Bound {
    std::shared_ptr<const detail::Lowered> lowered;
    std::shared_ptr<const void> completed;  ///< what owns the tensors of `what`; null: what was asked does
    What what;
    compiler::Problem problem;
    Target target;
  };
  template <class Asked>
  static Bound bind(const Attention& attention, const Asked& asked, const detail::Ranks* plan);

  Bound bound_;
  CallPurpose of_first_forward_, of_call_;
  Call call_;
};

}  // namespace attune::runtime
