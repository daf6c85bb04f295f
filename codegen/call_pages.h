// codegen/call_pages.h — all pages of a call, in the order of its launches, and how their kernels were chosen
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/call_choices.h"
#include "codegen/source.h"

namespace attune::codegen {

/// A page, and what it does for the call.
struct CallPage {
  std::string of;
  Source source;
  std::optional<KernelChoices> choices{};  ///< none: no kernel was chosen for it
};

/// What pages are asked for.
struct PagesOf {
  CallSpec call;
  bool lists = false;  ///< the pages that list the tiles to visit; none if the mask needs no lists
};
std::vector<CallPage> call_pages(const compiler::LoweredMod& lowered, const PagesOf& what);

}  // namespace attune::codegen
