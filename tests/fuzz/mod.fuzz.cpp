// tests/fuzz/mod.fuzz.cpp — every compiled operation of a random expression gives eval's value in each lane
#include "codegen/llvm/mod.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/codegen/expressions.h"
#include "tests/codegen/ulp.h"
#include "tests/compiler/language.h"
#include "tests/fuzz/random_expr.h"

namespace attune::tests {
namespace {

using ir::Expr, ir::Op;

/// Tensors of random element types, extents and strides behind the captures of a grammar.
struct Captures {
  std::vector<compiler::CaptureSlot> slots;
  std::vector<std::unique_ptr<Captured>> tensors;

  Captures(ir::Random& random, const ir::Grammar& grammar) {
    for (const auto& c : grammar.signature.captures) {
      slots.push_back({c.name, dtype(random, c.type), c.rank});
      tensors.push_back(tensor(random, slots.back()));
      tensors.back()->fill([&] { return ir::random_value(random, c.type, grammar.hostile); });
    }
  }
  std::vector<const Captured*> pointers() const {
    std::vector<const Captured*> all;
    for (const auto& t : tensors) all.push_back(t.get());
    return all;
  }

 private:
  static DType dtype(ir::Random& random, ir::Type type) {
    static constexpr std::array floats{DType::f32, DType::f16, DType::bf16, DType::f64};
    static constexpr std::array ints{DType::i64, DType::i32, DType::i16, DType::i8, DType::u8};
    if (type == ir::Type::Bool) return DType::boolean;
    return type == ir::Type::F32 ? random.pick(std::span<const DType>(floats))
                                 : random.pick(std::span<const DType>(ints));
  }

  static std::unique_ptr<Captured> tensor(ir::Random& random, const compiler::CaptureSlot& slot) {
    const auto rank = static_cast<std::size_t>(slot.rank);
    std::vector<std::int64_t> extents(rank), strides(rank);
    for (auto& n : extents) n = 1 + random.below(random.chance(0.5) ? 40 : 4);
    std::vector<std::size_t> order(rank);
    std::iota(order.begin(), order.end(), 0u);
    for (std::size_t i = rank; i > 1; --i) std::swap(order[i - 1], order[random.below(static_cast<std::uint32_t>(i))]);
    std::int64_t next = random.chance(0.8) ? 1 : 2;
    for (const std::size_t d : order) {
      strides[d] = random.chance(0.1) ? 0 : random.chance(0.15) ? -next : next;
      next *= extents[d] + random.below(2);
    }
    return std::make_unique<Captured>(slot.dtype, extents, strides);
  }
};

struct Case {
  ir::Grammar grammar = ir::Grammar::ordinary();
  Expr root;
  std::vector<Expr> nodes;  ///< all closed nodes: each has a value
  Vectors shape;
  Place place;
};

Case make_case(std::uint64_t seed, std::span<const Isa> isas) {
  ir::Random random(seed ^ 0x5eed);
  Case c;
  c.grammar.hostile = seed % 3 != 0;
  c.grammar.max_nodes = seed % 7 == 0 ? 100 : 25;
  c.root = ir::random_expr(seed, static_cast<ir::Type>(seed % 3), c.grammar);
  for (const Expr& e : ir::in_order(c.root))
    if (!e->free) c.nodes.push_back(e);
  c.shape = {isas[seed % isas.size()], random.chance(0.25), random.chance(0.15)};
  const ir::RandomEnv around(seed, c.grammar);
  const ir::Env& env = around.env();
  c.place = {{}, {}, env.b, env.h, env.q, env.kv & ~3, env.q_len, env.kv_len, env.origin};
  for (float& s : c.place.s) s = static_cast<float>(ir::random_value(random, ir::Type::F32, c.grammar.hostile));
  for (float& p : c.place.p) p = static_cast<float>(random.unit());
  return c;
}

/// A sum in which every closed part is replaced by its value; null if the rest is not exact.
Expr with_values(const Expr& e, const ir::DigestMap<double>& values) {
  bool exact = true;
  Expr root = ir::rebuild(e, [&](const Expr& node, std::span<const Expr>) -> Expr {
    if (node->free) exact = exact && stated_ulps(node->op) == 0;
    const auto known = values.find(node->digest);
    return known == values.end() || same(node, e) ? nullptr : ir::literal(node->type, known->second);
  });
  return exact ? root : nullptr;
}

class Checker {
 public:
  explicit Checker(const Case& c, const Captures& captures) : case_(c), captures_(captures) {}

