// runtime/cuda/consider.h — the kernels that can take a call, compiled in turn until one is as it was meant to be
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
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

/// What NVRTC makes of a page, once in a process. An Error where there is no NVRTC.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of);

/// The pages of a Mod, as ATTUNE_LINEINFO has them.
codegen::Source forward_page(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardPlan& plan,
                             int arch);
codegen::Source cover_page(const compiler::Mod& mod, const compiler::Cover& cover, bool wide, int arch);

/// How many kernels this process has compiled so far. Each length of a sequence would be one too many.
std::size_t compiled_kernels();

struct Candidate {
  codegen::ForwardChoice choice;
  std::shared_ptr<const Binary> binary;  ///< null: it was not looked at any more
  std::string flaw;                      ///< what NVRTC made of it is worse than it should be; or empty
};
struct Considered {
  std::vector<Candidate> candidates;
  std::size_t chosen = 0;          ///< the first without a flaw, else one that spills little, else the last
  std::vector<std::string> story;  ///< kernels that are no candidates, and why
};
/// `preference` may be null. `all`: those behind the chosen one are compiled too, to be shown.
Considered consider(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardSpec& spec,
                    codegen::Length length, const codegen::Preference* preference, bool all = false);

}  // namespace attune::runtime::cuda
