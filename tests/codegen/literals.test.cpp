// tests/codegen/literals.test.cpp — operations whose operands are all literals compile for GPUs
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "codegen/source/source.h"
#include "codegen/source/source_text.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/nvrtc.h"

namespace attune::tests {
namespace {

using ir::Expr, ir::Op, ir::Type;

std::vector<Expr> literals(Type type) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  switch (type) {
    case Type::Bool: return {ir::boolean(true), ir::boolean(false)};
    case Type::I32: return {ir::integer(7), ir::integer(-1), ir::integer(16777217), ir::integer(-2147483647 - 1)};
    case Type::F32: return {ir::real(0.5f), ir::real(-infinity), ir::real(std::numeric_limits<float>::quiet_NaN())};
  }
  return {};
}

/// Every operation of expressions, on literals of every type that it takes.
std::vector<Expr> operations() {
  std::vector<Expr> out;
  for (std::size_t i = 0; i < ir::op_rows.size(); ++i) {
    const auto op = static_cast<Op>(i);
    const ir::OpRow& row = ir::op_rows[i];
    if (row.takes == ir::Takes::None || op == Op::Read || op == Op::Sum || ir::draws(op) || op == Op::Custom) continue;
    for (const Type type : {Type::Bool, Type::I32, Type::F32}) {
      if (!ir::takes(row.takes, type)) continue;
      const std::vector<Expr> of = literals(type);
      for (std::size_t n = 0; n < of.size(); ++n) {
        const Expr &a = of[n], &b = of[(n + 1) % of.size()], &c = of[(n + 2) % of.size()];
        if (op == Op::Where)
          out.push_back(ir::op(op, ir::boolean(n % 2 == 0), a, b));
        else if (row.args == 1)
          out.push_back(ir::op(op, a));
        else if (row.args == 2)
          out.push_back(ir::op(op, a, b));
        else
          out.push_back(ir::op(op, a, b, c));
      }
    }
  }
  for (const Type type : {Type::I32, Type::F32})
    for (const Expr& e : literals(type)) out.push_back(ir::op(Op::F32, ir::sum(ir::fresh_bound(), 3, e)));
  return out;
}

}  // namespace

TEST_CASE("operations on nothing but literals compile for GPUs", "[cuda]") {
  if (skips_compiling()) return;
  const std::vector<Expr> all = operations();
  CHECK(all.size() > 120);
  std::string body;
  for (const Expr& e : all) {
    const ir::DevicePrinted text = ir::print_for_device(e, {}, {});
    body += fmt::format("  {{ {}const {} x = {}; into(x); }}\n", text.lets, codegen::device_type(e->type), text.value);
  }
  for (const int arch : {80, 90})
    for (const bool exact : {false, true}) {
      const std::string space = exact ? "exact" : "fast";
      const codegen::Source source{
          .name = "literals",
          .text = fmt::format("#include \"codegen/cuda/contract/ops.cuh\"\nnamespace attune::{} {{\n__global__ void "
                              "literals(float* to) {{\n"
                              "  const auto into = [&](auto x) {{ *to++ = float(f32(x)); }};\n{}}}\n}}\n",
                              space, body),
          .options = codegen::source_options(arch, exact),
          .symbol = fmt::format("attune::{}::literals", space)};
      INFO(source.text);
      const runtime::cuda::Binary binary = runtime::cuda::compile(source);
      CHECK(binary.warnings.empty());
    }
}

}  // namespace attune::tests
