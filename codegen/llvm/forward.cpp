// codegen/llvm/forward.cpp — the forward kernels around the user's expressions: fields, and the online softmax
#include "codegen/llvm.h"
#include "codegen/llvm/pairs.h"

namespace attune::codegen {
namespace {

/// The arguments of an Attend.
struct AttendCode : PairsCode {
  AttendCode(Code& c, const Args<Attend>& args)
      : PairsCode(c, args), p(args(&Attend::p)), m(args(&Attend::m)), l(args(&Attend::l)), alpha(args(&Attend::alpha)) {
  }
  explicit AttendCode(Code& c) : AttendCode(c, Args<Attend>(c, c.arg(0))) {}
  Val p, m, l, alpha;
};

class Forward {
 public:
  Forward(const compiler::Mod& mod, Isa isa, Unit unit)
      : parts_(forward_parts(mod)), kernels_(parts_, mod.captures, isa, unit, "forward") {}

  std::string object(Listing* listing) && {
    kernels_.define_fields();
    attend(mod_symbol::attend_all, false);
    attend(mod_symbol::attend_some, true);
    if (!parts_.prob_linear) attend_known();
    return std::move(kernels_.module).object(listing);
  }

 private:
  unsigned width() const { return kernels_.width(); }

  Val score(const AttendCode& a, Val r, Val c, bool some) {
    At at = kernels_.element(a, r, c);
    at.s = kernels_.load_s(a, r, c);
    Expressions emit = kernels_.expressions(at);
    return kernels_.score(a, at, emit, some);
  }

  Val prob(const AttendCode& a, Val r, Val c, Val x, Val p, Val from) {
    if (!parts_.has_prob) return p;
    At at = kernels_.element(a, r, c);
    at.p = p;
    Expressions emit = kernels_.expressions(at);
    // A masked-out pair stays masked out, whatever a prob mod makes of 0.
    const Val after = like(x, emit(parts_.prob()));
    // Infinite and NaN scores give NaN, even if a prob mod does not depend on p.
    return select(x == -infinity, 0.0, parts_.prob_linear ? after : select(from == from, after, from));
  }

  /// The softmax of the register at c.
  Val softmax(const AttendCode& a, Val r, Val c, Val x, Val from) {
    // Subtract first: an FMA with from * log2e would keep that product's rounding error, which dominates for large
    // scores.
    const Val p = exp2_softmax(kernels_.isa(), (x - from) * log2e, kernels_.degree());
    kernels_.store_p(a, a.p, r, c, prob(a, r, c, x, p, from));
    return p;
  }

  /// Visits columns two registers at a time: enough in flight to hide an FMA's latency.
  Code::Carried columns(const AttendCode& a, Val start, const std::function<Val(Val c, Val carried)>& body) {
    return a.code.loop(a.first, a.last, 2 * width(), {start, start}, [&](Val c, const Code::Carried& carried) {
      return Code::Carried{body(c, carried[0]), body(c + static_cast<std::int64_t>(width()), carried[1])};
    });
  }

  void attend(const char* symbol, bool some) {
    Code code(kernels_.kernel(symbol));
    const AttendCode a(code);
    const bool as_it_is = !some && kernels_.unit == Unit::f32 && parts_.core()->op == ir::Op::Input;

    // First the largest score of every row, then the exponentials of every row: rows hide each other's latencies.
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const auto top = columns(a, splat(code.real(-infinity), width()), [&](Val c, Val best) {
        const Val x = score(a, r, c, some);
        if (!as_it_is) code.store(x, a.scores_at(a.s, r, c));
        return max(x, best);
      });
      const Val before = code.load(code.f32(), a.of_row(a.m, r));
      const Val m = max(max_of_lanes(max(top[0], top[1])), before);
      code.store(m, a.of_row(a.m, r));
      // A row that has kept nothing so far has m = -inf; use 0 instead to avoid -inf - -inf.
      const Val from = select(m == -infinity, 0.0, m);
      code.store(exp2_softmax(kernels_.isa(), (before - from) * log2e, Degree::f32), a.of_row(a.alpha, r));
    });
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const Val m = code.load(code.f32(), a.of_row(a.m, r));
      const Val from = splat(select(m == -infinity, 0.0, m), width());
      const auto sum = columns(a, splat(code.real(0), width()), [&](Val c, Val before) {
        const Val x = code.load(Code::vector(code.f32(), width()), a.scores_at(a.s, r, c));
        return before + softmax(a, r, c, x, from);
      });
      const Val l = code.load(code.f32(), a.of_row(a.l, r));
      const Val alpha = code.load(code.f32(), a.of_row(a.alpha, r));
      code.store(fma(l, alpha, sum_of_lanes(sum[0] + sum[1])), a.of_row(a.l, r));
    });
    code.done();
  }

  void attend_known() {
    Code code(kernels_.kernel(mod_symbol::attend_known));
    const AttendCode a(code);
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const Val lse = code.load(code.f32(), a.of_row(a.m, r));
      const Val from = splat(select(lse == -infinity, 0.0, lse), width());
      code.loop(a.first, a.last, width(), [&](Val c) { softmax(a, r, c, score(a, r, c, true), from); });
    });
    code.done();
  }

  ForwardParts parts_;
  PairKernels kernels_;
};

}  // namespace

std::string forward_object(const compiler::Mod& mod, Isa isa, Unit unit, Listing* listing) {
  return Forward(mod, isa, unit).object(listing);
}

}  // namespace attune::codegen
