// codegen/cuda.h — a Mod as one page of CUDA for one kernel, and the bytes of the arguments that the page declares
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/cover.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// What NVRTC gets.
struct Source {
  std::string name;  ///< of the page, for messages: forward_sm90
  std::string text;
  std::vector<std::string> options;
  std::string symbol;  ///< the kernel as a name expression; compiling gives its mangled name
  std::vector<std::pair<std::string, std::string>> facts{};  ///< for readers: what the kernel is of
};

/// Which kernel, and how its tile is cut. `kernel` is a file of codegen/cuda without its ending and the kernel in it.
struct ForwardPlan {
  std::string kernel;
  DType dtype = DType::bf16, out = DType::bf16;  ///< of q, k and v; of o
  int m = 128, n = 128, d = 128, dv = 128, stages = 2;
  int heads = 1;               ///< query heads of a key head that share a tile: 1, 2, 4 or 8
  bool max = false;            ///< the rows' maxima are asked for
  bool packed = false;         ///< sequences of different lengths, by their starts
  bool scale_positive = true;  ///< the call's scale is 0 or more
  bool exact = false;          ///< functions within 2 ulp (see ops.cuh) rather than the fast ones
  bool wide = false;           ///< offsets into captured tensors need more than 32 bits
  std::vector<std::pair<std::string, int>> traits{};  ///< further members of Tile, that this kernel knows

  /// Of a tile.
  int queries() const { return m / heads; }
};

/// What the traits of codegen/cuda/mod.cuh will say of this Mod: what to choose a kernel by.
struct ForwardFacts {
  bool scaled = false, bounded = false, masked = false, has_prob = false, linear_prob = true, has_sink = false;
  bool listed = false;        ///< the launch must hand in lists of tiles, made by cover_source's kernel
  bool shares_tiles = false;  ///< heads can: neither the mask nor what is read for a column varies with them
};
ForwardFacts forward_facts(const compiler::Mod& mod, const compiler::Cover& cover, bool scale_positive);

/// `arch` is 80, 90, 120 …: compute capability times ten. `path`: empty, or where profilers will find the page; then
/// the kernel knows its lines, which are the user's where expressions were written in C++.
Source forward_source(const compiler::Mod& mod, const compiler::Cover& cover, const ForwardPlan& plan, int arch,
                      std::string_view path = {});
/// NVRTC's, for kernels that know their lines.
inline constexpr const char* line_option = "--generate-line-info";

/// The kernel of cover.cuh that writes the lists of tiles for a Mod whose facts say `listed`.
Source cover_source(const compiler::Mod& mod, const compiler::Cover& cover, bool wide, int arch);

/// `struct User` of both pages. `captures` by slot, on the device; `params` by slot as Param holds them; `wide` as the
/// pages have it.
std::vector<std::byte> user_bytes(const compiler::Mod& mod, std::span<const Tensor> captures,
                                  std::span<const double> params, float scale, bool wide);

}  // namespace attune::codegen
