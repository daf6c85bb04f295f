// compiler/explain.h — what the compiler made of an Attention, as a page of text
#pragma once

#include "compiler/lower.h"

namespace attune::compiler {

/// Expressions, what was simplified and why, what the softmax makes free, levels, derivatives, times. `steps` should
/// have kept its rewrites; times are left out where they are zero.
std::string explain(const Mod& mod, const Steps& steps);

/// `index` and `value` of a scatter as text: "slope[h] += f32(kv - q)", with "for i < 16: " before it for its loops.
std::string print(const Scatter& scatter, const Mod& mod);

}  // namespace attune::compiler
