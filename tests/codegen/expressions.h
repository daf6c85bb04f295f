// tests/codegen/expressions.h — expressions compiled for an instruction set, and the same lanes for eval
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "codegen/cpu.h"
#include "compiler/mod.h"
#include "ir/eval.h"
#include "runtime/engines/cpu/orc.h"
#include "tests/guarded.h"

namespace attune::tests {

using codegen::Isa;

/// The instruction sets that this machine can run, from the least to the most.
std::vector<Isa> supported_isas();

/// A captured tensor whose neighbours in memory fault, with any strides.
class Captured {
 public:
  /// Strides in elements; the memory reaches exactly from the lowest to the highest element.
  Captured(DType dtype, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides);
  explicit Captured(const Tensor& borrowed) : tensor_(borrowed) {}
  const Tensor& tensor() const { return tensor_; }
  /// The element at an index clamped into the tensor.
  double at(std::span<const std::int32_t> index) const;
  /// Each element becomes the next result of `value`, rounded to the element's type.
  void fill(const std::function<double()>& value);

 private:
  std::int64_t offset(std::span<const std::int32_t> index) const;

  std::optional<Guarded<char>> memory_;
  Tensor tensor_;
};

/// The coordinates of lanes.
struct Place {
  std::array<float, 16> s{}, p{};
  std::int32_t b = 0, h = 0, q = 0, kv = 0, q_len = 1, kv_len = 1, origin = 0;  ///< q and kv of the first lane
};

/// How expressions are compiled. Stand-ins replace fields: q_len for those of heads, kv_len for rows, s for columns.
struct Vectors {
  Isa isa = Isa::portable;
  bool rows = false;     ///< q goes up from lane to lane instead of kv
  bool uniform = false;  ///< s and p are those of the first lane
  unsigned lanes() const { return isa >= Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4; }
};

/// A lane's inputs for eval, without params and reads.
ir::Env env_at(const Vectors& shape, const Place& place, unsigned lane);

/// Expressions as compiled code. Free binders take their values from `bound`, as in Env.
class Compiled {
 public:
  Compiled(const Vectors& shape, std::span<const ir::Expr> roots, std::span<const compiler::CaptureSlot> captures,
           std::span<const std::int32_t> bound = {});

  /// The value of root i in lane j at [i * 16 + j].
  std::vector<double> operator()(const Place& place, std::span<const Captured* const> captures,
                                 std::span<const double> params) const;

 private:
  using Run = void(const Place*, const codegen::CaptureArg*, const std::uint32_t* params, std::uint32_t* out);

  std::vector<ir::Type> types_, param_types_;
  runtime::cpu::Loaded loaded_;
  Run* run_;
};

}  // namespace attune::tests
