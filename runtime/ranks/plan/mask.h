// runtime/ranks/plan/mask.h — decides whether the masks of two calls are the same
#pragma once

#include "compiler/bind.h"
#include "compiler/lower.h"

namespace attune::runtime::ranks {

/// Two calls have the same mask if these are equal: the mask, its parameters and the contents of its captured tensors.
struct MaskOf {
  ir::Digest mask, data;
  bool operator==(const MaskOf&) const = default;
};
/// Reads the mask's captured tensors, on the host.
MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args);

}  // namespace attune::runtime::ranks
