// tests/codegen/mod.test.cpp — expressions compiled for every instruction set against eval, lane by lane
#include "codegen/llvm/mod.h"

#include <ctime>
#include <limits>
#include <memory>

#include "codegen/llvm.h"
#include "codegen/llvm/module.h"
#include "compiler/lower.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/codegen/expressions.h"
#include "tests/compiler/language.h"
#include <attune/attune.h>
#include <attune/error.h>

namespace attune::tests {
namespace {

using ir::Expr, ir::Input, ir::Op, ir::Type;

constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int_max = std::numeric_limits<std::int32_t>::max();
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Tensors behind the captures of one signature, by slot, and params.
struct World {
  ir::Signature signature;
  std::vector<compiler::CaptureSlot> slots;
  std::vector<std::unique_ptr<Captured>> tensors;
  std::vector<double> params;

  void add(const std::string& name, std::unique_ptr<Captured> tensor) {
    const Tensor& t = tensor->tensor();
    slots.push_back({name, t.dtype, t.rank});
    signature.captures.push_back({name, compiler::type_of(t.dtype), t.rank});
    tensors.push_back(std::move(tensor));
  }
  Expr expr(std::string_view text) const {
    return ir::parse(text, {.name = "test", .expected = {}, .signature = &signature, .lets = {}});
  }
};

/// Roots compiled for every instruction set, with q or kv along the lanes. The World's tensors and params may change
/// afterwards, but not their types.
class Everywhere {
 public:
  Everywhere(const World& world, std::span<const Expr> roots, std::span<const std::int32_t> bound = {})
      : world_(world), roots_(roots.begin(), roots.end()), bound_(bound.begin(), bound.end()), program_(roots) {
    for (const Isa isa : supported_isas())
      for (const bool rows : {false, true}) {
        const Vectors shape{isa, rows, false};
        compiled_.emplace_back(shape, Compiled(shape, roots, world.slots, bound));
      }
  }
  Everywhere(const World& world, std::initializer_list<std::string_view> texts)
      : Everywhere(world, parsed(world, texts)) {}

  /// Compares every root in every lane with eval.
  void check(const Place& place) {
    std::vector<const Captured*> tensors;
    for (const auto& t : world_.tensors) tensors.push_back(t.get());
    const ir::ReadCapture read = [&](std::uint32_t slot, std::span<const std::int32_t> index) {
      return tensors[slot]->at(index);
    };
    for (const auto& [shape, compiled] : compiled_) {
      const auto got = compiled(place, tensors, world_.params);
      for (unsigned lane = 0; lane < shape.lanes(); ++lane) {
        ir::Env env = env_at(shape, place, lane);
        env.params = world_.params;
        env.read = &read;
        env.bound = bound_;
        program_.run(env, memory_, ir::Precision::f32);
        for (std::size_t i = 0; i < roots_.size(); ++i)
          if (const double wanted = program_.result(i, memory_); !identical(got[i * 16 + lane], wanted))
            FAIL(ir::print(roots_[i], world_.signature)
                 << " for " << codegen::name_of(shape.isa) << " in lane " << lane << " of "
                 << (shape.rows ? "q " : "kv ") << (shape.rows ? place.q : place.kv) << " is " << got[i * 16 + lane]
                 << " and not " << wanted);
      }
    }
    SUCCEED();
  }

 private:
  static std::vector<Expr> parsed(const World& world, std::initializer_list<std::string_view> texts) {
    std::vector<Expr> roots;
    for (const auto text : texts) roots.push_back(world.expr(text));
    return roots;
  }

