// runtime/offline/shape.h — the calls that a kernel is for, in words: what commands, manifests and records say of them
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "codegen/choose.h"
#include "codegen/isa.h"

namespace attune::runtime {

/// What is left out is as it is for contiguous tensors of a positive scale.
struct Shape {
  std::optional<DType> dtype{}, out_dtype{};
  std::int64_t d = 128;
  std::optional<std::int64_t> dv{};
  std::optional<codegen::Length> length{};  ///< none: each of them
  bool max = false, packed = false, negative = false, wide = false;
  std::int64_t heads = 1;
  std::optional<bool> boxes{}, exact{};
  std::optional<int> load{}, store{};
  std::optional<std::string> kernel{};
  std::optional<std::string> grads{};  ///< of captures: all, none, or names joined by +. None: all, and none
  bool operator==(const Shape&) const = default;
};

/// One row for each field: options, keys, the words of Errors and the docs are made of them.
struct ShapeRow {
  std::string_view name;                              ///< in JSON; as an option with - for _
  std::string_view takes;                             ///< in words
  std::string_view meaning;                           ///< with what holds where it is left out
  bool (*set)(Shape& shape, std::string_view value);  ///< false: the value is none of these
  std::string (*text)(const Shape& shape);            ///< empty: it is left out
  enum class Json : std::uint8_t { text, number, flag } json;
  bool of_cpu;  ///< does it matter to kernels of the CPU too?
};
std::span<const ShapeRow> shape_rows();
std::string option_of(const ShapeRow& row);

/// For kernels of a GPU. `arch` as codegen has it.
codegen::ForwardSpec spec_of(const Shape& shape, int arch);
/// The shape of such calls, with no more words than it takes.
Shape shape_of(const codegen::ForwardSpec& spec, codegen::Length length);

/// What kernels are compiled for: sm_90a, avx512.
struct TargetName {
  std::optional<int> arch{};  ///< of a GPU, as codegen has it
  std::optional<codegen::Isa> isa{};
  bool operator==(const TargetName&) const = default;
};
std::optional<TargetName> target_named(std::string_view name);
std::string name_of(const TargetName& target);
/// Some of those of GPUs, and all of CPUs: for help and advice.
std::span<const std::string_view> known_targets();

}  // namespace attune::runtime
