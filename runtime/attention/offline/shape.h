// runtime/attention/offline/shape.h — the calls that a kernel is for, as commands, manifests and records write them
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "codegen/choose/choose.h"
#include "codegen/isa.h"

namespace attune::runtime {

/// Fields left out have the values for contiguous tensors and a positive scale.
struct Shape {
  std::optional<DType> dtype{}, out_dtype{};
  std::int64_t d = 128;
  std::optional<std::int64_t> dv{};
  std::optional<codegen::Length> length{};  ///< none: kernels for each length
  bool max = false, packed = false, negative = false, offsets64 = false, unaligned_captures = false,
       shared_keys = false;
  std::int64_t heads = 1;
  bool decode = false, per_entry = false, paged = false, fp8_kv = false, before = false, fixed_split = false,
       mla = false, few_queries = false, few_tiles = false;
  std::int64_t page_rows = 64, row_blocks = 1;
  std::optional<bool> tma{}, exact{};
  std::optional<int> load{}, store{};
  std::optional<std::string> kernel{};
  bool skeleton = false;               ///< instead of kernels, what mods are spliced into
  std::optional<std::string> grads{};  ///< of captures: all, none, or names joined by +. Left out: both all and none
  bool operator==(const Shape&) const = default;
};

/// One row per field. Options, keys, texts of Errors and the docs are generated from these rows.
struct ShapeRow {
  std::string_view name;                              ///< name in JSON; the option has - instead of _
  std::string_view takes;                             ///< the accepted values, in words
  std::string_view meaning;                           ///< includes the default
  bool (*set)(Shape& shape, std::string_view value);  ///< false: not a valid value
  std::string (*text)(const Shape& shape);            ///< empty: the field is left out
  enum class JsonForm : std::uint8_t { text, number, flag } json;
  bool of_cpu;  ///< true if the field matters to CPU kernels too
};
std::span<const ShapeRow> shape_rows();
std::string option_of(const ShapeRow& row);

/// The default type of o. There is no o of e4m3.
DType usual_out(DType of);

/// For GPU kernels. `arch` as in codegen.
codegen::KernelSpec spec_of(const Shape& shape, int arch);
/// The shape of such calls, with as few fields set as possible.
Shape shape_of(const codegen::KernelSpec& spec, codegen::Length length);

/// The target of a kernel: sm_90a, avx512.
struct TargetName {
  std::optional<int> arch{};  ///< of a GPU, as in codegen
  std::optional<codegen::Isa> isa{};
  bool operator==(const TargetName&) const = default;
};
/// True if arch / 10 is the compute capability of a GPU that kernels are generated for by name.
bool is_known_arch(int arch);
std::optional<TargetName> target_named(std::string_view name);
std::string name_of(const TargetName& target);
/// Some GPU targets and all CPU targets, for help and advice.
std::span<const std::string_view> known_targets();

}  // namespace attune::runtime
