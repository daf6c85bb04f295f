// tools/builds.h — the rows of a manifest built: each kernel once, in the order of the rows, whoever was first
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "codegen/llvm.h"
#include "codegen/source.h"
#include "compiler/lower.h"
#include "runtime/cache/bundle.h"
#include "tools/manifest.h"

namespace attune::tools {

/// A kernel that was built, or what became of one that was not taken.
struct Built {
  runtime::BundleEntry entry;
  bool only_facts = false;
  std::string target;
  // Of a GPU:
  std::shared_ptr<const compiler::LoweredMod> of{};
  std::optional<codegen::Source> page{};
  std::optional<codegen::ForwardChoice> choice{};  ///< none: it writes lists
  bool wide = false, listed = false;
  // Of a CPU:
  std::function<std::string(codegen::Listing*)> write{};
};

struct Builds {
  std::vector<Built> all;
  std::size_t rows = 0;  ///< mods x shapes x targets x passes, with their lengths and gradients
};

/// `threads` rows at a time. `step` is called by those threads when a row is done, with how many there are.
Builds build_all(const Manifest& manifest, int threads,
                 const std::function<void(const std::string& row, std::size_t rows)>& step);

}  // namespace attune::tools
