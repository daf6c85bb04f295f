// codegen/bound.h — a lower bound on a forward's time on a GPU: products, exponentials, memory
#pragma once

#include <string_view>

#include "codegen/plan.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// A GPU's figures from its data sheet.
struct Card {
  std::string_view name;
  int arch;  ///< compute capability times ten
  int multiprocessors;
  double clock;             ///< Hz, as the data sheet's figures assume
  double bytes_per_second;  ///< memory bandwidth
  int products;             ///< multiply-adds of bf16 or f16 into f32, per multiprocessor and clock
  double by_mma = 1;        ///< the share of `products` that mma.sync reaches

  /// FLOP/s of products of this type by this instruction.
  double flops(DType type, bool exact, Products by) const;
};
/// The GPU whose name is part of `name`; else one of this compute capability; else the newest older one.
const Card& card(int arch, std::string_view name = {});

/// A forward call.
struct Work {
  DType dtype = DType::bf16;
  double visited = 0;  ///< pairs in visited tiles, over all heads
  double d = 0, dv = 0;
  int specials = 1;                     ///< special functions per pair: see special_functions()
  double bytes = 0;                     ///< q, k, v and o, each once
  bool exact = true;                    ///< as in KernelSpec
  Products products = Products::wgmma;  ///< of the kernel
};

/// Operations per pair on the special function units: the softmax's exp2, and the expressions' divisions, square roots,
/// exponentials, logarithms and trigonometry.
int special_functions(const compiler::Mod& mod);

struct Bound {
  double products = 0, exponentials = 0, memory = 0;  ///< lower bounds, in seconds
  double seconds() const;
  std::string_view by() const;  ///< which of the three is largest
};
Bound bound(const Card& card, const Work& work);

}  // namespace attune::codegen
