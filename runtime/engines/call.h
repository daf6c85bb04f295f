// runtime/engines/call.h — a checked call, the input of every engine: its mod, its sizes, its tensors
#pragma once

#include <optional>
#include <span>
#include <variant>

#include <attune/tensor.h>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "compiler/problem.h"
#include "ir/eval.h"

namespace attune::runtime {

/// Reads an element of a captured tensor: indices are clamped to the tensor, types widened to double.
ir::ReadCapture reader(std::span<const Tensor> captures);

class Purpose;

/// A reference to a Forward or to a Backward.
class What {
 public:
  What(const Forward& of) : of_(&of) {}
  What(const Backward& of) : of_(&of) {}

  bool is_forward() const { return of_.index() == 0; }
  const Forward& forward() const { return *std::get<0>(of_); }
  const Backward& backward() const { return *std::get<1>(of_); }
  /// Calls body with the Forward or with the Backward.
  template <class Body>
  auto visit(const Body& body) const {
    return is_forward() ? body(forward()) : body(backward());
  }

 private:
  std::variant<const Forward*, const Backward*> of_;
};

/// A checked call. It owns nothing: the caller keeps everything that it refers to until the engine has returned.
struct Call {
  const compiler::LoweredMod& mod;
  compiler::Args args;  ///< the tensors and numbers of the mod's slots
  const compiler::Problem& problem;
  What what;
  std::optional<bool> exact{};       ///< as Attention::exact
  const Purpose* purpose = nullptr;  ///< describes the call in records and Errors; null: not needed
  /// The sizes of the call that this call is a part of. They choose the kernel, so that each row gets the same bits.
  /// Null: this call is not a part.
  const compiler::Problem* whole = nullptr;

  bool is_forward() const { return what.is_forward(); }
  const Forward& forward() const { return what.forward(); }
  const Backward& backward() const { return what.backward(); }
  const char* name() const { return is_forward() ? "forward" : "backward"; }
  const Tensor& q() const { return is_forward() ? forward().q : backward().q; }
};

/// The Call of `asked`, which binds nothing, or has passed compiler::check_bound with all slots bound.
template <class Asked>
Call call_of(const compiler::LoweredMod& mod, const Asked& asked, const compiler::Problem& problem) {
  return {.mod = mod, .args = compiler::args_of(mod, asked), .problem = problem, .what = asked};
}

}  // namespace attune::runtime
