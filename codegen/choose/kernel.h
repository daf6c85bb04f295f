// codegen/choose/kernel.h — the descriptor of a GPU kernel: the calls it takes, its tiles, what a launch needs
#pragma once

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/choose/companion.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kind.h"
#include "codegen/choose/plan.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/headers.h"

namespace attune::codegen {

/// What a kernel computes: a forward; a whole backward; the gradient of q; or the gradients of k and v.
enum class Way : std::uint8_t { forward, backward, queries, keys };
std::string_view name_of(Way way);
/// The form of tile lists that a way's kernels read.
CoverForm cover_form(Way way);

/// A parameter of a kernel's tile: in variants, and in the Tile of a source.
struct Member {
  std::string_view name;
  int least, most, step = 1;  ///< its values
  /// True if the value only saves time: a usual value other than 0 becomes 0 if it contradicts members that are named.
  bool yields = false;

  /// Why it cannot have this value, or empty.
  std::string why_not(int value) const;
};

/// Values of a member that a search tries while the other members stay.
struct Search {
  std::string_view member;
  int least, most;
};

/// The argument struct of a kernel that needs more than the struct of its ArgsKind; it begins with that struct.
struct OwnArgs {
  std::string_view name;  ///< in namespace attune
  std::size_t bytes;      ///< of all, at most most_own_args
  /// Bytes of workspace that only this kernel uses. Null: none.
  std::int64_t (*workspace)(const LaunchCall& call) = nullptr;
  /// Fills in the members after the struct of its kind, which `args` holds already. `workspace` is on the device.
  void (*fill)(void* args, const LaunchCall& call, std::byte* workspace) = nullptr;
};
inline constexpr std::size_t most_own_args = 2048;

/// For kernels that refuse no call, and no tile whose members are within their values.
inline std::string takes_all(const KernelSpec&, const Traits&) { return {}; }
inline std::string allows_all(const KernelSpec&, const Variant&) { return {}; }

/// Whether a kernel is compiled once as a skeleton, into which mods are put (codegen/source/skeleton.h), unless
/// ATTUNE_SPLICE says otherwise: never; for heads 64 and 128 wide, except scores with an additional term
/// (ModKind::affine) at 128; or always. Measurements found spliced kernels as fast there as kernels compiled for each
/// mod.
enum class Spliced : std::uint8_t { never, but_terms, always };

/// One kernel. `choose` and the code that compiles candidates know kernels only by descriptors:
/// docs/adding-a-kernel.md. A Variant that a descriptor gives or takes has all of its members.
struct KernelDescriptor {
  std::string_view name;  ///< of its file in a folder of codegen/cuda, without the ending, and of the kernel in it
  Way way = Way::forward;
  std::span<const Member> members{};   ///< in the order of a variant's text
  std::span<const Search> searches{};  ///< members that `attune tune` varies, in addition to tiles

  bool takes_any = false;  ///< takes every call, and is listed last
  int most_heads = 8;      ///< query heads of a key head that its tiles may share
  /// True for a persistent kernel: one block per SM (KernelChoice::blocks_of_sm), which takes tile after tile.
  /// Otherwise one block per tile.
  bool persistent = false;
  ArgsKind args = ArgsKind::forward;
  std::span<const Companion* const> companions{};  ///< in the order of their launches
  Products products = Products::mma;
  bool waits = false;   ///< it waits for the launch before it (griddepcontrol), so it may start before that one ends
  int spills_well = 0;  ///< bytes of registers that a candidate may spill without harm
  Spliced spliced = Spliced::never;

  /// Its own argument struct, if it has one.
  const OwnArgs* own = nullptr;

  /// Device files in addition to the library's, for tests.
  std::span<const Header> headers{};

  /// True for the calls that it is made for; it is skipped silently for other calls. Null: all calls.
  bool (*is_for)(const KernelSpec& spec) = nullptr;
  /// The reason why it cannot take such calls; empty if it can.
  std::string (*why_not)(const KernelSpec& spec, const Traits& facts) = takes_all;
  /// Its tiles for a call that it takes, in the order to try; never empty.
  std::vector<Variant> (*tiles)(const KernelSpec& spec, const Traits& facts, const CallKind& kind) = nullptr;
  /// The reason why this tile is illegal; empty if it is legal. Each member is already within its values; shared memory
  /// is checked elsewhere.
  std::string (*why_illegal)(const KernelSpec& spec, const Variant& variant) = allows_all;
  /// The reason why this tile is illegal for such a mod; empty if it is legal. Null: no tile is.
  std::string (*why_unfit)(const Traits& facts, const Variant& variant) = nullptr;
  KernelChoice (*choice)(const KernelSpec& spec, const Variant& variant) = nullptr;
  /// Tiles that a search tries instead of this one: the first legal one of each group. Null: none.
  std::vector<std::vector<Variant>> (*other_tiles)(const Variant& from) = nullptr;
  /// Lines of a source before it includes the kernel. Null: none.
  std::string (*preamble)(const KernelPlan& plan) = nullptr;
};

/// Bytes of shared memory that a block can have.
int most_shared(int arch);
/// The same if `blocks` blocks share an SM.
int most_shared_of(int blocks, int arch);

/// A plan with `d` and `dv` of the tile and all other values that every kernel sets the same way; the kernel fills in
/// the rest of the tile.
KernelPlan plan_of(const KernelDescriptor& kernel, const KernelSpec& spec, const Variant& variant, int m, int n);

/// True for split-KV kernels, whose blocks share the keys of tiles. A launch then needs memory for parts of results,
/// and separate entries for queries.
inline bool cuts_keys(const KernelDescriptor& kernel) {
  return kernel.args == ArgsKind::decode || kernel.args == ArgsKind::mla;
}
/// True if the kernel is only for MLA, as in KvCache::mla.
inline bool takes_mla(const KernelDescriptor& kernel) { return kernel.args == ArgsKind::mla; }

/// A line before wgmma.cuh that makes it define products of these widths only; by default it defines all.
std::string ask_for_products(const std::set<int>& widths);

// ---- between a kernel's own struct of members and a Variant ----

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

/// Values of a side of a tile, for a search.
template <class Tile>
struct Sides {
  int Tile::*at;
  std::vector<int> values;
};

/// Tiles that differ from this one in two sides, each in its own group.
template <class Tile, std::size_t N>
std::vector<std::vector<Variant>> other_sides(const Variant& from, const std::array<TileMember<Tile>, N>& all,
                                              const Sides<Tile>& outer, const Sides<Tile>& inner) {
  std::vector<std::vector<Variant>> out;
  Tile tile = tile_of(from, all);
  for (const int length : outer.values)
    for (const int other : inner.values) {
      tile.*outer.at = length;
      tile.*inner.at = other;
      out.push_back({variant_of(from.kernel, tile, all)});
    }
  return out;
}

/// The layout of shared memory, if it depends only on members that every tile has.
template <class Layout>
Layout layout_of(const KernelPlan& plan) {
  const Tile& tile = plan.tile;
  return {.m = tile.m,
          .n = tile.n,
          .d = tile.d,
          .dv = tile.dv,
          .stages = tile.stages,
          .element = gpu_element(plan.spec.dtype).bytes};
}

}  // namespace attune::codegen
