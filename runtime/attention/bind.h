// runtime/attention/bind.h — binds a call to its attention and checks it: the result is the input of an engine
#pragma once

#include <memory>

#include <attune/attention.h>

#include "compiler/mod.h"
#include "runtime/attention/lowered.h"
#include "runtime/engines/call.h"
#include "runtime/machine/cache/objects.h"

namespace attune::runtime {

/// The purpose of a call, or of the forward that a backward computes first. Refers to the call, and reads it only to
/// describe it.
class CallPurpose final : public Purpose {
 public:
  enum class Of : std::uint8_t { call, first_forward };

  /// `written`: the Mod as the user wrote it.
  CallPurpose(Of of, const compiler::Mod& written, const Call& call, const Purpose* first = nullptr)
      : Purpose(first), of_(of), written_(written), call_(call) {}
  Text describe() const override;

 private:
  Of of_;
  const compiler::Mod& written_;
  const Call& call_;
};

/// Refers to the request, which must outlive this object.
class Checked {
 public:
  /// Throws an Error for a call that no engine supports. `plan`: set over ranks; the call is then this rank's, and its
  /// problem is the whole call's.
  Checked(const Attention& attention, const What& asked, const detail::Ranks* plan = nullptr);
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

  const Call& call() const { return call_; }
  /// The engine that computes the call: never `automatic`.
  Target target() const { return bound_.target; }
  /// The Mod as the user wrote it.
  const compiler::Mod& written() const { return bound_.lowered->written; }
  const detail::Lowered& lowered() const { return *bound_.lowered; }

 private:
  struct Bound {
    std::shared_ptr<const detail::Lowered> lowered;
    std::shared_ptr<const void> completed;  ///< owns the tensors of `what`; null: the request owns them
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
