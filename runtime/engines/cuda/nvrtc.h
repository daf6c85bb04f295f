// runtime/engines/cuda/nvrtc.h — NVIDIA's run-time compiler, opened by name at first use: from CUDA source to a cubin
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <attune/watch.h>

#include "codegen/source/source.h"

namespace attune::runtime::cuda {

class Ahead;

/// The result of compiling a Source with NVRTC.
struct Binary {
  std::string cubin{};
  std::string symbol{};  ///< the kernel's mangled name
  int registers = 0;
  int spilled = 0;                      ///< bytes stored to local memory for want of registers
  std::vector<std::string> warnings{};  ///< from ptxas, such as C7510: wgmma instructions that wait for each other
  std::string log{};
  std::string ptx{};  ///< if asked for
  /// Where the compiler's time went, in order; empty for a binary that was found.
  std::vector<watch::Built::Phase> phases{};
  std::string made{};  ///< how, if there were several ways: "spliced", or why not
};

/// The NVRTC that was found. Threads may share it.
struct Nvrtc {
  int major = 0, minor = 0;
  std::string path;     ///< the path of the library that was opened
  std::string build;    ///< its file's name, which ends in its full version
  std::string refusal;  ///< the reason why there is none, for people; empty if there is one
  explicit operator bool() const { return refusal.empty(); }
};
const Nvrtc& nvrtc();

/// Throws a Bug if there is no NVRTC (ask nvrtc() first), or, with log and source, if NVRTC refuses the source.
enum class Ptx : std::uint8_t { no, yes };
Binary compile(const codegen::Source& source, Ptx ptx = Ptx::no);
/// Its symbol, its log and its PTX alone. Throws as compile() does.
Binary compile_to_ptx(codegen::Source source);
/// The kernel `symbol` of a source of codegen::around_ptx(). `ahead` is over once the assembler has it. Throws as
/// compile() does.
Binary assemble(const codegen::Source& around, const std::string& symbol, Ahead& ahead);

}  // namespace attune::runtime::cuda
