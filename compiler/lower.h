// compiler/lower.h — the spine: the steps from what the user wrote to a Mod an engine can use, in order, logged
#pragma once

#include <chrono>

#include "compiler/bind.h"
#include "compiler/simplify.h"
#include "compiler/trace.h"

namespace attune::compiler {

/// What happened on the way, for `explain` and dumps.
struct Steps {
  struct Step {
    std::string name;
    std::string text;  ///< of the Mod afterwards; empty when the step changed nothing the text shows
    std::chrono::nanoseconds took{};
  };
  std::vector<Step> steps;
  std::vector<Rewrite> rewrites;
  bool keep_text = false;
};

/// The whole compiler. Throws Error for the user's mistakes.
Traced lower(const Attention& attention, Steps* steps = nullptr);
Mod lower(Mod mod, Steps* steps = nullptr);

}  // namespace attune::compiler
