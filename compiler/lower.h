// compiler/lower.h — the spine: the steps from what the user wrote to a Mod an engine can use, in order, logged
#pragma once

#include <chrono>

#include "compiler/cover.h"
#include "compiler/simplify.h"
#include "compiler/trace.h"

namespace attune::compiler {

/// What happened on the way, for `explain` and dumps.
struct Steps {
  struct Step {
    std::string name;
    std::string text;  ///< of the Mod afterwards; empty when the step changed nothing the text shows
    std::chrono::nanoseconds took{};
    std::size_t nodes = 0;  ///< of all expressions afterwards, each content counted once
  };
  std::vector<Step> steps;
  std::vector<Rewrite> rewrites;
  bool keep_text = false;
};

/// Positions stay below 2^30, so that q - kv, q + kv and their like never wrap. Longer sequences are refused.
inline constexpr std::int64_t max_length = std::int64_t{1} << 30;
ir::Bounds coordinate_bounds();

/// The step before the others, for who traces himself.
Steps::Step traced_step(const Mod& mod, std::chrono::nanoseconds took, bool keep_text);

/// A Mod that an engine can use, and all that follows from it alone.
struct LoweredMod : BoundMod {
  ir::Digest digest;  ///< of mod
  Cover cover;

  /// Can any pair be removed?
  bool removes() const { return !ir::is_literal(cover.mask, 1); }
};

/// The whole compiler, in order. Throws Error for the user's mistakes.
LoweredMod lower(const Attention& attention, Steps* steps = nullptr);
LoweredMod lower(BoundMod traced, Steps* steps = nullptr);

}  // namespace attune::compiler
