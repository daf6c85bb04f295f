// codegen/llvm/forward.cpp — the forward's part with the user's expressions: fields, and the online softmax of a few
// rows
#include <array>
#include <cstddef>
#include <numbers>

#include "codegen/llvm.h"
#include "codegen/llvm/math.h"
#include "codegen/llvm/mod.h"
#include "codegen/llvm/module.h"
#include "codegen/llvm/vec.h"
#include "codegen/parts.h"

namespace attune::codegen {
namespace {

using compiler::CaptureSlot;

constexpr double log2e = std::numbers::log2e;
const double infinity = std::numeric_limits<double>::infinity();

/// What a function knows of its Frame.
struct FrameCode {
  Val captures, params, head, b, h, q_len, kv_len, origin;

  FrameCode(Code& code, Val frame)
      : captures(code.member(code.pointer(), frame, offsetof(Frame, captures))),
        params(code.member(code.pointer(), frame, offsetof(Frame, params))),
        head(code.member(code.pointer(), frame, offsetof(Frame, head))),
        b(code.member(code.i32(), frame, offsetof(Frame, b))), h(code.member(code.i32(), frame, offsetof(Frame, h))),
        q_len(code.member(code.i32(), frame, offsetof(Frame, q_len))),
        kv_len(code.member(code.i32(), frame, offsetof(Frame, kv_len))),
        origin(code.member(code.i32(), frame, offsetof(Frame, origin))) {}

  At at() const {
    At at;
    at.b = b;
    at.h = h;
    at.q_len = q_len;
    at.kv_len = kv_len;
    at.origin = origin;
    at.captures = captures;
    at.params = params;
    return at;
  }
};

/// A field as its expression has it, from the four bytes it is kept in.
Val from_bits(Val bits, ir::Type type) {
  switch (type) {
    case ir::Type::F32: return as_float(bits);
    case ir::Type::I32: return bits;
    case ir::Type::Bool: return bits != 0;
  }
  return bits;
}
Val to_bits(Val value, ir::Type type) {
  switch (type) {
    case ir::Type::F32: return as_int(value);
    case ir::Type::I32: return value;
    case ir::Type::Bool: return zero_one(value);
  }
  return value;
}

Val head_field(Code& code, const FrameCode& frame, std::uint32_t index, ir::Type type) {
  return from_bits(code.load(code.i32(), code.at(frame.head, code.i32(), static_cast<std::int64_t>(index))), type);
}

class Forward {
 public:
  Forward(const compiler::Mod& mod, Isa isa, Unit unit)
      : parts_(forward_parts(mod)), captures_(mod.captures), isa_(isa), unit_(unit), tiling_(tiling(isa, unit)),
        module_(isa, "forward") {}

  std::string object() && {
    head_fields();
    line_fields(mod_symbol::row_fields, ir::Level::Row);
    line_fields(mod_symbol::col_fields, ir::Level::Col);
    attend(mod_symbol::attend_all, false);
    attend(mod_symbol::attend_some, true);
    if (!parts_.prob_linear) attend_known();
    return std::move(module_).object();
  }

 private:
  unsigned width() const { return static_cast<unsigned>(tiling_.width); }

  llvm::Function* define(const char* symbol, std::initializer_list<llvm::Type*> args) {
    return module_.define(symbol, llvm::Type::getVoidTy(module_.context()), std::vector(args));
  }
  llvm::Type* pointer() { return llvm::PointerType::get(module_.context(), 0); }
  llvm::Type* i32() { return llvm::Type::getInt32Ty(module_.context()); }
  llvm::Type* i64() { return llvm::Type::getInt64Ty(module_.context()); }

  void head_fields() {
    Code code(define(mod_symbol::head_fields, {pointer(), pointer()}));
    const FrameCode frame(code, code.arg(0));
    Expressions emit(isa_, captures_, frame.at());
    const auto& fields = parts_.levels.head;
    for (std::size_t i = 0; i < fields.size(); ++i)
      code.store(to_bits(emit(fields[i]), fields[i]->type),
                 code.at(code.arg(1), code.i32(), static_cast<std::int64_t>(i)));
    code.done();
  }

