// runtime/cpu/decode.h — few queries against many keys: keys and values are read once, in place
#pragma once

#include "runtime/cpu/engine.h"

namespace attune::runtime::cpu {

/// Whether a forward has so few queries that packing keys and values would cost more than it saves.
bool decodes(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem);

std::size_t decode_workspace(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                             const Means& means);
void decode(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
            const Means& means);

}  // namespace attune::runtime::cpu
