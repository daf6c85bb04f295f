// compiler/trace.h — run the user's lambdas on symbolic coordinates
#pragma once

#include "compiler/mod.h"
#include <attune/attention.h>

namespace attune::compiler {

/// The tensors and parameters that a Mod's slots refer to.
struct Slots {
  std::vector<Tensor> captures;
  std::vector<std::string> asked;  ///< each capture's name as the user gave it, before names are made unique
  std::vector<std::shared_ptr<const detail::ParamCell>> params;
};

/// A Mod, and the tensors and parameters that its slots refer to.
struct BoundMod {
  Mod mod;
  Slots slots;
};

/// The Mod as the user wrote it.
BoundMod trace(const Attention& attention);

}  // namespace attune::compiler
