// codegen/kernel.h — what a GPU kernel says of itself: the calls it takes, how its tile is cut, what a launch needs
#pragma once

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/companion.h"
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

/// A number that a kernel's tile is cut by: in variants, and in the Tile of a source.
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

/// A struct that begins as ArgsKind says, for a kernel that needs more.
struct OwnArgs {
  std::string_view name;  ///< in namespace attune
  std::size_t bytes;      ///< of all, at most most_own_args
  /// Bytes of the call's memory that are the kernel's own. Null: none.
  std::int64_t (*room)(const LaunchCall& call) = nullptr;
  /// Fills in what follows: `args` holds the struct of its kind already, and `room` is on the device.
  void (*fill)(void* args, const LaunchCall& call, std::byte* room) = nullptr;
};
inline constexpr std::size_t most_own_args = 2048;

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
  /// What it gets, of a call whose entries are alike; a forward's kernel that takes others gets theirs.
  ArgsKind args = ArgsKind::forward;
  std::span<const Companion* const> companions{};  ///< in the order of their launches
  bool waits = false;   ///< waits by itself for the launch before it, and so may start before that one ends
  int spills_well = 0;  ///< bytes of registers that a candidate may spill and still be as it was meant to be

  /// What follows a struct of `args` in that of its own, if it has one.
  const OwnArgs* own = nullptr;

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
  /// What a source says before it includes the kernel. Null: nothing.
  std::string (*preamble)(const KernelPlan& plan) = nullptr;
};

inline ArgsKind KernelPlan::args() const {
  return kernel->args == ArgsKind::forward && spec.per_entry ? ArgsKind::per_entry : kernel->args;
}

/// Bytes of shared memory that a block may have.
int most_shared(int arch);

/// `d` and `dv` of the tile and all else that is the same for every kernel; the rest of the tile is the kernel's to
/// fill in.
KernelPlan plan_of(const KernelDescriptor& kernel, const KernelSpec& spec, const Variant& variant, int m, int n);

/// Do blocks share the keys of tiles (split-KV)? Then a launch needs room for parts of results, and entries apart
/// from queries.
inline bool cuts_keys(const KernelDescriptor& kernel) {
  return kernel.args == ArgsKind::decode || kernel.args == ArgsKind::mla;
}
/// Does it take the heads of MLA alone, as KernelSpec::mla says?
inline bool takes_mla(const KernelDescriptor& kernel) { return kernel.args == ArgsKind::mla; }

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
