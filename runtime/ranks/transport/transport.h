// runtime/ranks/transport/transport.h — what ranks do together: compare what they are about to do, and add up numbers
#pragma once

#include <string_view>

#include "ir/node.h"
#include <attune/ranks.h>

namespace attune::runtime::ranks {

/// Throws the Error `ranks-differ` on every rank unless all have the same digest. `what` they should agree on, in
/// words.
void compare(const Transport& with, const ir::Digest& digest, std::string_view what, void* stream);

/// Adds up f32 or f64 over all ranks in their order, by the transport's own sum or by exchanges.
void sum(const Transport& with, const Tensor& values, void* stream);

}  // namespace attune::runtime::ranks
