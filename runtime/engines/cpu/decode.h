// runtime/engines/cpu/decode.h — decode: few queries against many keys; keys and values are read once, in place
#pragma once

#include "runtime/engines/cpu/engine.h"

namespace attune::runtime::cpu {

/// Limit on the queries of one head. With more, packing keys and values saves more, through products in registers, than
/// it costs.
constexpr std::int64_t most_decoded = 8;

/// Can keys and values be read in place?
bool can_decode(const Call& call);

/// These compute entries of at most `most_decoded` queries, and none of the others.
std::size_t decode_workspace(const Call& call, const Means& means);
void decode(const Call& call, const Means& means);

}  // namespace attune::runtime::cpu
