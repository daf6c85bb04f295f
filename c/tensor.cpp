// c/tensor.cpp — converts DLPack's tensors to attune's; tensors that own their memory
#include "c/attention.h"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>

#include "c/error.h"

namespace attune::c {
namespace {

struct TypeRow {
  DType type;
  std::uint8_t code, bits;
};
constexpr std::array types{
    TypeRow{DType::f32, ATTUNE_FLOAT, 32},   TypeRow{DType::f16, ATTUNE_FLOAT, 16},
    TypeRow{DType::bf16, ATTUNE_BFLOAT, 16}, TypeRow{DType::f64, ATTUNE_FLOAT, 64},
    TypeRow{DType::i64, ATTUNE_INT, 64},     TypeRow{DType::i32, ATTUNE_INT, 32},
    TypeRow{DType::i16, ATTUNE_INT, 16},     TypeRow{DType::i8, ATTUNE_INT, 8},
    TypeRow{DType::u8, ATTUNE_UINT, 8},      TypeRow{DType::boolean, ATTUNE_BOOL, 8},
    TypeRow{DType::e4m3, ATTUNE_E4M3, 8},
};

std::string name_of(const attune_dtype& type) {
  const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const char* const of_8_bits[] = {"e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"};
  if (type.code < std::size(kinds)) return fmt::format("{}{}", kinds[type.code], type.bits);
  const std::size_t narrow = type.code - std::size(kinds);
  if (type.bits == 8 && narrow < std::size(of_8_bits)) return fmt::format("float8_{}", of_8_bits[narrow]);
  return fmt::format("code {} with {} bits", type.code, type.bits);
}

DType type_of(const attune_dtype& type, const Called& called) {
  if (type.lanes != 1)
    throw Error("dlpack-lanes", fmt::format("{} holds vectors of {} elements", called.text(), type.lanes), {},
                fmt::format("its dtype has {} lanes, and attune reads elements one by one", type.lanes),
                "set dtype.lanes to 1, and give the tensor one more dimension");
  for (const TypeRow& row : types)
    if (row.code == type.code && row.bits == type.bits) return row.type;
  throw Error("dlpack-type", fmt::format("{} holds {}", called.text(), name_of(type)), {},
              "attune reads float16, float32, float64, bfloat16, float8_e4m3fn, int8 to int64, uint8 and bool",
              "convert it to one of these types");
}

Device device_of(const attune_device& device, const Called& called) {
  switch (static_cast<int>(device.device_type)) {
    case ATTUNE_CPU:
    case ATTUNE_CUDA_HOST: return Device::cpu();
    case ATTUNE_CUDA:
    case ATTUNE_CUDA_MANAGED: return Device::cuda(device.device_id);
    default: break;
  }
  throw Error("dlpack-device",
              fmt::format("{} is on a device of type {}", called.text(), static_cast<int>(device.device_type)), {},
              "attune computes on the CPU (1) and on CUDA devices (2); it reads pinned (3) and managed (13) memory too",
              "copy it to one of these");
}

}  // namespace

std::string Called::text() const { return fmt::format("{}{}{}", before, name, after); }

Tensor tensor_of(const attune_tensor* from, const Called& called) {
  if (!from) return {};
  const DType type = type_of(from->dtype, called);
  const Device device = device_of(from->device, called);
  const auto rank = static_cast<std::size_t>(from->ndim < 0 ? 0 : from->ndim);
  if (from->ndim < 0 || rank > Tensor::max_rank)
    throw Error("bad-rank", fmt::format("{} has {} dimensions", called.text(), from->ndim), {},
                fmt::format("a tensor has at most {}", Tensor::max_rank), "merge or index away some dimensions");
  if (rank > 0 && !from->shape)
    throw Error("null-pointer", fmt::format("{} has no shape", called.text()), {},
                fmt::format("it has {} dimensions, and its `shape` is NULL", rank), "point `shape` at the extents");
  if (from->byte_offset > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(from->data))
    throw Error("dlpack-offset", fmt::format("{} begins outside of memory", called.text()), {},
                fmt::format("its `byte_offset` is {}, from {}", from->byte_offset, from->data),
                "set `byte_offset` to the bytes between `data` and the first element");
  void* const data = from->data ? static_cast<char*>(from->data) + from->byte_offset : nullptr;
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(type) != 0)
    throw Error("dlpack-aligned", fmt::format("{} is not aligned for its elements", called.text()), {},
                fmt::format("its first element is at {}, and elements of {} need a multiple of {} bytes", data,
                            attune::name_of(type), size_of(type)),
                "copy it to memory of its own");
  const std::span<const std::int64_t> shape(from->shape, rank), strides(from->strides, from->strides ? rank : 0);
  try {
    return Tensor(data, type, shape, strides, device);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("{}: {}", called.text(), e.problem), e.where, e.why, e.fix);
  }
}

namespace {

/// The object that owns a tensor of attune_alloc. `tensor` is the first member, so both have the same address.
struct Allocated {
  attune_tensor tensor{};
  std::array<std::int64_t, Tensor::max_rank> shape{}, strides{};
  std::shared_ptr<void> memory;
};
static_assert(std::is_standard_layout_v<Allocated>);

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_alloc(const attune_tensor* like, attune_tensor** tensor) {
  return c::guarded([&] {
    c::require(like, "attune_alloc", "like");
    c::require(tensor, "attune_alloc", "tensor");
    attune_tensor shaped = *like;
    shaped.data = nullptr;
    shaped.strides = nullptr;
    const Tensor wanted = c::tensor_of(&shaped, "like");
    auto out = std::make_unique<c::Allocated>();
    const auto rank = static_cast<std::size_t>(wanted.rank);
    out->memory = detail::allocate(wanted.device, wanted.dtype, std::span(wanted.shape).first(rank));
    out->shape = wanted.shape;
    out->strides = wanted.strides;
    out->tensor = shaped;
    out->tensor.data = out->memory.get();
    out->tensor.shape = out->shape.data();
    out->tensor.strides = out->strides.data();
    out->tensor.byte_offset = 0;
    *tensor = &out.release()->tensor;
  });
}

void attune_dealloc(attune_tensor* tensor) { delete reinterpret_cast<c::Allocated*>(tensor); }

attune_error* attune_copy(const attune_tensor* from, const attune_tensor* to, void* stream) {
  return c::guarded([&] {
    c::require(from, "attune_copy", "from");
    c::require(to, "attune_copy", "to");
    copy(c::tensor_of(from, "from"), c::tensor_of(to, "to"), stream, Line{});
  });
}
