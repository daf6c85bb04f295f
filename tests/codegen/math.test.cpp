// tests/codegen/math.test.cpp — the functions of f32 keep to their stated errors, on every instruction set
#include "codegen/llvm/math.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "codegen/llvm/module.h"
#include "ir/eval.h"
#include "runtime/engines/cpu/orc.h"
#include "tests/catch.h"
#include "tests/codegen/expressions.h"
#include "tests/codegen/ulp.h"

namespace attune::codegen {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Function {
  ir::Op op;
  std::function<Val(Isa, Val, Val)> code;
};

const std::vector<Function>& functions() {
  using ir::Op;
  static const std::vector<Function> all{
      {Op::Exp2, [](Isa isa, Val x, Val) { return exp2(isa, x); }},
      {Op::Exp, [](Isa isa, Val x, Val) { return exp(isa, x); }},
      {Op::Log2, [](Isa, Val x, Val) { return log2(x); }},
      {Op::Log, [](Isa, Val x, Val) { return log(x); }},
      {Op::Pow, [](Isa isa, Val x, Val y) { return pow(isa, x, y); }},
      {Op::Sin, [](Isa, Val x, Val) { return sin(x); }},
      {Op::Cos, [](Isa, Val x, Val) { return cos(x); }},
      {Op::Tan, [](Isa, Val x, Val) { return tan(x); }},
      {Op::Tanh, [](Isa, Val x, Val) { return tanh(x); }},
      {Op::Sigmoid, [](Isa isa, Val x, Val) { return sigmoid(isa, x); }},
      {Op::Erf, [](Isa isa, Val x, Val) { return erf(isa, x); }},
      {Op::Sqrt, [](Isa, Val x, Val) { return sqrt(x); }},
      {Op::Rsqrt, [](Isa, Val x, Val) { return rsqrt(x); }},
      {Op::Floor, [](Isa isa, Val x, Val) { return floor(isa, x); }},
      {Op::Ceil, [](Isa isa, Val x, Val) { return ceil(isa, x); }},
      {Op::Trunc, [](Isa isa, Val x, Val) { return trunc(isa, x); }},
      {Op::Round, [](Isa isa, Val x, Val) { return round(isa, x); }},
  };
  return all;
}

std::string softmax_symbol(Degree degree, unsigned lanes) {
  return (degree == Degree::f32 ? "softmax_f32_" : "softmax_bf16_") + std::to_string(lanes);
}
std::string symbol(ir::Op op) { return std::string(ir::row(op).spelling); }

using Mapped = void(const float* x, const float* y, float* out, std::int64_t n);

/// out[i] = f(x[i], y[i]); n is a multiple of `lanes`.
void define(Module& module, const std::string& name, unsigned lanes, const std::function<Val(Val, Val)>& f) {
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  const std::array<llvm::Type*, 4> args{pointer, pointer, pointer, llvm::Type::getInt64Ty(module.context())};
  Code code(module.define(name, llvm::Type::getVoidTy(module.context()), args));
  llvm::Type* type = Code::vector(code.f32(), lanes);
  code.loop(code.index(0), code.arg(3), lanes, [&](Val i) {
    const auto load = [&](unsigned which) { return code.load(type, code.at(code.arg(which), code.f32(), i)); };
    code.store(f(load(0), load(1)), code.at(code.arg(2), code.f32(), i));
  });
  code.done();
}

/// Every n-th f32 of both signs, denormals included, and the arguments that functions get wrong most easily.
std::vector<float> samples(std::uint32_t stride) {
  std::vector<float> out{0.0f,
                         -0.0f,
                         inf,
                         -inf,
                         nan,
                         1,
                         -1,
                         0x1p-149f,
                         -0x1p-149f,
                         0x1p-126f,
                         0x1.fffffep127f,
                         -0x1.fffffep127f,
                         0.5f,
                         -0.5f,
                         1.5f,
                         2.5f,
                         -2.5f,
                         0x1.fffffep-2f,
                         0x1p23f,
                         0x1p23f + 1,
                         0x1p22f + 0.5f,
                         -0x1p22f - 0.5f,
                         128,
                         127.99999f,
                         -126,
                         -126.5f,
                         -149,
                         -149.5f,
                         -150,
                         -150.5f,
                         88.72283f,
                         88.7229f,
                         -103.97f,
                         -103.98f,
                         -87.4f,
                         3.9f,
                         3.95f,
                         0.925f,
                         9.01f,
                         10};
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000; bits += stride)
    out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  // Common arguments: small numbers, and neighbours of multiples of pi / 2.
  for (int i = -200'000; i < 200'000; ++i) out.push_back(static_cast<float>(i) * 0.0007f);
  for (int i = 1; i < 20'000; ++i) out.push_back(static_cast<float>(i * 1.5707963267948966));
  while (out.size() % 16) out.push_back(0);
  return out;
}

runtime::cpu::Loaded compile(Isa isa) {
  Module module(isa, "math");
  const unsigned lanes = tests::Vectors{isa}.lanes();
  for (const Function& f : functions())
    define(module, symbol(f.op), lanes, [&](Val x, Val y) { return f.code(isa, x, y); });
  for (const unsigned n : {lanes, 1u})
    for (const Degree degree : {Degree::f32, Degree::bf16})
      define(module, softmax_symbol(degree, n), n, [&](Val x, Val) { return exp2_softmax(isa, x, degree); });
  return runtime::cpu::Loaded(std::move(module).object());
}

struct Machine {
  Isa isa;
  runtime::cpu::Loaded code;
};
const std::vector<Machine>& machines() {
  static const std::vector<Machine> all = [] {
    std::vector<Machine> out;
    for (const Isa isa : tests::supported_isas()) out.push_back({isa, compile(isa)});
    return out;
  }();
  return all;
}

std::vector<float> mapped(const Machine& machine, const std::string& name, const std::vector<float>& x,
                          const std::vector<float>& y) {
  auto* function = machine.code.find<Mapped>(name.c_str());
  REQUIRE(function);
  std::vector<float> out(x.size());
  function(x.data(), y.data(), out.data(), static_cast<std::int64_t>(x.size()));
  return out;
}

/// Second arguments for pow: about half of them keep the power in range, and some are whole numbers.
std::vector<float> exponents(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[(i * 7919) % x.size()];
    if (i % 2 && std::isfinite(x[i]) && x[i] != 0)
      y[i] = static_cast<float>((static_cast<double>(i % 3001) / 1500 - 1) * 140 / std::log2(std::fabs(x[i])));
    if (i % 16 == 5) y[i] = std::round(y[i]);
  }
  return y;
}

}  // namespace

