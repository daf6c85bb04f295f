// codegen/gpu_parts.h — a Mod as GPU kernels take it: its expressions, split by level, and facts about them
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "codegen/parts.h"
#include "codegen/plan.h"
#include "compiler/lower.h"
#include "ir/print.h"

namespace attune::codegen {

/// A compiler::Scatter as GPU kernels take it: a term of the gradient of a captured tensor, which each pair adds to.
struct Term {
  /// What its place in the tensor depends on, besides b and h. Terms of one pair with those of others of the same place
  /// are summed before they are added to the tensor's sum; those of `pair` are not.
  enum class Place : std::uint8_t { head, row, col, pair };

  std::uint32_t capture = 0;
  bool by_prob = false;  ///< multiplies what flows to prob, else what flows to the score
  std::vector<compiler::Scatter::Loop> loops;
  std::size_t rank = 0, first = 0;  ///< levels.left holds its indices from `first` on, and then its value
  Place place = Place::pair;
  /// It is a multiple of what flows to the score, by a number that is the same, as is its place, for all pairs of a
  /// distance q - kv of a batch entry and head.
  bool by_distance = false;
};

/// What a backward needs besides the forward's expressions; levels.left holds these too.
struct GradientParts {
  Wanted wanted;  ///< captured tensors whose gradients are asked for, by slot
  bool has_slope = false, delta_of_o = true;
  bool removes = true;  ///< as GradientTraits of cuda/gradient.cuh has it
  std::vector<Term> terms;

  std::size_t count(Term::Place place) const;
  /// True if all terms can be made of sums along diagonals.
  bool by_distance() const;
  /// Terms of the sink's gradient: their indices depend on b and h alone.
  std::vector<compiler::Scatter> of_sink;
};

/// What kernels are chosen by and what sources are written from, derived once for a Mod. `levels.left` holds exponent,
/// what limits leave of the mask, prob, and the limits. Refers to the lowered Mod, which must live as long.
struct GpuParts {
  const compiler::LoweredMod* of = nullptr;
  compiler::Levels levels;
  ir::Expr rest, sink;
  ir::Expr factor;  ///< null: the exponent is more than factor * s
  Traits facts;
  ir::FieldNames fields;
  std::optional<GradientParts> gradient{};  ///< none: of a forward

  const compiler::Mod& mod() const { return of->mod; }
  const compiler::Cover& cover() const { return of->cover; }
  const ir::Expr& exponent() const { return levels.left[0]; }
  const ir::Expr& keep() const { return levels.left[1]; }
  const ir::Expr& prob() const { return levels.left[2]; }
  const ir::Expr& first() const { return levels.left[3]; }
  const ir::Expr& last() const { return levels.left[4]; }
  const ir::Expr& slope() const { return levels.left[5]; }
  const ir::Expr& prob_slope() const { return levels.left[6]; }
};

/// `wanted`: of a backward, the captured tensors whose gradients are asked for; null: of a forward. `keeps_keys`: for
/// kernels that walk queries, so that `listed` is about the lists that these need.
GpuParts gpu_parts(const compiler::LoweredMod& lowered, bool scale_positive, const Wanted* wanted = nullptr,
                   bool keeps_keys = false);
/// Those of a forward's kernel. Where entries have lengths or positions of their own, masks that look at data are asked
/// pair by pair; where results of another call are merged in, there is no sink.
GpuParts forward_parts(const compiler::LoweredMod& lowered, const KernelSpec& spec);
/// Number of times that this process has derived them.
std::size_t gpu_parts_derived();

/// True if the ends of these bands read summaries of captured tensors.
bool reads_summaries(const compiler::Bands& bands, std::size_t captures);

}  // namespace attune::codegen
