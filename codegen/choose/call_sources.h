// codegen/choose/call_sources.h — all sources of a call, in the order of its launches, and how their kernels were
// chosen
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "codegen/source/source.h"

namespace attune::codegen {

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
