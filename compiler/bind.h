// compiler/bind.h — fix sizes the user declared fixed; shift or permute coordinates (shards, chunks, alignment)
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// Replaces coordinates, lengths and parameters in every expression of a Mod: bind {q: q + 4096} makes the Mod of a
/// shard that starts at 4096, bind {kv: kv_len - 1 - kv} the one of reversed keys, {q_len: 8192} fixes a length.
/// Coordinates do not move under random(seed), which draws by them: an engine gives such a Mod the global ones.
struct Binding {
  std::vector<std::pair<ir::Input, ir::Expr>> inputs;
  std::vector<std::pair<std::uint32_t, double>> params;  ///< slot, value
};
Mod bind(Mod mod, const Binding& binding);

}  // namespace attune::compiler
