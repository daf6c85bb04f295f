// codegen/llvm/scatter.h — sums into the gradients of captured tensors, by what their indices vary with
#pragma once

#include "codegen/llvm/pairs.h"

namespace attune::codegen {

/// The scattered parts of one kernel. What goes to one element for a whole call, or for a whole row, is summed in
/// registers that loops carry; what goes to neighbours is added a register at a time; the rest lane by lane.
class Scattering {
 public:
  /// `gradients`: pointers to contiguous f32 by slot.
  Scattering(PairKernels& kernels, const BackwardParts& parts, const PairsCode& pairs, Val gradients);

  /// Registers that a loop over rows carries, and those that one over the columns of a row adds to them.
  std::size_t head_count() const { return heads_.size(); }
  std::size_t row_count() const { return rows_.size(); }

  /// Adds a register of pairs. `ds` and `dp` are what flows from score and from prob, `keep` which pairs are there;
  /// `sums` holds the registers of the head and then those of the row.
  void add(Expressions& emit, Val keep, Val ds, Val dp, std::span<Val> sums);
  void end_row(Val r, std::span<const Val> sums);
  void end(std::span<const Val> sums);

 private:
  using Indices = std::vector<Val>;

  const ir::Expr& index(const Scattered& s, std::size_t i) const { return parts_.levels.left[s.first + i]; }
  const ir::Expr& value(const Scattered& s) const { return parts_.levels.left[s.first + s.rank]; }
  Indices indices(const Scattered& s, Expressions& emit) const;
  Val term(const Scattered& s, Expressions& emit, Val keep, Val ds, Val dp) const;
  void looped(const Scattered& s, Expressions& emit, Val keep, Val ds, Val dp, std::size_t loop);
  void scatter(const Scattered& s, const Indices& at, Val term);
  void scatter_run(const Scattered& s, const Indices& at, Val term);
  void scatter_lanes(const Scattered& s, const Indices& at, Val term);
  void add_one(const Scattered& s, const Indices& at, Val sum);
  void add_at(Val pointer, Val term);
  Val gradient(const Scattered& s) const;
  Val extent(const Scattered& s, std::size_t i) const;
  Val offset(const Scattered& s, const Indices& at, std::size_t from, Val start) const;
  llvm::Function* add_lanes();

  PairKernels& kernels_;
  const BackwardParts& parts_;
  const PairsCode& pairs_;
  Code& code_;
  Val gradients_;
  std::vector<const Scattered*> heads_, rows_, others_;
};

}  // namespace attune::codegen