  const World& world_;
  std::vector<Expr> roots_;
  std::vector<std::int32_t> bound_;
  ir::Program program_;
  ir::Program::Memory memory_;
  std::vector<std::pair<Vectors, Compiled>> compiled_;
};

Place ordinary() {
  Place place;
  place.b = 1, place.h = 3, place.q = 40, place.kv = 24, place.q_len = 100, place.kv_len = 200;
  for (std::size_t i = 0; i < 16; ++i) {
    place.s[i] = static_cast<float>(i) * 0.75f - 5;
    place.p[i] = static_cast<float>(i) / 16;
  }
  return place;
}

}  // namespace

TEST_CASE("Ints are divided as eval does, by vectors, scalars and literals", "[mod][int]") {
  const std::array<std::int32_t, 12> hostile{0, 1, -1, 2, -2, 7, -7, 64, 1000003, int_max, int_min, int_min + 1};
  World world;
  world.signature.params = {{"i", Type::I32}, {"j", Type::I32}};
  world.params = {0, 0};
  const Expr kv = ir::input(Input::KV), q = ir::input(Input::Q);
  std::vector<Expr> roots;
  for (const Op op : {Op::Div, Op::Rem, Op::FloorDiv, Op::FloorMod}) {
    for (const std::int32_t by : hostile) {
      roots.push_back(ir::op(op, kv, ir::integer(by)));
      roots.push_back(ir::op(op, ir::integer(by), q));
    }
    roots.push_back(ir::op(op, ir::param(0, Type::I32), ir::param(1, Type::I32)));
    roots.push_back(ir::op(op, kv, q));
    roots.push_back(ir::op(op, q, kv));
  }
  Everywhere compiled(world, roots);
  Place place = ordinary();
  for (const std::int32_t first : {0, -8, 1000, int_max - 7, int_min}) {
    place.kv = place.q = first;
    for (const std::int32_t x : hostile)
      for (const std::int32_t y : hostile) {
        world.params = {static_cast<double>(x), static_cast<double>(y)};
        compiled.check(place);
      }
  }
}

TEST_CASE("NaN, infinities, zeros and ties go through comparisons, min, max, clamp and casts as in eval", "[mod]") {
  World world;
  world.signature.params = {{"x", Type::F32}};
  Place place = ordinary();
  place.s = {nan,      inf,  -inf,  0.0f,      -0.0f, 1,    -1,           0x1p31f,
             -0x1p31f, 2.5f, -2.5f, 0x1p-149f, 1e38f, 0.5f, -0.49999997f, 3};
  world.params = {0};
  Everywhere compiled(world, {"min(s, p)",
                              "max(s, p)",
                              "min(s, x)",
                              "max(x, s)",
                              "min(s, 0.0f)",
                              "min(0.0f, s)",
                              "min(s, -0.0f)",
                              "min(-0.0f, s)",
                              "max(0.0f, s)",
                              "max(s, 0.0f)",
                              "max(s, -0.0f)",
                              "max(-0.0f, s)",
                              "max(x, -0.0f)",
                              "min(x, p)",
                              "min(s, 2.5f)",
                              "max(2.5f, s)",
                              "clamp(s, p, x)",
                              "clamp(s, -1.0f, 1.0f)",
                              "clamp(s, 0.0f, 1.0f)",
                              "clamp(s, -1.0f, -0.0f)",
                              "clamp(s, 0.0f, -0.0f)",
                              "clamp(s, -0.0f, 0.0f)",
                              "clamp(x, s, p)",
                              "s < p",
                              "s <= p",
                              "s == p",
                              "s != p",
                              "s >= x",
                              "x > s",
                              "i32(s)",
                              "i32(x)",
                              "f32(i32(p))",
                              "i32(s < p)",
                              "f32(s != p)",
                              "abs(s)",
                              "-s",
                              "floor(s)",
                              "ceil(s)",
                              "round(s)",
                              "trunc(s)",
                              "sqrt(s)",
                              "rsqrt(s)",
                              "where(s < p, s, x)",
                              "where(x < 2.0f, s, p)",
                              "s / p",
                              "(s < p) == (p < x)"});
  for (const float x : {nan, 0.0f, -0.0f, 1.0f, -inf, 2.5f}) {
    world.params = {x};
    for (std::size_t shift = 0; shift < 16; shift += 3) {
      for (std::size_t i = 0; i < 16; ++i) place.p[i] = place.s[(i + shift) % 16];
      compiled.check(place);
    }
  }
}

TEST_CASE("a read takes what its clamped index names, whatever the type and the strides", "[mod][read]") {
  const std::array types{DType::f32, DType::f16, DType::bf16, DType::f64, DType::i64,
                         DType::i32, DType::i16, DType::i8,   DType::u8,  DType::boolean};
  for (const DType type : types) {
    World world;
    // The slots stay and their strides change: strides are arguments of the code.
    const auto add = [&](std::size_t slot, const std::string& name, std::initializer_list<std::int64_t> extents,
                         std::initializer_list<std::int64_t> strides) {
      auto tensor = std::make_unique<Captured>(type, std::span(extents.begin(), extents.size()),
                                               std::span(strides.begin(), strides.size()));
      double next = type == DType::u8 ? 0 : -60;
      tensor->fill([&] { return type == DType::boolean ? static_cast<int>(next++) % 3 == 0 : next++; });
      if (slot < world.tensors.size())
        world.tensors[slot] = std::move(tensor);
      else
        world.add(name, std::move(tensor));
    };
    const auto add_all = [&](std::int64_t stride) {
      add(0, "line", {50}, {stride});
      add(1, "plane", {3, 37}, {41, stride});
      add(2, "turned", {37, 3}, {stride, 40});
    };
    add_all(1);
    Everywhere compiled(world, {"line[kv]", "line[q]", "line[kv - q]", "line[q - kv]", "line[2 - (q - kv)]",
                                "line[30 - kv - q]", "line[-(3 - kv)]", "line[kv * 2]", "line[kv % 5]", "line[b]",
                                "line[kv - kv]", "plane[h, kv + 1]", "plane[kv, q]", "plane[1, q - kv]",
                                "turned[kv, b]", "turned[q + kv, kv - q]"});
    Place place = ordinary();
    for (const std::int64_t stride : {1, -1, 2, 0}) {
      add_all(stride);
      // Lanes inside of the tensor, across either of its ends, and outside.
      for (const std::int32_t kv : {0, 4, 24, 32, 36, 44, 48, 400, -4, -12, int_max - 7, int_min}) {
        place.kv = kv;
        place.q = kv / 2 + 9;
        compiled.check(place);
      }
    }
  }
}

TEST_CASE("a read reaches beyond 2^31 elements", "[mod][read]") {
  constexpr std::int64_t stride = (std::int64_t{1} << 31) + 24;
  for (const DType type : {DType::u8, DType::f32}) {
    const std::size_t size = (static_cast<std::size_t>(stride) + 32) * size_of(type);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    {
      World world;
      world.add("far", std::make_unique<Captured>(Tensor(memory, type, {2, 20}, {stride, 1})));
      double next = 1;
      world.tensors[0]->fill([&] { return next++; });
      Place place = ordinary();
      place.kv = place.q = 0;
      Everywhere(world, {"far[kv, q]", "far[b, kv]", "far[b, kv * 3 % 20]", "far[kv, kv]", "far[b, b]"}).check(place);
    }
    munmap(memory, size);
  }
}

TEST_CASE("random numbers are those of eval, whichever position runs along the lanes", "[mod][random]") {
  World world;
  Place place = ordinary();
  Everywhere compiled(world, {"random(7)", "random(b - 3)", "random(kv)", "random(q / 3)", "random(0) + random(1)",
                              "f32(kept(7, 30000))", "f32(kept(b - 3, kv * 900))", "f32(kept(kv, 40000))",
                              "f32(kept(q / 3, 20000) || kept(1, q * 700))"});
  for (const std::int32_t kv : {0, 4, 1 << 20, int_max - 15, 1, 77, (1 << 20) + 2}) {
    place.kv = kv;
    compiled.check(place);
  }
}

/// This many nested choices.
std::string nested_choices(int count) {
  std::string lets, last = "s";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i), name = "x" + n;
    lets += "let " + name + " = kv * " + n + " < q ? " + last + " : f32(kv + " + n + ") * 0.5f; ";
    last = name;
  }
  return lets + last;
}

