// ir/parse_types.cpp — the types of a text's operations, and the message if a type does not fit
#include "ir/parser.h"

namespace attune::ir {

Operand Parser::node(Expr made, std::uint32_t begin, std::uint32_t end) {
  if (++made_ > max_nodes) refuse_size();
  return {std::move(made), begin, end};
}

// Converts an Int to Float, next to a Float or where a Float is required.
void Parser::widen(Operand& o) {
  if (o.expr->type != Type::I32) return;
  const bool literal = o.expr->op == Op::Literal;
  Written where = written(o.begin, o.end);
  o = node(literal ? real(static_cast<float>(literal_value(*o.expr)), std::move(where))
                   : op(Op::F32, o.expr, std::move(where)),
           o.begin, o.end);
}

// The operation on arguments_ from `first` on; pops them.
Operand Parser::apply(Op o, std::size_t first, std::uint32_t begin, std::uint32_t end) {
  const OpRow& r = row(o);
  const std::span<Operand> args(&arguments_[first], arguments_.size() - first);
  const std::size_t alike = o == Op::Where ? 1 : 0;  // arguments from here on share one type
  bool wide = r.takes == Takes::Float;
  for (std::size_t i = alike; i < args.size(); ++i) wide |= args[i].expr->type == Type::F32;
  for (std::size_t i = alike; i < args.size() && wide && takes(r.takes, Type::F32); ++i) widen(args[i]);
  std::array<Expr, max_args> exprs;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Type type = args[i].expr->type;
    const bool right = i < alike ? type == Type::Bool : takes(r.takes, type) && type == args[alike].expr->type;
    if (!right) refuse_type(o, args, i);
    exprs[i] = args[i].expr;
  }
  Type type = exprs[args.size() - 1]->type;
  if (r.gives == Gives::Bool) type = Type::Bool;
  if (r.gives == Gives::I32) type = Type::I32;
  if (r.gives == Gives::F32) type = Type::F32;
  Operand made = node(make(o, type, 0, {exprs.data(), args.size()}, written(begin, end)), begin, end);
  arguments_.resize(first);
  return made;
}

Expr Parser::expected(Operand made) {
  if (scope_.expected == Type::F32) widen(made);
  if (scope_.expected && made.expr->type != *scope_.expected) refuse_result(made);
  return std::move(made.expr);
}

std::string Parser::words(const Operand& o, int bind) const {
  const Written& w = o.expr->written;
  const bool in_brackets = w.text == text_ && w.begin > o.begin && w.end < o.end;
  std::string out(in_brackets ? slice(w.begin, w.end) : slice(o));
  if (out.size() > 40) return "(…)";
  const int inner = row(o.expr->op).bind;
  const bool bare = inner == 0 || inner > bind || is_name(out);
  return bare ? out : "(" + out + ")";
}

void Parser::refuse_sign(const Token& sign, const Operand& operand) const {
  fail("wrong-type", quote(sign) + " takes a number, and " + quote(operand) + " is a Bool", operand, "",
       "write i32(" + words(operand, 0) + ") for 0 or 1");
}

void Parser::refuse_index(const Operand& index) const {
  const bool is_float = index.expr->type == Type::F32;
  fail("wrong-type", "an index is an Int, and " + quote(index) + " is " + a(index.expr->type), index, "",
       is_float ? "write i32(" + words(index, 0) + "), which truncates"
                : "write i32(" + words(index, 0) + ") for 0 or 1");
}

void Parser::refuse_sum_of_bools(const Operand& inside) const {
  fail("wrong-type", "a sum adds numbers, and " + quote(inside) + " is a Bool", inside, "",
       "write i32(…) around it to count; compare with > 0 to ask whether any is true");
}

// `truth`: a Bool where a number is required.
void Parser::refuse_bool(Op o, std::span<const Operand> args, std::size_t wrong, const Operand& truth) const {
  const OpRow& r = row(o);
  const Operand& bad = args[wrong];
  const std::string is = quote(bad) + " is " + a(bad.expr->type), name = quoted(r.spelling);
  const std::string as_int = "i32(" + words(truth, 0) + ")", as_float = "f32(" + words(truth, 0) + ")";
  const bool joins_bits = o == Op::BitAnd || o == Op::BitOr || o == Op::BitXor;
  if (joins_bits && bad.middle && args[1 - wrong].expr->type == Type::I32) {
    const std::string equal(row(bad.expr->op).spelling), sign = " " + std::string(r.spelling) + " ";
    std::string_view left = slice(bad.begin, bad.middle);
    left = left.substr(0, left.rfind(equal));
    left = left.substr(0, left.find_last_not_of(" \t\n") + 1);
    const std::string first(left), second(slice(bad.middle, bad.end));
    fail("wrong-type", name + " takes Ints, and " + is, bad,
         quoted(equal) + " binds tighter than " + quoted(r.spelling),
         "write " + (wrong == 1 ? "(" + words(args[0], r.bind) + sign + first + ") " + equal + " " + second
                                : first + " " + equal + " (" + second + sign + words(args[1], r.bind) + ")"));
  }
  if (o == Op::BitAnd || o == Op::BitOr)
    fail("wrong-type", name + " takes Ints, and " + is, bad, "",
         "write " + std::string(r.spelling) + std::string(r.spelling) + " between conditions, or " + as_int +
             " for 0 or 1");
  if (o == Op::BitXor) fail("wrong-type", name + " takes Ints, and " + is, bad, "", "write != between conditions");
  if (o == Op::Neg || o == Op::BitNot)
    fail("wrong-type", name + " takes a number, and " + is, bad, "", "write ! before a condition");
  if (o == Op::Where)
    fail("wrong-type", "the two values of a choice have one type, and " + is, bad,
         quote(args[1]) + " is " + a(args[1].expr->type) + ", " + quote(args[2]) + " is " + a(args[2].expr->type),
         "write " + as_float + " or " + as_int + ", or make both conditions");
  if (o == Op::Eq || o == Op::Ne) {
    const Operand& number = &truth == &args[0] ? args[1] : args[0];
    const bool bit = number.expr->op == Op::Literal && number.expr->type == Type::I32 && number.expr->bits <= 1;
    const bool holds = bit && (number.expr->bits == 1) == (o == Op::Eq);
    fail("wrong-type", name + " compares " + a(args[0].expr->type) + " with " + a(args[1].expr->type), args[0].begin,
         args[1].end, quote(truth) + " is a Bool, " + quote(number) + " is " + a(number.expr->type),
         bit ? "write " + (holds ? words(truth, 12) : "!" + words(truth, 12)) : "write " + as_int + " for 0 or 1");
  }
  fail("wrong-type", name + " takes numbers, and " + is, bad, "",
       "write " +
           (r.takes == Takes::Int     ? as_int
            : r.takes == Takes::Float ? as_float
                                      : as_int + " or " + as_float) +
           " for 0 or 1");
}

