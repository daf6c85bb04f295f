// codegen/kernel.h — what a GPU kernel says of itself: the calls it takes, how its tile is cut, what a launch needs
#pragma once

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/contract/cover_args.cuh"
#include "codegen/headers.h"
#include "codegen/kind.h"
#include "codegen/plan.h"
#include "codegen/variant.h"

namespace attune::codegen {

/// What a kernel computes: a forward; a backward; or of a backward the gradient of q, or those of k and v.
enum class Way : std::uint8_t { forward, backward, queries, keys };
std::string_view name_of(Way way);
/// What its kernels walk where a mask needs lists.
CoverForm cover_form(Way way);

/// A number that a kernel's tile is cut by: in variants, and in the Tile of a page.
struct Member {
  std::string_view name;
  int least, most, step = 1;  ///< its values

  /// Why it cannot have this value, or empty.
  std::string why_not(int value) const;
};

/// Values of a member that a search tries while all else stays.
struct Search {
  std::string_view member;
  int least, most;
};

/// One kernel. `choose` and what compiles candidates know kernels by these alone: docs/adding-a-kernel.md. A Variant
/// that a descriptor gives or gets has all of its members.
struct KernelDescriptor {
  std::string_view name;  ///< of its file in codegen/cuda, without the ending, and of the kernel in it
  Way way = Way::forward;
  std::span<const Member> members{};   ///< in the order of a variant's text
  std::span<const Search> searches{};  ///< what `attune tune` tries besides other tiles

  bool takes_any = false;  ///< takes every call, and is listed last
  int most_heads = 8;      ///< query heads of a key head that its tiles may share
  /// As many blocks as multiprocessors share the tiles of queries; otherwise each tile has a block of its own.
  bool persistent = false;
  /// Blocks share the keys of tiles, whose arguments are DecodeArgs of cuda/args.cuh: a launch needs room for parts of
  /// results, and takes keys that are described apart from queries.
  bool cuts_keys = false;
  /// It takes latent heads alone, as KernelSpec has them; the arguments are LatentArgs.
  bool latent = false;
  /// The kernel behind it that adds up the parts of tiles whose keys blocks share. Empty: the last block to arrive
  /// does.
  std::string_view joins{};
  bool waits = false;   ///< waits by itself for the launch before it, and so may start before that one ends
  int spills_well = 0;  ///< bytes of registers that a candidate may spill and still be as it was meant to be

  /// It sums along diagonals what flows to scores, and spread_diagonals.cuh has to follow where gradients of captured
  /// tensors are asked for.
  bool sums_diagonals = false;

  /// What masks remove is multiplied by 0, which leaves what is not finite: repair_sm80.cuh has to follow.
  bool multiplies_removed = false;

  /// The kernel beside it that makes dq of what it has added up in memory, 256 threads a block, a block for each (tile
  /// of queries, head, batch entry). Empty: none is needed.
  std::string_view end{};

  /// Device files beside those of the library: a test's.
  std::span<const Header> headers{};

  /// The calls that it is made for: from others it is left out without a word. Null: all.
  bool (*is_for)(const KernelSpec& spec) = nullptr;
  /// Why it cannot take such calls, or empty.
  std::string (*why_not)(const KernelSpec& spec, const ModFacts& facts) = nullptr;
  /// The tiles it is made with for a call that it takes, in the order to try; never empty.
  std::vector<Variant> (*tiles)(const KernelSpec& spec, const ModFacts& facts, const CallKind& kind) = nullptr;
  /// Why its tile cannot be cut like this, or empty. Each member is within its values, and shared memory is compared
  /// with the device's elsewhere.
  std::string (*why_illegal)(const KernelSpec& spec, const Variant& variant) = nullptr;
  KernelChoice (*choice)(const KernelSpec& spec, const Variant& variant) = nullptr;
  /// Tiles that a search tries instead of this one: the first legal one of each group. Null: no others.
  std::vector<std::vector<Variant>> (*other_tiles)(const Variant& from) = nullptr;
  /// What a page says before it includes the kernel. Null: nothing.
  std::string (*preamble)(const KernelPlan& plan) = nullptr;
};

/// Bytes of shared memory that a block may have.
int most_shared(int arch);

/// `plan.d`, `plan.dv` and all else that is the same for every kernel; the rest of the tile is the kernel's to fill in.
KernelPlan plan_of(const KernelDescriptor& kernel, const KernelSpec& spec, int m, int n);

/// A line before wgmma.cuh that has it define products of these widths alone; it defines all unless told.
std::string ask_for_products(const std::set<int>& widths);

// ---- a kernel's own struct of members, and the Variant that others see ----

template <class Tile>
struct TileMember {
  Member member;
  int Tile::*at;
};

template <class Tile, std::size_t N>
constexpr std::array<Member, N> members_of(const std::array<TileMember<Tile>, N>& all) {
  std::array<Member, N> out{};
  for (std::size_t i = 0; i < N; ++i) out[i] = all[i].member;
  return out;
}

template <class Tile, std::size_t N>
Variant variant_of(std::string_view kernel, const Tile& tile, const std::array<TileMember<Tile>, N>& all) {
  Variant out{std::string(kernel), {}};
  for (const TileMember<Tile>& one : all) out.set(one.member.name, tile.*one.at);
  return out;
}

template <class Tile, std::size_t N>
Tile tile_of(const Variant& variant, const std::array<TileMember<Tile>, N>& all) {
  Tile out{};
  for (const TileMember<Tile>& one : all) out.*one.at = variant.of(one.member.name).value_or(0);
  return out;
}

}  // namespace attune::codegen
