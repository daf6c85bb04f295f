// runtime/engines/cpu/decode.h — decode: few queries against many keys; keys and values are read once, in place
#pragma once

#include "runtime/engines/cpu/engine.h"

namespace attune::runtime::cpu {

/// Limit on the queries of one head. With more queries, packing keys and values for products in registers saves more
/// time than it costs.
constexpr std::int64_t most_decoded = 8;

/// True if keys and values can be read in place.
bool can_decode(const Call& call);

/// These functions compute only the entries with at most `most_decoded` queries.
std::size_t decode_workspace(const Call& call, const Means& means);
void decode(const Call& call, const Means& means);

}  // namespace attune::runtime::cpu
