// codegen/choose.h — which kernels of a GPU can compute a call, and with which tiles, in the order to try
#pragma once

#include <optional>

#include "codegen/kind.h"
#include "codegen/source.h"
#include "codegen/variant.h"

namespace attune::codegen {

/// As it is asked for; where nobody does, of f32 alone.
constexpr bool is_exact(std::optional<bool> asked, DType type) { return asked.value_or(type == DType::f32); }

/// What kernels are chosen by, besides the expressions.
struct ForwardSpec {
  int arch = 90;                                 ///< compute capability times ten
  DType dtype = DType::bf16, out = DType::bf16;  ///< of q, k and v; of o
  std::int64_t d = 128, dv = 128;
  bool max = false;     ///< the rows' maxima are asked for
  bool packed = false;  ///< sequences of different lengths
  int heads = 1;        ///< query heads of a key head that would share a tile: 1, 2, 4 or 8
  bool boxes = true;    ///< the copy engine can take boxes of q, k, v and o: as they lie, and none is empty
  int load = 16,
      store = 16;  ///< bytes that every row of q, k and v, of o, may be copied by: 16, 8, 4, or 0 for an element
  bool scale_positive = true;
  bool exact = false;  ///< as Attention::exact
  bool wide = false;   ///< offsets into captured tensors need more than 32 bits
  bool operator==(const ForwardSpec&) const = default;
  auto operator<=>(const ForwardSpec&) const = default;
};

/// A plan, what a launch of it needs, and what chose it.
struct ForwardChoice {
  ForwardPlan plan;
  int threads = 0;           ///< of a block
  int shared_bytes = 0;      ///< dynamic, of a block
  bool persistent = false;   ///< as many blocks as there are multiprocessors; else a block for each tile of queries
  bool copy_engine = false;  ///< tensors are described by maps
};

struct ForwardChoices {
  std::vector<ForwardChoice> choices;  ///< never empty: the last one takes any call, and may spill
  std::string story;                   ///< why the fastest kernel is not among them, or empty
  std::string refused;                 ///< why what was preferred is not the first of them, or empty
};
/// ForwardSpec::heads for `q_len` queries (of the longest sequence) of `group` heads to a key head.
int heads_to_share(std::int64_t q_len, std::int64_t group);
/// `preference` may be null.
ForwardChoices choose(const ForwardSpec& spec, const ForwardFacts& facts, const ForwardKind& kind = {},
                      const Preference* preference = nullptr);

/// A member of the plan's Tile that its kernel alone knows; 0 if it has none.
int trait(const ForwardPlan& plan, std::string_view name);

// ---- for who measures ----

/// All that can be chosen of a plan.
Variant variant_of(const ForwardPlan& plan);
/// Legal variants of the same kernel with other tiles, as little different else as memory allows.
std::vector<Variant> other_tiles(const ForwardSpec& spec, const ForwardFacts& facts, const Variant& from);
/// Legal variants that differ in one other member than the tile's sides.
std::vector<Variant> other_ways(const ForwardSpec& spec, const ForwardFacts& facts, const Variant& from);

}  // namespace attune::codegen
