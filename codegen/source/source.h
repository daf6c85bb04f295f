// codegen/source/source.h — the CUDA source of a Mod for one kernel, and the bytes of the arguments that it declares
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/headers.h"
#include "codegen/facts/gpu_parts.h"

namespace attune::codegen {

/// The input of NVRTC.
struct Source {
  std::string name;  ///< of the source, for messages: its kernel's name
  std::string text;
  std::vector<std::string> options;
  std::string symbol;  ///< the kernel as a name expression; compiling gives its mangled name
  std::vector<std::pair<std::string, std::string>> facts{};  ///< for readers: what the kernel was generated for
  std::span<const Header> headers{};                         ///< device files in addition to the library's
};

/// The source of a plan's kernel. `path`: empty, or where profilers will find the source; then the kernel has
/// line numbers, which are the user's where expressions were written in C++. The plan must have the same sign of the
/// scale as the parts were derived for.
Source kernel_source(const GpuParts& parts, const KernelPlan& plan, std::string_view path = {});
/// The same for a companion kernel, from the device file `file`, or from the file of its name.
Source source_beside(const GpuParts& parts, const KernelPlan& plan, const std::string& kernel,
                     const std::string& file = {});
/// Number of such sources that this process has generated.
std::size_t kernel_sources_written();
/// The NVRTC option for kernels with line numbers.
inline constexpr const char* line_option = "--generate-line-info";

/// The last members of `struct User` in a backward's source: for each captured tensor whose gradient is requested,
/// except those computed from stored dS, a pointer to exact_words words per element (exact_sum.cuh); then a pointer to
/// sums along diagonals, if there are any. Where dS is stored, a StoredDs follows, and a SumOfDs for each tensor.
std::vector<std::string> source_sums(const GpuParts& parts, const KernelPlan& plan);
/// True if the plan's kernel writes sums along diagonals.
bool leaves_diagonals(const GpuParts& parts, const KernelPlan& plan);
/// True if the plan's kernel stores dS.
bool leaves_ds(const GpuParts& parts, const KernelPlan& plan);

/// The calls that an instance of rows.cuh is compiled for.
struct RowsSpec {
  int arch = 90;
  DType dtype = DType::bf16, out = DType::bf16;  ///< dtype: of grad_o; out: of o
  std::int64_t dv = 128;
  bool packed = false;
  double degree = 1;  ///< as in its Tile
  auto operator<=>(const RowsSpec&) const = default;
};
/// For a call whose forward would have this spec.
RowsSpec rows_spec(const KernelSpec& spec, double degree);
Source rows_source(const RowsSpec& spec);
/// A kernel that is compiled once for an architecture: the one of this device file.
Source plain_source(std::string_view kernel, int arch);
/// The kernel of transpose_v_sm90.cuh for the plan.
Source transpose_source(const KernelPlan& plan);
/// The kernel of split_keys_sm90.cuh for the plan.
Source split_source(const KernelPlan& plan);
/// The kernel of split_rows_sm90.cuh for the plan.
Source split_rows_source(const KernelPlan& plan);
/// The kernel end_queries_sm90 of the plan's file.
Source end_source(const KernelPlan& plan);

/// The kernel of cover.cuh that writes tile lists for a Mod whose facts are `listed`.
Source cover_source(const compiler::LoweredMod& lowered, bool offsets64, int arch,
                    CoverForm what = CoverForm::of_queries);

/// Stored dS, and what is computed from it.
struct DsArgs {
  StoredDs stored;
  std::span<const SumOfDs> sums;
};
/// The bytes of a source's `struct User`. `captures` by slot, on the device; `params` by slot, as Param holds them;
/// `offsets64` as in the sources; `sums` as source_sums() names them; `ds`: null unless dS is stored.
std::vector<std::byte> user_bytes(const compiler::Mod& mod, std::span<const Tensor> captures,
                                  std::span<const double> params, float scale, bool offsets64,
                                  std::span<void* const> sums = {}, const DsArgs* ds = nullptr);

}  // namespace attune::codegen
