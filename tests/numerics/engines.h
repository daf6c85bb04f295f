// tests/numerics/engines.h — every engine of this build that this machine can run, and the mods they get
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/engine.h"

namespace attune::tests {

/// A mod as written, which determines the results, and lowered, as engines get it.
struct Subject {
  compiler::LoweredMod written;  ///< without what lowering derives
  compiler::LoweredMod lowered;
  std::optional<double> scale{};
  std::optional<bool> exact{};  ///< for GPU kernels

  explicit Subject(const Attention& attention);
  explicit Subject(compiler::BoundMod written);
};

struct Shape;

struct Engine {
  /// The types of queries with which it takes k and v of e4m3.
  enum class Fp8Kv : std::uint8_t { all, decode };

  std::string name;
  std::function<void(const Subject&, const Forward&, const compiler::Problem&)> forward;
  std::function<void(const Subject&, const Backward&, const compiler::Problem&)> backward;  ///< may be none
  bool per_entry = false;      ///< takes calls with per-entry settings
  std::int64_t widest = 1024;  ///< wider heads are refused, see tests/codegen/choose.test.cpp
  bool mla = false;  ///< takes heads of 576 columns of which values are the first 512, however wide others are
  Fp8Kv fp8_kv = Fp8Kv::all;
  /// True if operands of products, probabilities included, are e4m3 when q, k and v are; else the operands are f32.
  bool products_of_e4m3 = false;

  /// The reason why it does not take this shape as a forward, or empty.
  std::string why_not(const Shape& shape) const;
};

/// A forward of host tensors on a device, by copies there; values that are a view of keys stay one.
void on_device(const Subject& subject, const Forward& call, const compiler::Problem& problem,
               const runtime::Means& means);
void on_device(const Subject& subject, const Backward& call, const compiler::Problem& problem,
               const runtime::Means& means);

/// The CUDA engine, on the first device.
Engine cuda_engine();

/// One for each instruction set of this CPU, and CUDA if there is a device. ATTUNE_TEST_ENGINE=cuda: only engines whose
/// names begin with that.
const std::vector<Engine>& engines();

}  // namespace attune::tests
