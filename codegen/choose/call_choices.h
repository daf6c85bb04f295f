// codegen/choose/call_choices.h — the kernels that could compute each way of a call; all sources of a call, in the
// order of its launches
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/choose/choose.h"
#include "codegen/source/source.h"

namespace attune::codegen {

/// What the kernels of a call are chosen by, in addition to its expressions.
struct CallSpec {
  KernelSpec spec{};  ///< of the forward; for the kernels of one way, theirs
  Length length = Length::longer;
  std::optional<Preference> preference{};  ///< none: the choice of attune tune, if there is one
  /// For a backward, the captured tensors whose gradients are asked for, by slot. None for a forward.
  std::optional<Wanted> backward{};
  bool other_extents = false;  ///< the gradient of a dense bias is smaller than the pairs: it is not made of stored dS
  auto operator<=>(const CallSpec&) const = default;
};
/// What the kernels of one way of the call are chosen by.
CallSpec of_way(CallSpec call, Way way);
/// The expressions that these kernels evaluate. They refer to `lowered`.
GpuParts parts_of(const compiler::LoweredMod& lowered, const CallSpec& call, Way way);

/// The kernels of one way: a forward has one way, a backward one or two.
struct WayChoices {
  Way way = Way::forward;
  CallSpec call;   ///< of_way()
  GpuParts parts;  ///< refers to the lowered Mod, which must outlive it
  CallKind kind{};
  KernelChoices choices{};
};
struct CallChoices {
  std::vector<WayChoices> ways;    ///< in the order of their launches
  std::vector<std::string> story;  ///< why no kernel computes the whole backward, if none does
};
/// Chooses kernels for a call. Throws an Error if no kernel takes the call.
CallChoices call_choices(const compiler::LoweredMod& lowered, const CallSpec& call);

// ---- sources --------------------------------------------------------------------------------------------------------

/// A source with its role in the call.
struct CallSource {
  std::string of;
  Source source;
  std::optional<KernelChoices> choices{};  ///< none: no kernel was chosen for it
};

/// Which sources to generate.
struct SourcesOf {
  CallSpec call;
  bool lists = false;  ///< the sources that list the tiles to visit; none if the mask needs no lists
};
std::vector<CallSource> call_sources(const compiler::LoweredMod& lowered, const SourcesOf& what);

}  // namespace attune::codegen
