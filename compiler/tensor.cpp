// compiler/tensor.cpp — names, shapes and views of tensors; never reads their elements
#include <attune/tensor.h>

#include <limits>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/mod.h"
#include "compiler/requirements.h"

namespace attune {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f64: return "f64";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
    case DType::e4m3: return "e4m3";
  }
  return "?";
}

namespace {

std::string list(std::span<const std::int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

}  // namespace

Tensor::Tensor(const void* memory, DType type, std::span<const std::int64_t> extents,
               std::span<const std::int64_t> steps, Device where)
    : data(const_cast<void*>(memory)), dtype(type), rank(static_cast<int>(extents.size())), device(where) {
  compiler::check_extents(extents, type);
  if (!steps.empty() && steps.size() != extents.size())
    throw Error("bad-strides", fmt::format("a tensor has the shape {} and the strides {}", list(extents), list(steps)),
                {}, fmt::format("it has {} dimensions and {} strides", extents.size(), steps.size()),
                "give one stride for each dimension, in elements, or none for contiguous memory");
  std::int64_t contiguous = 1;
  for (std::size_t i = extents.size(); i-- > 0;) {
    shape[i] = extents[i];
    strides[i] = steps.empty() ? contiguous : steps[i];
    // An empty tensor's strides mean nothing; 1 keeps their product from overflowing.
    contiguous *= extents[i] > 0 && contiguous < std::numeric_limits<std::int64_t>::max() / extents[i] ? extents[i] : 1;
  }
}

Tensor::Tensor(const void* memory, DType type, std::initializer_list<std::int64_t> extents,
               std::initializer_list<std::int64_t> steps, Device where)
    : Tensor(memory, type, std::span(extents.begin(), extents.size()), std::span(steps.begin(), steps.size()), where) {}

Tensor Tensor::declared(DType dtype, int rank) {
  if (rank < 0 || rank > max_rank)
    throw Error("bad-rank", fmt::format("a capture is declared with {} dimensions", rank), {},
                fmt::format("a tensor has 0 to {}", max_rank), "declare it with the dimensions it will have");
  Tensor out;
  out.dtype = dtype;
  out.rank = rank;
  out.shape.fill(-1);
  return out;
}

Tensor Tensor::permuted(std::initializer_list<int> order) const {
  const std::span<const int> from(order.begin(), order.size());
  const auto refuse = [&](const std::string& why) {
    return Error("bad-permutation", fmt::format("{} is permuted by [{}]", describe(), fmt::join(from, ", ")), {}, why,
                 "name each dimension once, e.g. permuted({0, 2, 1, 3})");
  };
  if (static_cast<int>(from.size()) != rank)
    throw refuse(fmt::format("it has {} dimensions, and the order names {}", rank, from.size()));
  Tensor out = *this;
  unsigned seen = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0 || from[i] >= rank) throw refuse(fmt::format("there is no dimension {}", from[i]));
    if (seen >> from[i] & 1) throw refuse(fmt::format("dimension {} is named twice", from[i]));
    seen |= 1u << from[i];
    out.shape[i] = shape[static_cast<std::size_t>(from[i])];
    out.strides[i] = strides[static_cast<std::size_t>(from[i])];
  }
  return out;
}

std::string Tensor::describe() const {
  if (rank < 0) return "no tensor";
  if (declared()) return fmt::format("{} of rank {}", name_of(dtype), rank);
  return fmt::format("{} {}", name_of(dtype), list({shape.data(), static_cast<std::size_t>(rank)}));
}

namespace detail {

void require_seen_as(const Tensor& tensor, const std::string& name, char seen, Line at) {
  const std::string called = name.empty() ? "a captured tensor" : fmt::format("capture `{}`", name);
  const Place place{.name = at.file ? at.file : "", .line = at.file ? at.number : 0};
  if (!tensor.given())
    throw Error("capture-missing", called + " is not a tensor", place, "the Tensor was default-constructed",
                "give it data, a type and a shape");
  const ir::Type is = compiler::type_of(tensor.dtype);
  const ir::Type wanted = seen == 'f' ? ir::Type::F32 : seen == 'i' ? ir::Type::I32 : ir::Type::Bool;
  if (is == wanted) return;
  const auto cpp = [](ir::Type type) {
    return type == ir::Type::F32 ? "Capture<float>" : type == ir::Type::I32 ? "Capture<int>" : "Capture<bool>";
  };
  throw Error("capture-type",
              fmt::format("{} is captured as {} and holds {}", called, cpp(wanted), name_of(tensor.dtype)), place,
              fmt::format("elements of {} are read as {}, not as {}", name_of(tensor.dtype), ir::name_of(is),
                          ir::name_of(wanted)),
              fmt::format("capture it as {}, or convert the tensor", cpp(is)));
}

}  // namespace detail
}  // namespace attune
