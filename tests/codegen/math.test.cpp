// tests/codegen/math.test.cpp — the functions of f32 keep to their stated errors, on every instruction set
#include "codegen/llvm/math.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "codegen/llvm/module.h"
#include "runtime/cpu/host.h"
#include "runtime/cpu/orc.h"
#include "tests/catch.h"
#include "tests/codegen/ulp.h"

namespace attune::codegen {
namespace {

constexpr std::array all_isas{Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16};
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Function {
  const char* name;
  double ulps;
  std::function<Val(Isa, Val, Val)> code;
  double (*truth)(double, double);
};

// The errors that math.h states.
const std::vector<Function>& functions() {
  static const std::vector<Function> all{
      {"exp2", 1, [](Isa isa, Val x, Val) { return exp2(isa, x); }, [](double x, double) { return std::exp2(x); }},
      {"exp", 1.5, [](Isa isa, Val x, Val) { return exp(isa, x); }, [](double x, double) { return std::exp(x); }},
      {"log2", 0.51, [](Isa, Val x, Val) { return log2(x); }, [](double x, double) { return std::log2(x); }},
      {"log", 0.51, [](Isa, Val x, Val) { return log(x); }, [](double x, double) { return std::log(x); }},
      {"pow", 0.51, [](Isa, Val x, Val y) { return pow(x, y); }, [](double x, double y) { return std::pow(x, y); }},
      {"sin", 0.51, [](Isa, Val x, Val) { return sin(x); }, [](double x, double) { return std::sin(x); }},
      {"cos", 0.51, [](Isa, Val x, Val) { return cos(x); }, [](double x, double) { return std::cos(x); }},
      {"tan", 0.51, [](Isa, Val x, Val) { return tan(x); }, [](double x, double) { return std::tan(x); }},
      {"tanh", 2, [](Isa, Val x, Val) { return tanh(x); }, [](double x, double) { return std::tanh(x); }},
      {"sigmoid", 2, [](Isa isa, Val x, Val) { return sigmoid(isa, x); },
       [](double x, double) { return 1 / (1 + std::exp(-x)); }},
      {"erf", 2, [](Isa isa, Val x, Val) { return erf(isa, x); }, [](double x, double) { return std::erf(x); }},
      {"sqrt", 0.5, [](Isa, Val x, Val) { return sqrt(x); }, [](double x, double) { return std::sqrt(x); }},
      {"rsqrt", 1.5, [](Isa, Val x, Val) { return rsqrt(x); }, [](double x, double) { return 1 / std::sqrt(x); }},
      {"floor", 0, [](Isa isa, Val x, Val) { return floor(isa, x); }, [](double x, double) { return std::floor(x); }},
      {"ceil", 0, [](Isa isa, Val x, Val) { return ceil(isa, x); }, [](double x, double) { return std::ceil(x); }},
      {"trunc", 0, [](Isa isa, Val x, Val) { return trunc(isa, x); }, [](double x, double) { return std::trunc(x); }},
      {"round", 0, [](Isa isa, Val x, Val) { return round(isa, x); }, [](double x, double) { return std::round(x); }},
  };
  return all;
}

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

unsigned width(Isa isa) { return isa >= Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4; }

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (const Isa isa : all_isas)
    if (runtime::cpu::supports(isa)) out.push_back(isa);
  return out;
}

/// Every f32 at a stride, both signs, denormals, and what functions trip over.
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
  // What is common: small numbers and neighbours of multiples of pi / 2.
  for (int i = -200'000; i < 200'000; ++i) out.push_back(static_cast<float>(i) * 0.0007f);
  for (int i = 1; i < 20'000; ++i) out.push_back(static_cast<float>(i * 1.5707963267948966));
  while (out.size() % 16) out.push_back(0);
  return out;
}

runtime::cpu::Loaded compile(Isa isa, unsigned lanes) {
  Module module(isa, "math");
  for (const Function& f : functions()) define(module, f.name, lanes, [&](Val x, Val y) { return f.code(isa, x, y); });
  return runtime::cpu::Loaded(std::move(module).object());
}

}  // namespace

TEST_CASE("functions of f32 are as near to the truth as they say", "[math]") {
  const char* asked = std::getenv("ATTUNE_STRIDE");
  const std::vector<float> x = samples(asked ? static_cast<std::uint32_t>(std::stoul(asked)) : 10007);
  std::vector<float> y(x.size()), out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[(i * 7919) % x.size()];
    // Exponents that keep the power in range, as often as not.
    if (i % 2 && std::isfinite(x[i]) && x[i] != 0)
      y[i] = static_cast<float>((static_cast<double>(i % 3001) / 1500 - 1) * 140 / std::log2(std::fabs(x[i])));
    if (i % 16 == 5) y[i] = std::round(y[i]);
  }
  std::vector<runtime::cpu::Loaded> compiled;
  const std::vector<Isa> machines = isas();
  for (const Isa isa : machines) compiled.push_back(compile(isa, width(isa)));
  for (const Function& f : functions()) {
    std::vector<double> truth(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) truth[i] = f.truth(x[i], y[i]);
    for (std::size_t m = 0; m < machines.size(); ++m) {
      auto* mapped = compiled[m].find<Mapped>(f.name);
      REQUIRE(mapped);
      mapped(x.data(), y.data(), out.data(), static_cast<std::int64_t>(x.size()));
      double most = 0;
      std::size_t at = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = tests::ulps(out[i], truth[i]);
        if (error > most) most = error, at = i;
      }
      if (asked) WARN(f.name << " " << name_of(machines[m]) << " " << most << " at " << x[at]);
      INFO(f.name << " for " << name_of(machines[m]) << " at " << x[at] << ", " << y[at] << " is " << out[at]
                  << " and not " << truth[at] << ": " << most << " ulp");
      CHECK(most <= f.ulps);
    }
  }
}

}  // namespace attune::codegen
