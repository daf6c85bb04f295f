// compiler/explain.h — a page of text about the compiler's result for an Attention
#pragma once

#include <string>
#include <vector>

#include "compiler/cover.h"
#include "compiler/lower.h"

namespace attune::compiler {

/// Expressions, what was simplified and why, what a tile keeps, what the softmax makes free, levels, derivatives,
/// times. `steps` should have kept its rewrites; times that are zero are left out.
std::string explain(const LoweredMod& lowered, const Steps& steps);

/// A part of that page: the lines below a title.
struct Section {
  enum class Of { Expressions, Arguments, Rewrites, Cover, Free, Levels, Derivatives, Times };
  Of of;
  std::string title, lines;
};
/// The sections that are not empty, in the order of the page.
std::vector<Section> sections(const LoweredMod& lowered, const Steps& steps);

/// How precise the bands along one axis are: "closed form", perhaps on a condition, "bounds, …" or "no bounds, …".
/// `names` is the cover's signature.
std::string form(const Bands& bands, ir::Input axis, const ir::Signature& names);

/// Bands, what stopped them, the data they read and what the cover varies with, one per line.
std::string explain(const Cover& cover, const ir::Signature& of_mod);

/// A summary of a captured tensor that a cover reads: "run first of doc".
std::string print(const Summary& summary, const ir::Signature& of_mod);

/// `index` and `value` of a scatter as text: "slope[h] += f32(kv - q)", with "for i < 16: " before it for its loops.
std::string print(const Scatter& scatter, const Mod& mod);

}  // namespace attune::compiler