TEST_CASE("functions of f32 are as near to the truth as they say", "[math]") {
  // math.h's 33 million arguments were every 131st f32.
  const std::vector<float> x = samples(10'007), y = exponents(x);
  for (const Function& f : functions()) {
    std::vector<double> truth(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      truth[i] = ir::apply(f.op, ir::Type::F32, std::array<double, 2>{x[i], y[i]}, ir::Precision::f64);
    // For sqrt and rsqrt, eval's own f32 result has an error as large as these bounds.
    const double allowed = f.op == ir::Op::Sqrt ? 0.5 : f.op == ir::Op::Rsqrt ? 1.5 : tests::stated_ulps(f.op);
    for (const Machine& machine : machines()) {
      const std::vector<float> out = mapped(machine, symbol(f.op), x, y);
      double most = -1;
      std::size_t at = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (const double error = tests::ulps(out[i], truth[i]); error > most) most = error, at = i;
      INFO(symbol(f.op) << " for " << name_of(machine.isa) << " at " << x[at] << ", " << y[at] << " is " << out[at]
                        << " and not " << truth[at] << ": " << most << " ulp");
      CHECK(most <= allowed);
    }
  }
}

TEST_CASE("the softmax's exp2 is 0 at -inf, 1 at 0, NaN at NaN, and near the truth between", "[math]") {
  std::vector<float> x{
      -inf, 0.0f, -0.0f, nan, -nan, std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffffffffu)};
  const std::size_t special = x.size();
  for (int i = 0; i < 2'000'000; ++i) x.push_back(static_cast<float>(i) * -6.35e-5f);
  for (float tiny = 1; tiny > 0x1p-149f; tiny /= 3) x.push_back(-tiny);
  for (const float beyond : {-127.0f, -130.0f, -1e4f, -1e30f, std::numeric_limits<float>::lowest()})
    x.push_back(beyond);
  while (x.size() % 16) x.push_back(-1);
  for (const Machine& machine : machines())
    for (const unsigned lanes : {tests::Vectors{machine.isa}.lanes(), 1u})
      for (const Degree degree : {Degree::f32, Degree::bf16}) {
        const std::vector<float> out = mapped(machine, softmax_symbol(degree, lanes), x, x);
        CAPTURE(name_of(machine.isa), lanes, degree == Degree::f32);
        CHECK(std::bit_cast<std::uint32_t>(out[0]) == 0);
        CHECK((out[1] == 1 && out[2] == 1));
        for (std::size_t i = 3; i < special; ++i) CHECK(std::isnan(out[i]));
        double ulps = 0, relative = 0, lost = 0;
        for (std::size_t i = special; i < x.size(); ++i) {
          const double truth = std::exp2(static_cast<double>(x[i]));
          if (x[i] < -126) {
            lost = std::max(lost, std::fabs(out[i] - truth));
            continue;
          }
          ulps = std::max(ulps, tests::ulps(out[i], truth));
          relative = std::max(relative, std::fabs(out[i] / truth - 1));
        }
        if (degree == Degree::f32) CHECK(ulps <= (machine.isa == Isa::portable ? 2.2 : 1.9));
        CHECK(relative <= 1.1e-4);
        CHECK(lost <= 0x1p-126);
      }
}

}  // namespace attune::codegen
