// codegen/kind.h — kinds of calls: what is fastest for one call is fastest for others of its kind
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "codegen/plan.h"

namespace attune::codegen {

/// Which tiles of keys a tile of queries visits.
enum class CoverKind : std::uint8_t {
  full,    ///< all, and nothing is removed of them
  causal,  ///< those from the first key on to somewhere
  window,  ///< those from somewhere on: few of them, and many partial
  listed,  ///< those on lists
  pairs,   ///< all, and of each pair it is asked whether it stays
};
/// What a score costs.
enum class ModKind : std::uint8_t {
  scaled,  ///< nothing: a factor of the exponent
  affine,  ///< a term beside s
  heavy,   ///< functions of s, or a prob mod
  reads,   ///< elements of captured tensors, for each pair
};
enum class Length : std::uint8_t { to_1k, to_4k, longer };

struct ForwardKind {
  CoverKind cover = CoverKind::full;
  ModKind mod = ModKind::scaled;
  Length length = Length::longer;
  auto operator<=>(const ForwardKind&) const = default;
};

/// `facts` are those of `mod` and `cover`.
ForwardKind forward_kind(const compiler::Mod& mod, const compiler::Cover& cover, const ForwardFacts& facts,
                         Length length);
/// Of the keys or the queries, whichever are fewer.
Length length_of(std::int64_t q_len, std::int64_t kv_len);

std::string_view name_of(CoverKind kind);
std::string_view name_of(ModKind kind);
std::string_view name_of(Length length);
std::optional<CoverKind> cover_kind_named(std::string_view name);
std::optional<ModKind> mod_kind_named(std::string_view name);
std::optional<Length> length_named(std::string_view name);

}  // namespace attune::codegen
