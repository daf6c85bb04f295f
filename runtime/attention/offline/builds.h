// runtime/attention/offline/builds.h — builds the rows of a manifest: each kernel once; results in the rows' order
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/choose/choose.h"
#include "codegen/llvm.h"
#include "codegen/source/source.h"
#include "compiler/lower.h"
#include "runtime/attention/offline/manifest.h"
#include "runtime/machine/cache/bundle.h"

namespace attune::runtime {

/// A kernel that was built, the facts about a kernel that was rejected, or what a kernel was spliced into.
struct Built {
  BundleEntry entry;
  bool only_facts = false, skeleton = false;
  std::string target;
  // GPU only:
  std::shared_ptr<const compiler::LoweredMod> of{};  ///< null: the kernel contains no expression
  std::optional<codegen::Source> source{};
  std::optional<codegen::KernelChoice> choice{};  ///< none: the kernel that writes lists
  codegen::Way way = codegen::Way::forward;       ///< the way that the kernel belongs to
  bool offsets64 = false, listed = false;
  // CPU only:
  std::function<std::string(codegen::Listing*)> write{};
};

struct Builds {
  std::vector<Built> all;
  std::size_t rows = 0;  ///< mods x shapes x targets x passes, with their lengths and gradients

  std::size_t kernels() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(all, [](const Built& one) { return !one.only_facts && !one.skeleton; }));
  }
};

/// The sets of captures whose gradients a backward computes, according to the `grads` of a request: one set for each
/// way to call the backward.
std::vector<codegen::Wanted> wanted_of(const compiler::Mod& mod, const std::optional<std::string>& grads);

/// Builds `threads` rows at a time. The threads call `step` when a row is done, with the total number of rows.
Builds build_all(const Manifest& manifest, int threads,
                 const std::function<void(const std::string& row, std::size_t rows)>& step);

}  // namespace attune::runtime
