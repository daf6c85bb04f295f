// runtime/cuda/consider.h — the kernels that can take a call, compiled in turn until one is as it was meant to be
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "runtime/cuda/nvrtc.h"

namespace attune::runtime::cuda {

/// What NVRTC makes of a page, once in a process. An Error where there is no NVRTC.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source);

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
