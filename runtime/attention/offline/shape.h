// runtime/attention/offline/shape.h — the calls that a kernel is for, in the words of commands, manifests and records
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "codegen/choose.h"
#include "codegen/isa.h"

namespace attune::runtime {

/// Fields left out have the values for contiguous tensors and a positive scale.
struct Shape {
  std::optional<DType> dtype{}, out_dtype{};
  std::int64_t d = 128;
  std::optional<std::int64_t> dv{};
  std::optional<codegen::Length> length{};  ///< none: kernels for each length
  bool max = false, packed = false, negative = false, offsets64 = false;
  std::int64_t heads = 1;
  bool decode = false, per_entry = false, paged = false, fp8_kv = false, before = false, fixed_split = false,
       mla = false, two_row_blocks = false;
  std::int64_t page_rows = 64;
  std::optional<bool> tma{}, exact{};
  std::optional<int> load{}, store{};
  std::optional<std::string> kernel{};
  std::optional<std::string> grads{};  ///< of captures: all, none, or names joined by +. Left out: both all and none
  bool operator==(const Shape&) const = default;
};

/// One row per field; options, keys, texts of Errors and the docs are generated from them.
struct ShapeRow {
  std::string_view name;                              ///< in JSON; as an option with - for _
  std::string_view takes;                             ///< in words
  std::string_view meaning;                           ///< including what holds if it is left out
  bool (*set)(Shape& shape, std::string_view value);  ///< false: not a valid value
  std::string (*text)(const Shape& shape);            ///< empty: left out
  enum class JsonForm : std::uint8_t { text, number, flag } json;
  bool of_cpu;  ///< whether it matters to CPU kernels too
};
std::span<const ShapeRow> shape_rows();
std::string option_of(const ShapeRow& row);

/// Of o, where nothing is said of it. There is no o of e4m3.
DType usual_out(DType of);

/// For GPU kernels. `arch` as in codegen.
codegen::KernelSpec spec_of(const Shape& shape, int arch);
/// The shape of such calls, with as few fields set as possible.
Shape shape_of(const codegen::KernelSpec& spec, codegen::Length length);

/// What kernels are compiled for: sm_90a, avx512.
struct TargetName {
  std::optional<int> arch{};  ///< of a GPU, as codegen has it
  std::optional<codegen::Isa> isa{};
  bool operator==(const TargetName&) const = default;
};
/// Is it the compute capability, times ten, of a GPU that kernels are made for by name?
bool is_known_arch(int arch);
std::optional<TargetName> target_named(std::string_view name);
std::string name_of(const TargetName& target);
/// Some GPU targets and all CPU targets, for help and advice.
std::span<const std::string_view> known_targets();

}  // namespace attune::runtime
