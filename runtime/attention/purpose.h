// runtime/attention/purpose.h — describes the call that a kernel is needed for, as a request
#pragma once

#include "compiler/mod.h"
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

}  // namespace attune::runtime
