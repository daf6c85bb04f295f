// compiler/trace.h — run the user's lambdas on symbolic coordinates
#pragma once

#include "compiler/mod.h"
#include <attune/attention.h>

namespace attune::compiler {

/// What a Mod's slots stand for.
struct Slots {
  std::vector<Tensor> captures;
  std::vector<std::string> asked;  ///< what each capture's reads called it, before names were made unique
  std::vector<std::shared_ptr<const detail::ParamCell>> params;
};

/// A Mod and what its slots stand for.
struct BoundMod {
  Mod mod;
  Slots slots;
};

/// As the user wrote it.
BoundMod trace(const Attention& attention);

/// The slot that stands for this tensor, if it was captured.
std::optional<std::uint32_t> slot_of(const Slots& slots, const Tensor& tensor);

}  // namespace attune::compiler
