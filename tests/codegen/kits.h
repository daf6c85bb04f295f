// tests/codegen/kits.h — the kits that this machine runs, made once, and their elements
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/llvm.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/orc.h"
#include "runtime/machine/tensor.h"
#include "tests/guarded.h"

namespace attune::tests {

struct LoadedKit {
  codegen::Isa isa;
  codegen::Unit unit;
  DType type;
  codegen::Tiling tiling;
  runtime::cpu::Loaded loaded;

  LoadedKit(codegen::Isa i, codegen::Unit u, DType t)
      : isa(i), unit(u), type(t), tiling(codegen::tiling(i, u)), loaded(codegen::kit_object(i, u, t)) {}

  template <class F>
  F* find(const char* symbol) const {
    return loaded.find<F>(symbol);
  }
  bool is_bf16() const { return unit == codegen::Unit::bf16; }
  std::string name() const {
    return std::string(codegen::name_of(isa)) + " " + std::string(attune::name_of(type)) +
           (is_bf16() ? " in pairs" : "");
  }
};

inline std::vector<codegen::Isa> host_isas() {
  using codegen::Isa;
  std::vector<Isa> all;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
    if (runtime::cpu::supports(isa)) all.push_back(isa);
  return all;
}

inline const std::vector<LoadedKit>& kits() {
  static const std::vector<LoadedKit> all = [] {
    std::vector<LoadedKit> made;
    for (const codegen::Isa isa : host_isas()) {
      for (const DType type : {DType::f32, DType::f16, DType::bf16}) made.emplace_back(isa, codegen::Unit::f32, type);
      if (codegen::has_bf16(isa)) made.emplace_back(isa, codegen::Unit::bf16, DType::bf16);
    }
    return made;
  }();
  return all;
}

/// While this lives the thread may use AMX tiles, if the kit multiplies by them.
struct Tiles {
  explicit Tiles(const LoadedKit& kit) : end_(kit.find<void()>(codegen::kit_symbol::tiles_end)) {
    if (auto* begin = kit.find<void()>(codegen::kit_symbol::tiles_begin)) begin();
  }
  ~Tiles() {
    if (end_) end_();
  }
  Tiles(const Tiles&) = delete;

 private:
  void (*end_)();
};

/// Guarded elements of a type, read and written as numbers.
class Elements {
 public:
  Elements(DType type, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * size_of(type)), view_(bytes_.data(), type, {count}) {}

  void* data() const { return bytes_.data(); }
  void* at(std::int64_t i) const { return bytes_.data() + i * static_cast<std::int64_t>(size_of(view_.dtype)); }
  double get(std::int64_t i) const { return runtime::load(view_, i); }
  void set(std::int64_t i, double x) const { runtime::store(view_, i, x); }
  std::int64_t size() const { return view_.shape[0]; }
  const Guarded<std::byte>& bytes() const { return bytes_; }

 private:
  Guarded<std::byte> bytes_;
  Tensor view_;
};

}  // namespace attune::tests
