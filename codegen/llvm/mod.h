// codegen/llvm/mod.h — the user's expressions as vector code: ir::eval in f32, for many lanes at once
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"
#include "compiler/mod.h"
#include "ir/node.h"

namespace attune::codegen {

/// Where expressions are computed. But for `captures`, what no expression reads may be empty. Scalars stand for what is
/// the same in every lane. A vector q or kv holds consecutive positions; kv then begins with a multiple of 4.
struct At {
  Val s, p, b, h, q, kv, q_len, kv_len, origin;
  Val captures, params;  ///< as in Frame
  std::function<Val(ir::Level, std::uint32_t index, ir::Type)> field;
};

/// Emits expressions at one place: what they share is computed once, where it is first met. So whatever code the
/// caller emits between two of them must be reached from the first.
class Expressions {
 public:
  Expressions(Isa isa, std::span<const compiler::CaptureSlot> captures, At at);

  /// f32, i32 or i1; a scalar where `e` does not vary by lane.
  Val operator()(const ir::Expr& e);
  /// Gives p, which no expression has read so far.
  void give_p(Val p) { at_.p = p; }
  /// Emits what in `e` depends on no variable: a loop that binds some finds it done.
  void before_loops(const ir::Expr& e);
  /// Gives the variable of a binder that stands free in expressions to come: the loop of a Scatter.
  void bind(std::uint32_t binder, Val value);

 private:
  /// Values by the innermost binder a node depends on; the last are of closed nodes.
  using Values = std::array<ir::DigestMap<Val>, 33>;

  Val value(const ir::Node& n) const;
  /// The nodes below `root` that depend on binder variable + 1 and on none within; all closed ones for variable = 32.
  /// What closed ones gave is kept; the others are computed anew, as another sum may have had the same binder.
  void emit_below(const ir::Node& root, std::size_t variable);
  void emit(const ir::Node& n);
  Val computed(const ir::Node& n);
  Val input(ir::Input which) const;
  Val param(const ir::Node& n) const;
  Val random(Val seed) const;
  Val read(const ir::Node& n) const;
  Val sum(const ir::Node& n);
  /// By how much an Int changes from lane to lane (but for wrapping), if that is known.
  std::optional<int> step(const ir::Node& n, int depth = 0) const;

  Isa isa_;
  std::span<const compiler::CaptureSlot> captures_;
  At at_;
  Code& code_;
  Values values_;
  std::array<Val, 32> bound_;
};

}  // namespace attune::codegen
