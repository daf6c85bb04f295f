// runtime/cuda/consider.h — the kernels that can take a call, compiled in turn until one is as it was meant to be
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "runtime/cache/objects.h"
#include "runtime/cuda/nvrtc.h"

namespace attune::runtime::cuda {

/// sm_90a
std::string target_name(int arch);

/// What a kernel is, besides its page: for who watches.
struct KernelOf {
  const compiler::Mod& mod;
  std::string kernel;  ///< and its tile
  int arch = 0;
  int shared_bytes = 0;
};

/// What is asked of NVRTC for a page.
Asked asked(const codegen::Source& source);
/// As it is kept.
CacheEntry entry_of(const Binary& binary, const codegen::Source& source);

/// What NVRTC makes of a page, once in a process; an Error where it has to and there is none.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of);

/// The pages of a Mod, as ATTUNE_LINEINFO has them.
codegen::Source forward_page(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardPlan& plan,
                             int arch);
codegen::Source cover_page(const compiler::Mod& mod, const compiler::Cover& cover, bool wide, int arch);

/// How many kernels this process has compiled so far. Each length of a sequence would be one too many.
std::size_t compiled_kernels();

struct Candidate {
  codegen::ForwardChoice choice;
  /// Null: it was not looked at any more, or is nowhere while compiling is off. Without a cubin: a bundle says what
  /// became of it, and it was not taken.
  std::shared_ptr<const Binary> binary;
  std::string flaw;  ///< what NVRTC made of it is worse than it should be; or empty
};
struct Considered {
  std::vector<Candidate> candidates;
  std::size_t chosen = 0;          ///< the first that will do, but for a fast one that spills little; it has its cubin
  std::vector<std::string> story;  ///< kernels that are no candidates, and why
};
/// `preference` may be null. `all`: those behind the chosen one are compiled too, to be shown. With compiling off, of
/// those that are there; an Error if none is.
Considered consider(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardSpec& spec,
                    codegen::Length length, const codegen::Preference* preference, bool all = false);

}  // namespace attune::runtime::cuda
