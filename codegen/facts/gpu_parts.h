// codegen/facts/gpu_parts.h — a Mod as GPU kernels take it: its expressions, split by level, and facts about them
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "codegen/choose/plan.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/sums.cuh"
#include "codegen/facts/ds_term.h"
#include "codegen/facts/parts.h"
#include "compiler/lower.h"
#include "ir/print.h"

namespace attune::codegen {

// ---- factors --------------------------------------------------------------------------------------------------------

/// log2(e) * core(scale * s) in real arithmetic. Factors that are constant per head are collected, merged, and carried
/// down into sums (not into conditions of choices), so that they multiply terms per head, row or column only that
/// often:
///   30 * tanh(s / 30)           ->  43.28 * tanh(s * (scale / 30))
///   s + slope[h] * f32(kv - q)  ->  s * (1.44 * scale) + (slope[h] * 1.44) * f32(kv - origin)
ir::Expr exponent(const ir::Expr& core, const ir::Expr& scale);

/// The same for a value that is not an exponent, a prob mod's for example.
ir::Expr gathered(const ir::Expr& e);

// ---- the largest part without s -------------------------------------------------------------------------------------

/// An exponent that is a function of s plus `term`, which varies along a row. Null: it is not.
struct Peaked {
  ir::Expr term;
  Peak peak = Peak::unknown;
};
/// Of the exponent, the first of `levels.element`.
Peaked peaked(const compiler::Levels& levels);

/// mask == (first <= kv && kv <= last && rest). A limit is an Int that does not depend on kv; null: no limit.
struct Limits {
  ir::Expr first, last, rest;
};
Limits limits_of(const ir::Expr& mask);

/// A compiler::Scatter as GPU kernels take it: a term of the gradient of a captured tensor, to which each pair adds.
struct Term {
  using Sum = TermSum;

  std::uint32_t capture = 0;
  bool by_prob = false;   ///< multiplies the gradient of the probability, else that of the score
  bool is_slope = false;  ///< the factor is that of s, as of a table under a softcap: sums of dS have it already
  std::vector<compiler::Scatter::Loop> loops;
  std::size_t rank = 0, first = 0;  ///< levels.element holds its indices from `first` on, and then its value
  Sum parts = Sum::pair;            ///< in kernels that compute a part of a backward
  Sum whole = Sum::pair;            ///< in kernels that compute all of it
  std::size_t own = 0;              ///< levels.element holds expressions that only `whole` needs from here on
};

/// What a backward needs in addition to the forward's expressions, all in levels.element.
struct GradientParts {
  Wanted wanted;  ///< captured tensors whose gradients are asked for, by slot
  bool has_slope = false;
  double delta_degree = 1;  ///< a row's delta is this times dO . O; 0: a sum over the row's pairs
  bool removes = true;      ///< as in GradientTraits of cuda/contract/gradient.cuh
  std::vector<Term> terms;
  std::vector<DsTerm> ds{};  ///< the terms that are summed by `ds` in a whole backward, in their order

  /// The terms that a kernel for a whole backward (or, not `whole`, for a part of it) sums in this way.
  std::vector<const Term*> summed_by(Term::Sum sum, bool whole) const;
  /// True if this kernel of a whole backward sums some.
  bool asks(Summers kernel) const;
  /// True if a whole backward computes the tensor's gradient from stored dS.
  bool is_of_ds(std::uint32_t slot) const;
  /// True if it sums any tensor's gradient exactly.
  bool sums_exactly() const;
  /// Terms of the sink's gradient: their indices depend only on b and h.
  std::vector<compiler::Scatter> of_sink;
};

/// What kernels are chosen by and what sources are written from, derived once for a Mod. `levels.element` holds the
/// exponent, the mask without its limits, prob, and the limits; in a backward, what it needs; then, with facts.drops,
/// dropout's seed, share and factor. Refers to the lowered Mod, which must
/// outlive it.
struct GpuParts {
  const compiler::LoweredMod* of = nullptr;
  compiler::Levels levels;
  ir::Expr rest, sink;
  ir::Expr factor;  ///< null: the exponent is not factor * s
  ir::Expr term;    ///< where facts.peak says where it is largest; or null
  /// Parts of the exponent, or null: what a kernel may compute once a distance, see distant_part(); and the tanh that
  /// it may compute itself, see only_tanh().
  ir::Expr distant, tanh;
  std::vector<ir::Expr> copied;  ///< those that it may copy tile by tile, see copied_reads()
  Traits facts;
  ir::FieldNames fields;
  std::size_t dropped = 0;                  ///< with facts.drops: the index of the seed
  std::optional<GradientParts> gradient{};  ///< none for a forward

  const compiler::Mod& mod() const { return of->mod; }
  const compiler::Cover& cover() const { return of->cover; }
  const ir::Expr& exponent() const { return levels.element[0]; }
  const ir::Expr& keep() const { return levels.element[1]; }
  const ir::Expr& prob() const { return levels.element[2]; }
  const ir::Expr& first() const { return levels.element[3]; }
  const ir::Expr& last() const { return levels.element[4]; }
  const ir::Expr& slope() const { return levels.element[5]; }
  const ir::Expr& prob_slope() const { return levels.element[6]; }
  const ir::Expr& drop_seed() const { return levels.element[dropped]; }
  const ir::Expr& drop_share() const { return levels.element[dropped + 1]; }
  const ir::Expr& drop_factor() const { return levels.element[dropped + 2]; }
};

/// `wanted`: the captured tensors whose gradients a backward computes; null for a forward. `keeps_keys`: for kernels
/// that iterate over queries, so that `listed` refers to lists of tiles of queries. `may_store`: gradients of dense
/// biases may be made of stored dS.
GpuParts gpu_parts(const compiler::LoweredMod& lowered, bool scale_positive, const Wanted* wanted = nullptr,
                   bool keeps_keys = false, bool may_store = true);
/// The parts for a forward's kernel. If entries have their own lengths or positions, masks that read data are evaluated
/// pair by pair; if results of another call are merged in, there is no sink.
GpuParts forward_parts(const compiler::LoweredMod& lowered, const KernelSpec& spec);
/// Number of times that this process has derived GpuParts.
std::size_t gpu_parts_derived();

/// True if the ends of these bands read summaries of captured tensors.
bool reads_summaries(const compiler::Bands& bands, std::size_t captures);

}  // namespace attune::codegen