  void line_fields(const char* symbol, ir::Level level) {
    Code code(define(symbol, {pointer(), i32(), i32(), pointer(), i64()}));
    const FrameCode frame(code, code.arg(0));
    const bool rows = level == ir::Level::Row;
    std::vector<ir::Expr> fields = rows ? parts_.levels.row : parts_.levels.col;
    if (rows && parts_.has_row_term) fields.push_back(parts_.row_term());
    code.loop(code.integer(0), code.arg(2), tiling_.width, [&](Val i) {
      At at = frame.at();
      (rows ? at.q : at.kv) = code.arg(1) + i + code.iota(width());
      const auto into = [&](std::size_t field) {
        return code.at(code.at(code.arg(3), code.i32(), code.arg(4) * static_cast<std::int64_t>(field)), code.i32(), i);
      };
      at.field = [&](ir::Level of, std::uint32_t index, ir::Type type) {
        return of == ir::Level::Head ? head_field(code, frame, index, type)
                                     : from_bits(code.load(Code::vector(code.i32(), width()), into(index)), type);
      };
      Expressions emit(isa_, captures_, at);
      for (std::size_t f = 0; f < fields.size(); ++f) {
        const Val bits = to_bits(emit(fields[f]), fields[f]->type);
        code.store(bits.is_vector() ? bits : splat(bits, width()), into(f));
      }
    });
    code.done();
  }

  /// The arguments of an Attend, and where its rows and columns are.
  struct Args {
    Code& code;
    FrameCode frame;
    Val s, s_row, p, p_row, rows, q, kv, first, last, kv_end, scale, row, row_ld, col, col_ld, m, l, alpha;

    explicit Args(Code& c) : code(c), frame(c, c.member(c.pointer(), c.arg(0), offsetof(Attend, frame))) {
      const auto get = [&](llvm::Type* type, std::size_t offset) { return c.member(type, c.arg(0), offset); };
      s = get(c.pointer(), offsetof(Attend, s));
      s_row = get(c.i64(), offsetof(Attend, s_row));
      p = get(c.pointer(), offsetof(Attend, p));
      p_row = get(c.i64(), offsetof(Attend, p_row));
      rows = to_i64(get(c.i32(), offsetof(Attend, rows)));
      q = get(c.i32(), offsetof(Attend, q));
      kv = get(c.i32(), offsetof(Attend, kv));
      first = to_i64(get(c.i32(), offsetof(Attend, first)));
      last = to_i64(get(c.i32(), offsetof(Attend, last)));
      kv_end = get(c.i32(), offsetof(Attend, kv_end));
      scale = get(c.f32(), offsetof(Attend, scale));
      row = get(c.pointer(), offsetof(Attend, row));
      row_ld = get(c.i64(), offsetof(Attend, row_ld));
      col = get(c.pointer(), offsetof(Attend, col));
      col_ld = get(c.i64(), offsetof(Attend, col_ld));
      m = get(c.pointer(), offsetof(Attend, m));
      l = get(c.pointer(), offsetof(Attend, l));
      alpha = get(c.pointer(), offsetof(Attend, alpha));
    }
    Val s_at(Val r, Val c) const { return code.at(s, code.f32(), r * s_row + c); }
    Val of_row(Val per_row, Val r) const { return code.at(per_row, code.f32(), r); }
  };

  /// Where an element is: its coordinates, and its fields where the driver left them.
  At element(const Args& a, Val r, Val c) {
    Code& code = a.code;
    At at = a.frame.at();
    at.q = a.q + to_i32(r);
    at.kv = a.kv + to_i32(c) + code.iota(width());
    at.field = [this, &a, &code, r, c](ir::Level level, std::uint32_t index, ir::Type type) {
      const auto f = static_cast<std::int64_t>(index);
      switch (level) {
        case ir::Level::Head: return head_field(code, a.frame, index, type);
        case ir::Level::Row:
          return from_bits(code.load(code.i32(), code.at(a.row, code.i32(), a.row_ld * f + r)), type);
        case ir::Level::Col:
          return from_bits(code.load(Code::vector(code.i32(), width()), code.at(a.col, code.i32(), a.col_ld * f + c)),
                           type);
      }
      return Val{};
    };
    return at;
  }

  /// The element's score, -inf where it is removed.
  Val score(const Args& a, Val r, Val c, bool some) {
    Code& code = a.code;
    At at = element(a, r, c);
    at.s = code.load(Code::vector(code.f32(), width()), a.s_at(r, c));
    if (unit_ == Unit::bf16) at.s = at.s * a.scale;
    Expressions emit(isa_, captures_, at);
    Val x = emit(parts_.core());
    if (!x.is_vector()) x = splat(x, width());
    if (!some) return x;
    Val keep = at.kv < a.kv_end;
    if (parts_.masked) keep = keep & emit(parts_.mask());
    return select(keep, x, -infinity);
  }

