// codegen/llvm/mod.h — the user's expressions as vector code: ir::eval in f32, for many lanes at once, with the
// language's random numbers
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

// ---- random numbers (ir/eval.h) -------------------------------------------------------------------------------------

struct Coordinates {
  Val kv, q, head, batch;
};
/// ir::random for each lane. A vector kv holds consecutive positions, 4 n of them; if the first is a multiple of 4,
/// they cost a quarter.
Val random(Val seed, const Coordinates& at);
/// ir::kept for each lane. If the first position is a multiple of the number of lanes, up to 16 lanes cost one block.
Val kept(Val seed, Val n, const Coordinates& at);

// ---- expressions ----------------------------------------------------------------------------------------------------

/// The inputs of expressions. All but `captures` may be empty if no expression reads them. A scalar is the same in
/// every lane. A vector q or kv holds consecutive positions; a vector kv begins at a multiple of 4.
struct At {
  Val s, p, b, h, q, kv, q_len, kv_len, origin;
  Val captures, params;  ///< as in Frame
  std::function<Val(ir::Level, std::uint32_t index, ir::Type)> field;
};

/// Emits expressions at one place. Shared parts are computed once, where they first appear, so the first expression's
/// code must dominate all code that the caller emits between and after.
class Expressions {
 public:
  Expressions(Isa isa, std::span<const compiler::CaptureSlot> captures, At at);

  /// f32, i32 or i1; a scalar where `e` does not vary by lane.
  Val operator()(const ir::Expr& e);
  /// Sets p, which no expression has read so far.
  void give_p(Val p) { at_.p = p; }
  /// Emits the nodes of `e` that depend on no variable, so that later loops do not contain them.
  void before_loops(const ir::Expr& e);
  /// Sets the variable of a binder that is free in later expressions: the loop of a Scatter.
  void bind(std::uint32_t binder, Val value);

 private:
  /// Values by the innermost binder a node depends on; the last entry is for closed nodes.
  using Values = std::array<ir::DigestMap<Val>, 33>;

  Val value(const ir::Node& n) const;
  /// Emits the nodes below `root` that depend on binder variable + 1 and on none further in; for variable = 32, all
  /// closed nodes. Keeps the values of closed nodes; computes the others anew, as another sum may use the same binder.
  void emit_below(const ir::Node& root, std::size_t variable);
  void emit(const ir::Node& n);
  Val computed(const ir::Node& n);
  Val input(ir::Input which) const;
  Val param(const ir::Node& n) const;
  Coordinates drawn_at() const;
  Val read(const ir::Node& n) const;
  Val sum(const ir::Node& n);
  /// The change of an Int from lane to lane (except where it wraps), if known.
  std::optional<int> step(const ir::Node& n, int depth = 0) const;

  Isa isa_;
  std::span<const compiler::CaptureSlot> captures_;
  At at_;
  Code& code_;
  Values values_;
  std::array<Val, 32> bound_;
};

}  // namespace attune::codegen
