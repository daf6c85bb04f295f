// runtime/engines/cuda/kernels/consider.h — the candidate kernels of a call, compiled in turn until one has no flaw
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "codegen/choose/companion.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/platform/nvidia/nvrtc.h"

namespace attune::runtime::cuda {

/// sm_90a
std::string target_name(int arch);

/// The description of a kernel for watchers, without its source.
struct KernelOf {
  const compiler::Mod* mod;  ///< null: the kernel contains no expressions and belongs to no call
  std::string kernel;        ///< the kernel's name and its tile
  int arch = 0;
  int shared_bytes = 0;
  const Purpose* purpose = nullptr;  ///< the call that needs it; may be null
  const char* spliced_is = "";       ///< its tier as in watch::Built, if it is spliced
  const char* whole_is = "";         ///< its tier, if it is not
};

/// The request to NVRTC for a source.
Asked asked(const codegen::Source& source);
/// The request for a source of which a call may also take a spliced kernel. One that was compiled as a whole serves it
/// too, but not the reverse: see splicing_of().
Asked asked_for_spliced(const codegen::Source& source);
/// The cache entry of a binary.
CacheEntry entry_of(const Binary& binary, const codegen::Source& source);

/// The binary of a source, made once per process; throws an Error if it must be compiled and there is no NVRTC.
/// `spliced`: how it is compiled if that is not as a whole.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of,
                                        const std::function<Binary()>& spliced = {});

/// A source with the lines that ATTUNE_LINEINFO asks for, and the text that names its dump.
struct KernelSource {
  codegen::Source source;
  std::string dump;  ///< the source and its options without line directives; empty unless dumps are on
};
KernelSource kernel_source_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// The source of a companion. ATTUNE_LINEINFO only concerns companions that list tiles.
codegen::Source companion_source_of(const codegen::Companion& companion, const codegen::GpuParts& parts,
                                    const codegen::KernelPlan& plan);

/// The number of kernels that this process has compiled so far. No call may compile a kernel for each
/// length of their sequences.
std::size_t compiled_kernels();

struct Candidate {
  codegen::KernelChoice choice;
  std::optional<KernelSource> written{};  ///< none: the candidate is tried only after the chosen one
  /// Null: the candidate is tried only after the chosen one, or compiling is off and it is not available. Without a
  /// cubin: a bundle has the facts that rejected it.
  std::shared_ptr<const Binary> binary{};
  std::string flaw{};  ///< the reason why the compiled kernel is worse than it should be; or empty
};
struct Considered {
  std::vector<Candidate> candidates;
  std::size_t chosen = 0;          ///< the first one without a flaw, or a fast one that spills little; has a cubin
  std::vector<std::string> story;  ///< kernels that are not candidates, and the reasons
  std::string made{};              ///< how the chosen one was compiled, if it was to be spliced
  bool first_tier = false;         ///< as in is_first_tier(), of the chosen one
};
/// What consider() compiles.
enum class Compiles : std::uint8_t {
  chosen,           ///< candidates in turn, until one has no flaw
  with_companions,  ///< also the companions of each of these, at the same time: a call loads them next
  first_tier,       ///< the same; what is compiled sooner counts more than speed
  last_tier,        ///< as with_companions, to take over from a first tier
  all,              ///< the candidates after the chosen one too, to be shown
};
/// `call`: of the way whose kernels are `among`. With compiling off, it chooses among the available candidates, and
/// throws an Error if there is none. `purpose`: the call that needs the kernel; may be null.
Considered consider(const codegen::GpuParts& parts, const codegen::CallSpec& call, codegen::Kernels among,
                    Compiles what = Compiles::chosen, const Purpose* purpose = nullptr);

}  // namespace attune::runtime::cuda
