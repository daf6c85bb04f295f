// codegen/bound.h — how long a forward takes a GPU at least: its products, its exponentials, its memory
#pragma once

#include <string_view>

#include "compiler/mod.h"

namespace attune::codegen {

/// A card as its data sheet has it.
struct Card {
  std::string_view name;
  int arch;  ///< compute capability times ten
  int multiprocessors;
  double clock;             ///< Hz, at which the data sheet counts
  double bytes_per_second;  ///< of its memory
  int products;             ///< multiply-adds of bf16 or f16 into f32, of a multiprocessor in a clock

  double flops(DType type, bool exact) const;  ///< of products of this type, in a second
};
/// The one whose name is part of `name`, else one of this compute capability, else the newest that is not newer.
const Card& card(int arch, std::string_view name = {});

/// A forward call.
struct Work {
  DType dtype = DType::bf16;
  double visited = 0;  ///< pairs of the tiles that are visited, over all heads
  double d = 0, dv = 0;
  int specials = 1;   ///< special functions of a pair: see special_functions()
  double bytes = 0;   ///< q, k, v and o, each once
  bool exact = true;  ///< as ForwardSpec has it
};

/// exp2 of the softmax, and what the expressions have besides that is evaluated for each pair and done by the special
/// function units: divisions, square roots, exponentials, logarithms, trigonometry.
int special_functions(const compiler::Mod& mod);

struct Bound {
  double products = 0, exponentials = 0, memory = 0;  ///< seconds that each takes at least
  double seconds() const;
  std::string_view by() const;  ///< which of the three that is
};
Bound bound(const Card& card, const Work& work);

}  // namespace attune::codegen