  Val prob(const Args& a, Val r, Val c, Val x, Val p) {
    if (!parts_.has_prob) return p;
    At at = element(a, r, c);
    at.p = p;
    Expressions emit(isa_, captures_, at);
    // Whatever a prob mod makes of 0, what was removed stays removed.
    return select(x == -infinity, 0.0, like(x, emit(parts_.prob())));
  }

  void store_p(const Args& a, Val r, Val c, Val p) {
    Code& code = a.code;
    if (unit_ == Unit::f32) return code.store(p, code.at(a.p, code.f32(), r * a.p_row + c));
    const Val narrow{code, code.ir().CreateFPTrunc(p.get(), Code::vector(code.bf16(), width()))};
    code.store(narrow, code.at(a.p, code.bf16(), r * a.p_row + c));
  }

  Degree degree() const { return unit_ == Unit::bf16 ? Degree::bf16 : Degree::f32; }

  /// Columns two registers at a time: enough in flight to hide an FMA's latency.
  void columns(const Args& a, const std::function<void(Val c, unsigned which)>& body) {
    a.code.loop(a.first, a.last, 2 * tiling_.width, [&](Val c) {
      for (unsigned u = 0; u < 2; ++u) body(c + static_cast<std::int64_t>(u * width()), u);
    });
  }

  void attend(const char* symbol, bool some) {
    Code code(define(symbol, {pointer()}));
    const Args a(code);
    const bool as_it_is = !some && unit_ == Unit::f32 && parts_.core()->op == ir::Op::Input;
    const Val none = splat(code.real(-infinity), width()), zero = splat(code.real(0), width());

    // First every row's largest score, then every row's exponentials: rows hide each other's latencies.
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const auto top = code.loop(a.first, a.last, 2 * tiling_.width, {none, none},
                                 [&](Val c, const Code::Carried& best) {
                                   Code::Carried next;
                                   for (unsigned u = 0; u < 2; ++u) {
                                     const Val at = c + static_cast<std::int64_t>(u * width());
                                     const Val x = score(a, r, at, some);
                                     if (!as_it_is) code.store(x, a.s_at(r, at));
                                     next.push_back(max(x, best[u]));
                                   }
                                   return next;
                                 });
      const Val before = code.load(code.f32(), a.of_row(a.m, r));
      const Val m = max(max_of_lanes(max(top[0], top[1])), before);
      code.store(m, a.of_row(a.m, r));
      // Rows with nothing kept so far have m = -inf; 0 in its place keeps -inf - -inf away.
      const Val from = select(m == -infinity, 0.0, m);
      code.store(exp2_softmax(isa_, (before - from) * log2e, Degree::f32), a.of_row(a.alpha, r));
    });
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const Val m = code.load(code.f32(), a.of_row(a.m, r));
      const Val from = splat(select(m == -infinity, 0.0, m), width());
      const auto sum = code.loop(a.first, a.last, 2 * tiling_.width, {zero, zero}, [&](Val c, const Code::Carried& s) {
        Code::Carried next;
        for (unsigned u = 0; u < 2; ++u) {
          const Val at = c + static_cast<std::int64_t>(u * width());
          const Val x = code.load(Code::vector(code.f32(), width()), a.s_at(r, at));
          // Not one FMA with m log2e, whose rounding is all that is left where scores are large.
          const Val p = exp2_softmax(isa_, (x - from) * log2e, degree());
          store_p(a, r, at, prob(a, r, at, x, p));
          next.push_back(s[u] + p);
        }
        return next;
      });
      const Val l = code.load(code.f32(), a.of_row(a.l, r));
      const Val alpha = code.load(code.f32(), a.of_row(a.alpha, r));
      code.store(fma(l, alpha, sum_of_lanes(sum[0] + sum[1])), a.of_row(a.l, r));
    });
    code.done();
  }

  void attend_known() {
    Code code(define(mod_symbol::attend_known, {pointer()}));
    const Args a(code);
    code.loop(code.index(0), a.rows, 1, [&](Val r) {
      const Val lse = code.load(code.f32(), a.of_row(a.m, r));
      const Val from = splat(select(lse == -infinity, 0.0, lse), width());
      columns(a, [&](Val c, unsigned) {
        const Val x = score(a, r, c, true);
        store_p(a, r, c, prob(a, r, c, x, exp2_softmax(isa_, (x - from) * log2e, degree())));
      });
    });
    code.done();
  }

  ForwardParts parts_;
  std::span<const CaptureSlot> captures_;
  Isa isa_;
  Unit unit_;
  Tiling tiling_;
  Module module_;
};

}  // namespace

std::string forward_object(const compiler::Mod& mod, Isa isa, Unit unit) { return Forward(mod, isa, unit).object(); }

}  // namespace attune::codegen