TEST_CASE("what is too long to be optimised computes what eval does", "[mod][long]") {
  World world;
  const std::string text = nested_choices(2'000);
  Everywhere compiled(world, {text});
  Place place = ordinary();
  for (const std::int32_t kv : {0, 4, 400}) {
    place.kv = kv;
    compiled.check(place);
  }
}

TEST_CASE("the time to compile grows no faster than an expression", "[mod][long]") {
  const auto seconds = [](int count) {
    const auto lowered = compiler::lower(Attention{.score = Text().score(nested_choices(count))});
    const std::clock_t start = std::clock();
    forward_object(lowered.mod, Isa::portable, codegen::Unit::f32);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  // A machine that is busy, or paused, may have any one of them take longer.
  double some = 0, many = 1e9;
  for (int i = 0; i < 4 && many >= 16 * some + 1; ++i) some = seconds(200), many = seconds(1'600);
  INFO(some << " s and " << many << " s");
  CHECK(many < 16 * some + 1);
}

TEST_CASE("sums are added in order, nest, and may be empty", "[mod][sum]") {
  World world;
  world.add("w", std::make_unique<Captured>(DType::f32, std::array<std::int64_t, 2>{9, 50},
                                            std::array<std::int64_t, 2>{1, 9}));
  double next = 0;
  world.tensors[0]->fill([&] { return 1 / (next += 0.37); });
  Everywhere(world,
             {"sum(i, 9, w[i, kv])", "sum(i, 9, w[i, b] * w[i, q])", "sum(i, 0, w[i, kv])", "sum(i, 3, i * kv)",
              "sum(i, 4, sum(j, 5, w[i + j, kv - i]) * f32(i))", "sum(i, 5, s)", "sum(i, 2, -0.0f)",
              "sum(i, 3, f32(i)) + sum(j, 3, f32(j) * s)", "sum(i, 3, sum(j, 2, i * 10 + j * kv) - sum(k, 2, k + i))"})
      .check(ordinary());
}

TEST_CASE("a variable bound by the caller stands for its value", "[mod][sum]") {
  World world;
  const Expr outer = ir::bound(7), inner = ir::bound(4), kv = ir::input(Input::KV);
  const Expr variable = ir::fresh_bound();
  const Expr nested = ir::sum(variable, 3, ir::op(Op::Mul, variable, ir::op(Op::Add, outer, kv)));
  const std::vector<Expr> roots{outer, ir::op(Op::Add, ir::op(Op::Mul, outer, inner), kv), nested,
                                ir::op(Op::Sub, nested, inner)};
  const std::array<std::int32_t, 8> bound{0, 0, 0, 0, -5, 0, 0, 1000};
  Everywhere(world, roots, bound).check(ordinary());
}

TEST_CASE("fields come from the kernel", "[mod]") {
  World world;
  const Vectors shape{Isa::portable, false, false};
  const std::vector<Expr> roots{
      ir::op(Op::Add, ir::field(ir::Level::Col, 0, Type::F32), ir::real(1)),
      ir::op(Op::Mul, ir::field(ir::Level::Head, 3, Type::I32), ir::field(ir::Level::Row, 1, Type::I32))};
  const Place place = ordinary();
  const auto got = Compiled(shape, roots, world.slots)(place, {}, {});
  for (unsigned lane = 0; lane < shape.lanes(); ++lane) {
    CHECK(got[lane] == place.s[lane] + 1);
    CHECK(got[16 + lane] == place.q_len * place.kv_len);
  }
}

TEST_CASE("neighbours are read by one load, turned where the index falls", "[mod][read]") {
  using namespace codegen;
  const std::array slots{compiler::CaptureSlot{"line", DType::f32, 1}};
  const ir::Signature names{{{"line", Type::F32, 1}}, {}};
  const auto code_of = [&](std::string_view text) {
    Module module(Isa::portable, "read");
    auto* pointer = llvm::PointerType::get(module.context(), 0);
    const std::array<llvm::Type*, 3> args{pointer, llvm::Type::getInt32Ty(module.context()),
                                          llvm::Type::getInt32Ty(module.context())};
    Code code(module.define("read", llvm::Type::getVoidTy(module.context()), args));
    codegen::At at;
    at.captures = code.arg(0);
    at.q = code.arg(1);
    at.kv = splat(code.arg(2), 4) + code.iota(4);
    Expressions emit(Isa::portable, slots, at);
    emit(ir::parse(text, {.name = "test", .expected = {}, .signature = &names, .lets = {}}));
    code.done();
    const std::string ir = module.text();
    const auto has = [&](const char* part) { return ir.find(part) != std::string::npos; };
    return std::pair(has("load <4 x float>"), has("<i32 3, i32 2, i32 1, i32 0>"));
  };
  const std::pair forward(true, false), backward(true, true), gathered(false, false);
  for (const auto text : {"line[kv]", "line[kv - q]", "line[q - (3 - kv)]", "line[-(q - kv)]"})
    CHECK(code_of(text) == forward);
  for (const auto text : {"line[q - kv]", "line[-kv]", "line[2 - (kv + q)]"}) CHECK(code_of(text) == backward);
  for (const auto text : {"line[kv + kv]", "line[kv * q]", "line[kv % 3]", "line[kv - kv]", "line[q]"})
    CHECK(code_of(text) == gathered);
}

TEST_CASE("what does not vary by lane stays a scalar, and a custom's derivative is not compiled", "[mod]") {
  using namespace codegen;
  Module module(Isa::portable, "scalars");
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  const std::array<llvm::Type*, 2> args{pointer, llvm::Type::getInt32Ty(module.context())};
  Code code(module.define("scalars", llvm::Type::getVoidTy(module.context()), args));
  codegen::At at;
  at.captures = code.arg(0);
  at.q = at.b = code.arg(1);
  at.kv = splat(code.arg(1), 4) + code.iota(4);
  Expressions emit(Isa::portable, {}, at);
  const auto expr = [](std::string_view text) {
    return ir::parse(text, {.name = "test", .expected = {}, .signature = nullptr, .lets = {}});
  };
  CHECK(!emit(expr("sum(i, 4, i * q) + b / 3")).is_vector());
  CHECK(!emit(expr("exp(f32(q))")).is_vector());
  CHECK(emit(expr("sum(i, 4, i * kv)")).is_vector());
  // There is no s here, and only the derivative reads it.
  const Expr value = ir::op(Op::F32, ir::input(Input::Q)), derivative = ir::input(Input::S);
  CHECK(!emit(ir::op(Op::Custom, value, derivative)).is_vector());
  CHECK_THROWS_AS(emit(derivative), Bug);
}

}  // namespace attune::tests
