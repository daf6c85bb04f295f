// codegen/plan.h — which kernel, how its tile is cut, and the facts about a Mod that a kernel is chosen by
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/cover.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// Which kernel, and how its tile is cut. `kernel` is a file of codegen/cuda without its ending and the kernel in it.
struct ForwardPlan {
  std::string kernel;
  DType dtype = DType::bf16, out = DType::bf16;  ///< of q, k and v; of o
  int m = 128, n = 128, d = 128, dv = 128, stages = 2;
  int heads = 1;               ///< query heads of a key head that share a tile: 1, 2, 4 or 8
  bool max = false;            ///< the rows' maxima are asked for
  bool packed = false;         ///< sequences of different lengths, by their starts
  bool scale_positive = true;  ///< the call's scale is 0 or more
  bool exact = false;          ///< functions within 2 ulp (see ops.cuh) rather than the fast ones
  bool wide = false;           ///< offsets into captured tensors need more than 32 bits
  std::vector<std::pair<std::string, int>> traits{};  ///< further members of Tile, that this kernel knows

  /// Of a tile.
  int queries() const { return m / heads; }
};

/// What the traits of codegen/cuda/mod.cuh will say of this Mod: what to choose a kernel by.
struct ForwardFacts {
  bool scaled = false, bounded = false, masked = false, has_prob = false, linear_prob = true, has_sink = false;
  bool listed = false;        ///< the launch must hand in lists of tiles, made by cover_source's kernel
  bool shares_tiles = false;  ///< heads can: neither the mask nor what is read for a column varies with them
};
ForwardFacts forward_facts(const compiler::Mod& mod, const compiler::Cover& cover, bool scale_positive);

}  // namespace attune::codegen