void Parser::refuse_type(Op o, std::span<const Operand> args, std::size_t wrong) const {
  const OpRow& r = row(o);
  const Operand& bad = args[wrong];
  const Type type = bad.expr->type;
  const std::string is = quote(bad) + " is " + a(type), name = quoted(r.spelling);

  if (compares(o) && args[0].middle && args[0].expr->type == Type::Bool && row(args[0].expr->op).bind == r.bind)
    fail("chained-comparison", "comparisons do not chain", args[0].begin, args[1].end,
         quote(args[0]) + " is a Bool, and it is compared with " + a(args[1].expr->type),
         "write " + std::string(slice(args[0])) + " && " + std::string(slice(args[0].middle, args[0].end)) + " " +
             std::string(r.spelling) + " " + std::string(slice(args[1])));

  const std::string test = "write " + words(bad, row(Op::Ne).bind) + (o == Op::Not ? " == 0" : " != 0");
  if (o == Op::Where && wrong == 0) fail("wrong-type", "a condition is a Bool, and " + is, bad, "", test);
  if (r.takes == Takes::Bool)
    fail("wrong-type", name + " takes Bools, and " + is, bad, "",
         (o == Op::And || o == Op::Or) && args[0].expr->type == Type::I32 && args[1].expr->type == Type::I32
             ? test + ", or " + std::string(r.spelling.substr(1)) + " for bits"
             : test);

  const Operand& other = args[r.args == 3 ? 1 : 0];
  if (type == Type::Bool) refuse_bool(o, args, wrong, bad);
  if (r.takes == Takes::Any && other.expr->type == Type::Bool) refuse_bool(o, args, wrong, other);

  std::string fix = "write i32(" + words(bad, 0) + "), which truncates";
  const std::string x = args.size() > 1 ? words(args[0], 11) : "x", y = args.size() > 1 ? words(args[1], 11) : "y";
  if (o == Op::Rem || o == Op::FloorMod) fix = "between Floats write " + x + " - floor(" + x + " / " + y + ") * " + y;
  if (o == Op::FloorDiv) fix = "between Floats write floor(" + x + " / " + y + ")";
  if (o == Op::BitXor) fix = "for a power write pow(" + words(args[0], 0) + ", " + words(args[1], 0) + ")";
  if (o == Op::Kept && wrong == 1) fix = "write i32(round(" + words(bad, 11) + " * 65536)): it counts pairs of 65536";
  if (o == Op::Shl) fix = "between Floats write " + x + " * exp2(" + words(args[1], 0) + ")";
  if (o == Op::Shr) fix = "between Floats write " + x + " / exp2(" + words(args[1], 0) + ")";
  fail("wrong-type", name + (args.size() > 1 ? " takes Ints, and " : " takes an Int, and ") + is, bad, "", fix);
}

void Parser::refuse_result(const Operand& made) const {
  const Type wanted = *scope_.expected, got = made.expr->type;
  std::string why = wanted == Type::Bool ? "a mask is a condition: it keeps or removes each pair" : "";
  if (wanted == Type::F32) why = "a score is a number for each pair";
  std::string fix = "compare something, such as kv <= q";
  if (wanted == Type::Bool && made.expr->type == Type::I32 && slice(made).size() < 40)
    fix += ", or write " + words(made, row(Op::Ne).bind) + " != 0";
  if (wanted == Type::F32) fix = "choose between two numbers: c ? s : -inf";
  if (wanted == Type::I32) fix = got == Type::F32 ? "write i32(…), which truncates" : "write i32(…) for 0 or 1";
  fail("wrong-type", scope_.name + " must be " + a(wanted) + ", and this is " + a(got), made, why, fix);
}

}  // namespace attune::ir
