// codegen/gpu_parts.h — a Mod as GPU kernels take it: its expressions, split by level, and facts about them
#pragma once

#include <cstddef>

#include "codegen/plan.h"
#include "compiler/lower.h"
#include "ir/print.h"

namespace attune::codegen {

/// What kernels are chosen by and what pages are written from, derived once for a Mod. `levels.left` holds exponent,
/// what limits leave of the mask, prob, and the limits. Refers to the lowered Mod, which must live as long.
struct GpuParts {
  const compiler::LoweredMod* of = nullptr;
  compiler::Levels levels;
  ir::Expr rest, sink;
  ir::Expr factor;  ///< null: the exponent is more than factor * s
  bool has_first = false, has_last = false, has_keep = false, keeps_by_fields = false;
  ModFacts facts;
  float most = 0;
  ir::FieldNames fields;

  const compiler::Mod& mod() const { return of->mod; }
  const compiler::Cover& cover() const { return of->cover; }
  const ir::Expr& exponent() const { return levels.left[0]; }
  const ir::Expr& keep() const { return levels.left[1]; }
  const ir::Expr& prob() const { return levels.left[2]; }
  const ir::Expr& first() const { return levels.left[3]; }
  const ir::Expr& last() const { return levels.left[4]; }
};

GpuParts gpu_parts(const compiler::LoweredMod& lowered, bool scale_positive);
/// How often this process has derived them.
std::size_t gpu_parts_derived();

/// Do the ends of these bands read summaries of captured tensors?
bool reads_summaries(const compiler::Bands& bands, std::size_t captures);

}  // namespace attune::codegen