  /// Reports a lane in which the value of `e` does not follow from its arguments' values.
  std::string wrong(const Expr& e, const ir::DigestMap<double>& values, ir::Env env) {
    const double got = values.at(e->digest);
    const ir::ReadCapture read = [&](std::uint32_t slot, std::span<const std::int32_t> index) {
      return captures_.tensors[slot]->at(index);
    };
    env.read = &read;
    ++checked;
    if (const double ulps = stated_ulps(e->op); ulps > 0) {
      std::vector<double> args;
      for (const Expr& a : e->arguments()) args.push_back(values.at(a->digest));
      const double truth = ir::apply(e->op, ir::Type::F32, args, ir::Precision::f64);
      const double error = tests::ulps(static_cast<float>(got), truth);
      return error <= ulps ? "" : told(e, got, truth, values);
    }
    Expr plain;
    if (e->op == Op::Sum) {
      plain = with_values(e, values);
      if (!plain) return ++skipped, "";
    } else {
      std::vector<Expr> args;
      for (const Expr& a : e->arguments()) args.push_back(ir::literal(a->type, values.at(a->digest)));
      plain = ir::with_args(e, args);
    }
    const double wanted = ir::eval(plain, env, ir::Precision::f32);
    return identical(got, wanted) ? "" : told(e, got, wanted, values);
  }

  std::uint64_t checked = 0, skipped = 0;

 private:
  std::string told(const Expr& e, double got, double wanted, const ir::DigestMap<double>& values) const {
    std::ostringstream out;
    out.precision(9);
    out << ir::print(e, case_.grammar.signature) << "\n  is " << got << " and not " << wanted;
    for (const Expr& a : e->arguments())
      if (!a->free) out << "\n  where " << ir::print(a, case_.grammar.signature) << " is " << values.at(a->digest);
    return out.str();
  }

  const Case& case_;
  const Captures& captures_;
};

}  // namespace

TEST_CASE("compiled expressions give in every lane what eval gives", "[fuzz][mod]") {
  // Compiling a case takes milliseconds.
  const std::uint64_t count = std::min<std::uint64_t>(ir::fuzz_count(), 300 + ir::fuzz_count() / 37);
  const std::vector<Isa> isas = supported_isas();
  std::uint64_t checked = 0, skipped = 0;
  for (const std::uint64_t seed : seeds_in_turn(count)) {
    const Case c = make_case(seed, isas);
    ir::Random random(seed ^ 0xca9);
    const Captures captures(random, c.grammar);
    const ir::RandomEnv around(seed, c.grammar);
    const auto params = around.env().params;
    const std::vector<double> values = Compiled(c.shape, c.nodes, captures.slots)(c.place, captures.pointers(), params);
    Checker checker(c, captures);
    const auto fail = [&](unsigned lane, const std::string& what) {
      FAIL("seed " << seed << ", " << name_of(c.shape.isa) << (c.shape.rows ? ", q" : ", kv") << " in lanes, lane "
                   << lane << ": " << what << "\nin " << ir::print(c.root, c.grammar.signature));
    };
    for (unsigned lane = 0; lane < c.shape.lanes(); ++lane) {
      ir::DigestMap<double> at_lane;
      for (std::size_t i = 0; i < c.nodes.size(); ++i) at_lane.emplace(c.nodes[i]->digest, values[i * 16 + lane]);
      ir::Env env = env_at(c.shape, c.place, lane);
      env.params = params;
      for (const Expr& e : c.nodes)
        if (const std::string wrong = checker.wrong(e, at_lane, env); !wrong.empty()) fail(lane, wrong);
    }
    // A root compiled alone, without its parts as further roots, gives the same bits.
    if (seed % 4 == 0) {
      const auto alone = Compiled(c.shape, std::span(&c.root, 1), captures.slots)(c.place, captures.pointers(), params);
      for (unsigned lane = 0; lane < c.shape.lanes(); ++lane)
        if (!identical(alone[lane], values[(c.nodes.size() - 1) * 16 + lane])) fail(lane, "alone it is another value");
    }
    checked += checker.checked;
    skipped += checker.skipped;
  }
  CHECK(checked > 50 * count);
  CHECK(skipped < checked / 50);
}

}  // namespace attune::tests
