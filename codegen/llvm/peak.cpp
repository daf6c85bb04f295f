// codegen/llvm/peak.cpp — independent multiply-adds at the machine's peak rate, the reference for benchmarks
#include <array>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm.h"
#include "codegen/llvm/module.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {
namespace {

/// More than latency times ports of any known machine; together with the two operands, within AVX2's 16 registers.
constexpr unsigned chains = 12;
/// Copies of the chains in the loop, to make its own instructions negligible.
constexpr unsigned unrolled = 4;

}  // namespace

Peak peak_object(Isa isa, Unit unit) {
  Module module(isa, "peak");
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  const std::array<llvm::Type*, 2> args{llvm::Type::getInt64Ty(module.context()), pointer};
  Code code(module.define("peak", llvm::Type::getVoidTy(module.context()), args));
  const bool tiles = isa == Isa::amx && unit == Unit::bf16;
  if (tiles) {
    // All eight tiles have 16 rows of 64 bytes.
    std::array<std::uint8_t, 64> config{};
    config[0] = 1;
    for (std::size_t t = 0; t < 8; ++t) config[16 + 2 * t] = 64, config[48 + t] = 16;
    for (std::size_t i = 0; i < config.size(); ++i)
      code.store({code, code.ir().getInt8(config[i])}, code.at(code.arg(1), code.i8(), static_cast<std::int64_t>(i)));
    code.ir().CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {code.arg(1).get()});
    const auto tile = [&](unsigned t) { return code.ir().getInt8(static_cast<std::uint8_t>(t)); };
    for (unsigned t = 0; t < 8; ++t) code.ir().CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {tile(t)});
    code.loop(code.index(0), code.arg(0), 1, [&](Val) {
      for (unsigned i = 0; i < 4 * unrolled; ++i)
        code.ir().CreateIntrinsic(llvm::Intrinsic::x86_tdpbf16ps, {},
                                  {tile(i % 4), tile(4 + i % 2), tile(6 + i / 2 % 2)});
    });
    code.ir().CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {});
    code.done();
    return {std::move(module).object(), 4 * unrolled * 2.0 * 16 * 16 * 32};
  }
  const auto width = static_cast<unsigned>(tiling(isa, unit).width);
  auto* type = Code::vector(code.f32(), width);
  const Val a = code.load(type, code.arg(1)), b = code.load(type, code.at(code.arg(1), code.f32(), width));
  const auto step = [&](Val c) {
    if (unit == Unit::f32) return fma(a, b, c);
    auto* pairs = Code::vector(code.bf16(), 2 * width);
    const auto as_pairs = [&](Val x) { return Val{code, code.ir().CreateBitCast(x.get(), pairs)}; };
    return code.intrinsic(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {}, {c, as_pairs(a), as_pairs(b)});
  };
  const Code::Carried start(chains, splat(code.real(0), width));
  const auto sums = code.loop(code.index(0), code.arg(0), 1, start, [&](Val, const Code::Carried& carried) {
    Code::Carried next = carried;
    for (unsigned u = 0; u < unrolled; ++u)
      for (Val& c : next) c = step(c);
    return next;
  });
  Val all = sums[0];
  for (unsigned i = 1; i < chains; ++i) all = all + sums[i];
  code.store(all, code.arg(1));
  code.done();
  return {std::move(module).object(), chains * unrolled * 2.0 * width * static_cast<double>(per_unit(unit))};
}

}  // namespace attune::codegen
