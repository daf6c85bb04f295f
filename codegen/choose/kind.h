// codegen/choose/kind.h — names of what is chosen and by what: kinds of calls, and variants, which are a kernel and how
// its tile is cut
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune::codegen {

struct GpuParts;

// ---- kinds of calls: what is fastest for one call is fastest for others of its kind ---------------------------------

/// The tiles of keys that a tile of queries visits.
enum class CoverKind : std::uint8_t {
  full,    ///< all, and no pair is masked out
  causal,  ///< the first keys
  window,  ///< a range of the keys: few tiles, and many of them partial
  listed,  ///< the tiles on lists
  pairs,   ///< all, and the kernel evaluates the mask for each pair
};
/// The cost of a score.
enum class ModKind : std::uint8_t {
  scaled,  ///< nothing: a factor of the exponent
  affine,  ///< an additional term
  heavy,   ///< functions of s, or a prob mod other than a product of two p
  reads,   ///< elements of captured tensors, for each pair
};
/// to_80, to_128 and to_224: by the number of keys. Others: of keys or of queries, whichever is smaller.
enum class Length : std::uint8_t { to_80, to_128, to_224, to_1k, to_4k, longer };

/// A set of kinds; by default all of them.
template <class Kind>
struct KindSet {
  unsigned bits = ~0u;

  constexpr KindSet() = default;
  constexpr KindSet(Kind only) : bits(1u << static_cast<unsigned>(only)) {}
  constexpr KindSet others() const { return of(~bits); }
  constexpr KindSet operator|(KindSet more) const { return of(bits | more.bits); }
  constexpr KindSet operator&(KindSet also) const { return of(bits & also.bits); }
  static constexpr KindSet of(unsigned bits) {
    KindSet out;
    out.bits = bits;
    return out;
  }
  constexpr bool has(Kind kind) const { return bits >> static_cast<unsigned>(kind) & 1; }
};

struct CallKind {
  CoverKind cover = CoverKind::full;
  ModKind mod = ModKind::scaled;
  Length length = Length::longer;
  auto operator<=>(const CallKind&) const = default;
};

CallKind call_kind(const GpuParts& parts, Length length);
constexpr Length length_of(std::int64_t q_len, std::int64_t kv_len) {
  if (kv_len > 0 && kv_len <= 224)
    return kv_len <= 80 ? Length::to_80 : kv_len <= 128 ? Length::to_128 : Length::to_224;
  const std::int64_t fewer = std::min(q_len, kv_len);
  return fewer <= 1024 ? Length::to_1k : fewer <= 4096 ? Length::to_4k : Length::longer;
}

inline constexpr std::array all_lengths{Length::to_80, Length::to_128, Length::to_224,
                                        Length::to_1k, Length::to_4k,  Length::longer};

std::string_view name_of(CoverKind kind);
std::string_view name_of(ModKind kind);
std::string_view name_of(Length length);
std::optional<CoverKind> cover_kind_named(std::string_view name);
std::optional<ModKind> mod_kind_named(std::string_view name);
std::optional<Length> length_named(std::string_view name);

// ---- variants: NAME:m=128,n=96,stages=2 -----------------------------------------------------------------------------

/// Members that are left out have the kernel's values for the call.
struct Variant {
  std::string kernel;
  std::vector<std::pair<std::string, int>> members;  ///< of the kernel's Tile

  std::optional<int> of(std::string_view member) const;
  void set(std::string_view member, int value);
  std::string text() const;
  auto operator<=>(const Variant&) const = default;
};

/// Throws an Error if `text` is not a variant.
Variant variant(std::string_view text);

/// A kernel that is tried before those of the tables.
struct Preference {
  Variant variant;
  bool only = false;   ///< no other kernel is tried, and an illegal one is an Error: for measurements
  std::string origin;  ///< who prefers it, for stories
  auto operator<=>(const Preference&) const = default;
};

}  // namespace attune::codegen
