// codegen/llvm/scatter.h — adds to the gradients of captured tensors, in a way that suits how their indices vary
#pragma once

#include "codegen/llvm/pairs.h"

namespace attune::codegen {

/// The scattered terms of one kernel. Terms for one element throughout a call, or throughout a row, are summed in
/// registers that loops carry; terms for neighbouring elements are added a register at a time; the rest lane by lane.
class Scattering {
 public:
  /// `gradients`: pointers to contiguous f32 by slot.
  Scattering(PairKernels& kernels, const BackwardParts& parts, const PairsCode& pairs, Val gradients);

  /// The registers that a loop over rows carries, and the additional ones of a loop over a row's columns.
  std::size_t head_count() const { return heads_.size(); }
  std::size_t row_count() const { return rows_.size(); }

  /// Adds a register of pairs. `ds` and `dp` are the gradients of score and of prob, `keep` says which pairs are kept;
  /// `sums` holds the head's registers, then the row's.
  void add(Expressions& emit, Val keep, Val ds, Val dp, std::span<Val> sums);
  void end_row(Val r, std::span<const Val> sums);
  void end(std::span<const Val> sums);

 private:
  using Indices = std::vector<Val>;

  const ir::Expr& index(const Scattered& s, std::size_t i) const { return parts_.levels.element[s.first + i]; }
  const ir::Expr& value(const Scattered& s) const { return parts_.levels.element[s.first + s.rank]; }
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
