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
#include "runtime/cpu/orc.h"
#include "tests/guarded.h"

namespace attune::tests {

using codegen::Isa;

/// What this machine can run of them, from the least to the most.
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
  /// Every element becomes what `value` gives next, or the nearest to it that its type has.
  void fill(const std::function<double()>& value);

 private:
  std::int64_t offset(std::span<const std::int32_t> index) const;

  std::optional<Guarded<char>> memory_;
  Tensor tensor_;
};

/// Where lanes stand.
struct Place {
  std::array<float, 16> s{}, p{};
  std::int32_t b = 0, h = 0, q = 0, kv = 0, q_len = 1, kv_len = 1, origin = 0;  ///< q and kv of the first lane
};

/// How expressions are compiled. Fields are stood in for: any of the head is q_len, of a row kv_len, of a column s.
struct Shape {
  Isa isa = Isa::portable;
  bool rows = false;     ///< q goes up from lane to lane instead of kv
  bool uniform = false;  ///< s and p are those of the first lane
  unsigned lanes() const { return isa >= Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4; }
};

/// What eval is to take for a lane, but for params and reads.
ir::Env env_at(const Shape& shape, const Place& place, unsigned lane);

/// Expressions as compiled code. Those with free binders take their variables' values from `bound`, as in Env.
class Compiled {
 public:
  Compiled(const Shape& shape, std::span<const ir::Expr> roots, std::span<const compiler::CaptureSlot> captures,
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
