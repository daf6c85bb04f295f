// runtime/platform/nvidia/nvrtc.h — NVIDIA's run-time compiler, opened by name at first use: from CUDA source to a
// cubin, and which program goes through its front end next
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/watch.h>

#include "codegen/source/source.h"

namespace attune::runtime::cuda {

struct KernelNeeds {
  int registers = 0;  ///< of a thread
  int frame = 0;      ///< bytes of local memory of a thread: arrays, and registers that are spilled
};

/// Reads a cubin, a 64-bit ELF file. Its bytes may be damaged, and must outlive this object.
class Cubin {
 public:
  explicit Cubin(std::string_view bytes);
  /// None: the cubin is damaged, or has no such kernel.
  std::optional<KernelNeeds> needs(std::string_view symbol) const;
  /// The machine code of a kernel; empty in the same cases.
  std::string_view code(std::string_view symbol) const;

 private:
  struct Section {
    std::string_view name, bytes;
    std::uint32_t type = 0, link = 0;
  };
  std::optional<Section> section(std::uint64_t nth) const;
  std::optional<Section> named(std::string_view name) const;
  std::string_view symbol(std::uint64_t nth) const;

  std::string_view bytes_, headers_, names_;
  std::uint64_t sections_ = 0;
  Section symbols_{};
  std::string_view symbol_names_;
};

/// NVRTC parses one program at a time and does not order those that wait: with five other programs, a mod's functions
/// took 0.50 s, of which 0.05 were their own (13.0, 16 idle cores). So attune orders them itself: first the kernel of a
/// call, then the kernel of a backward that may come, then companion kernels, and last what only later calls use.
enum class Piece : std::uint8_t { companion, kernel };

/// While one lives, this thread compiles programs of that piece of a call; without one, companions.
class Compiling {
 public:
  explicit Compiling(Piece piece);
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  Piece before_;
};

/// Holds back the programs that rank after those of this thread until it is over, also between the two programs of a
/// spliced kernel.
class Ahead {
 public:
  Ahead();
  ~Ahead() { over(); }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  void over();  ///< by any one thread; once more does nothing

 private:
  const int rank_;
  bool holds_ = true;
};

/// A program's turn. It is an order and not a lock: none waits for more than a second, nor once the background stops.
/// Tests let them wait for longer, so that no busy machine changes the order, and see whether any gave up.
class Turn {
 public:
  Turn();  ///< waits for it
  ~Turn() { over(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void over();  ///< by any one thread; once more does nothing

 private:
  bool holds_ = true;
};

/// Turns of this process.
struct Turns {
  int waiting = 0;          ///< now
  std::size_t gave_up = 0;  ///< so far, since none came
};
Turns turns();
/// The most that a turn waits from now on; returns what it was before.
std::chrono::milliseconds turns_wait_at_most(std::chrono::milliseconds limit);

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
