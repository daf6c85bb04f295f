// compiler/lower.h — the spine: the steps from what the user wrote to a Mod an engine can use, in order, logged
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "compiler/cover.h"
#include "compiler/mod.h"
#include "compiler/simplify.h"
#include "compiler/trace.h"

namespace attune::compiler {

/// Reverse mode. `by` is S for a score, P for a prob mod, nothing for a sink. Follows the conventions of semantics.md:
/// the side that a `where`, `min`, `max` or `clamp` did not take gets nothing, not even a NaN.
Derivative derive(const ir::Expr& e, std::optional<ir::Input> by);

/// A log of the steps, for `explain` and dumps.
struct Steps {
  struct Step {
    std::string name;
    std::string text;  ///< the Mod after the step; empty if the step did not change this text
    std::chrono::nanoseconds took{};
    std::size_t nodes = 0;  ///< distinct nodes of all expressions after the step
  };
  std::vector<Step> steps;
  std::vector<Rewrite> rewrites;
  bool keep_text = false;
};

/// Positions stay below 2^30, so that q - kv, q + kv and the like never wrap. Longer sequences are an Error.
inline constexpr std::int64_t max_length = std::int64_t{1} << 30;
ir::Bounds coordinate_bounds();

/// The log entry of tracing, for callers that trace before they lower.
Steps::Step traced_step(const Mod& mod, std::chrono::nanoseconds took, bool keep_text);

/// A Mod that an engine can use, with everything that follows from it alone.
struct LoweredMod : BoundMod {
  ir::Digest digest;  ///< mod.digest()
  Cover cover;
  std::vector<std::uint32_t> dense{};  ///< the slots of the score's copied_reads(), of which a backward may copy rows

  /// True if any pair can be removed.
  bool removes() const { return !ir::is_literal(cover.mask, 1); }
};

/// The whole compiler, in order. Throws Error for the user's mistakes.
LoweredMod lower(const Attention& attention, Steps* steps = nullptr);
LoweredMod lower(BoundMod traced, Steps* steps = nullptr);

}  // namespace attune::compiler
