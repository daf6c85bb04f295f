// runtime/ranks/plan/mask.h — what makes the masks of two calls the same
#pragma once

#include "compiler/bind.h"
#include "compiler/lower.h"

namespace attune::runtime::ranks {

/// What makes two calls' masks the same: the mask, its parameters and the contents of what it captures.
struct MaskOf {
  ir::Digest mask, data;
  bool operator==(const MaskOf&) const = default;
};
/// Reads what the mask captures, on the host.
MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args);

}  // namespace attune::runtime::ranks
