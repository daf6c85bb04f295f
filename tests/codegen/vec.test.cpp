// tests/codegen/vec.test.cpp — values, loops and branches compile and compute
#include "codegen/llvm/vec.h"

#include <array>

#include "codegen/llvm/module.h"
#include "runtime/engines/cpu/orc.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::codegen;

TEST_CASE("a loop over vectors adds up", "[vec]") {
  Module module(Isa::portable, "sum");
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  const std::array<llvm::Type*, 3> args{pointer, llvm::Type::getInt64Ty(module.context()), pointer};
  Code code(module.define("sum", llvm::Type::getVoidTy(module.context()), args));
  auto* four = Code::vector(code.f32(), 4);
  const Val zero = splat(code.real(0), 4);
  const auto sum = code.loop(code.index(0), code.arg(1), 4, {zero}, [&](Val i, const Code::Carried& carried) {
    return Code::Carried{fma(code.load(four, code.at(code.arg(0), code.f32(), i)), like(zero, 2.0), carried[0])};
  });
  code.store(sum_of_lanes(sum[0]), code.arg(2));
  code.done();
  const runtime::cpu::Loaded loaded(std::move(module).object());
  auto* f = loaded.find<void(const float*, std::int64_t, float*)>("sum");
  REQUIRE(f);
  CHECK(!loaded.find<void()>("another"));
  const std::array<float, 8> x{1, 2, 3, 4, 5, 6, 7, 8};
  float out = -1;
  f(x.data(), 8, &out);
  CHECK(out == 72);
  f(x.data(), 0, &out);
  CHECK(out == 0);
}
