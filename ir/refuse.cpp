// ir/refuse.cpp — the message for each mistake in a text, except type errors: what is wrong, why, and what to write
// instead
#include "ir/parser.h"

namespace attune::ir {
namespace {

std::string counted(std::size_t n, std::string_view thing) {
  return std::to_string(n) + " " + std::string(thing) + (n == 1 ? "" : "s");
}

std::string listed(std::span<const std::string> names) {
  constexpr std::size_t most = 24;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > most) out += " and " + std::to_string(names.size() - most) + " more";
  return out;
}

}  // namespace

void Parser::refuse_empty() const {
  throw Error("empty-text", "the expression is empty", {scope_.name}, "", "write one, such as kv <= q");
}

void Parser::refuse_depth() const {
  fail("too-deep", "the expression nests too deep", token_,
       "brackets, calls and signs may nest " + std::to_string(max_nesting) + " deep", "name parts of it: let x = …; …");
}

void Parser::refuse_stack() const {
  fail("too-deep", "the expression nests too deep for this thread", token_,
       "each level uses the thread's stack, and it is full",
       "name parts of it: let x = …; …, or give the thread a larger stack");
}

void Parser::refuse_size() const {
  throw Error("too-large", "the expression has too many nodes", {scope_.name},
              "an expression has at most " + std::to_string(max_nodes) + " nodes",
              "pass tables as captures, and write repetitions as sum(i, n, body)");
}

void Parser::refuse_name(std::string_view what) const {
  if (what == "let")
    fail("bad-let", "let must be followed by a name", token_.begin, std::max(token_.end, token_.begin + 1), "",
         "write let x = s * s; x + 1.0f");
  fail("bad-sum", "the first argument of sum is the name of its variable", token_.begin,
       std::max(token_.end, token_.begin + 1), "", "write sum(i, 16, a[i] * b[i])");
}

void Parser::refuse_new(const Token& name, std::string_view what) const {
  const std::string_view word = lexer_.slice(name);
  const std::string fix = what == "let" ? "choose another name for the let"
                                        : "choose another name for the sum's variable";
  if (is_reserved(word))
    fail("reserved-name", quoted(word) + " is reserved by the language", name,
         op_named(word)  ? "it is a function"
         : word == "let" ? "it begins a let"
                         : "it is a variable or constant",
         fix);
  const auto found = names_.find(word);
  std::string why = "the enclosing let defines it";
  if (found != names_.end()) switch (found->second.kind) {
      case Meaning::Value: why = "a let already has this name"; break;
      case Meaning::Param: why = "a parameter has this name"; break;
      case Meaning::Capture: why = "a captured tensor has this name"; break;
      case Meaning::Variable: why = "it is the variable of an enclosing sum"; break;
    }
  fail("name-taken", quoted(word) + " is already defined", name, why, fix);
}

void Parser::refuse_let(const Token& name) const {
  fail("bad-let", "a = is missing after let " + std::string(lexer_.slice(name)), name.begin, name.end, "",
       "write let " + std::string(lexer_.slice(name)) + " = …; …");
}

void Parser::refuse_let_end(const Token& name) const {
  const bool over = token_.kind == Tok::End || is_word("let") ||
                    (token_.kind == Tok::Name && advice_on(lexer_.slice(token_)).empty());
  if (!over) refuse_rest(nullptr);
  fail("bad-let", "a ; is missing after the value of " + quoted(lexer_.slice(name)), last_.end, last_.end + 1, "",
       "write let " + std::string(lexer_.slice(name)) + " = …; and then the expression that uses it");
}

void Parser::refuse_word() const {
  fail("unknown-operator", "there is no operator " + quote(token_), token_, "",
       std::string(advice_on(lexer_.slice(token_))));
}

// Something other than a value where a value must begin.
void Parser::refuse_missing() const {
  const std::string before = last_.end == 0 ? "" : " after " + quoted(slice(last_.begin, last_.end));
  switch (token_.kind) {
    case Tok::End:
      fail("missing-operand", "the expression ends where a value is expected", last_.end, last_.end + 1, "",
           "write a value" + before);
    case Tok::Close:
    case Tok::CloseIndex:
    case Tok::Comma:
    case Tok::Semicolon:
    case Tok::Colon:
    case Tok::Question:
    case Tok::Infix:
      fail("missing-operand", "a value is missing before " + quote(token_), token_, "",
           before.empty() ? "write its left operand" : "write a value" + before);
    default:
      fail("missing-operand", "a value is missing before " + quote(token_), token_, "",
           "== compares; a let gives names: let x = …; …");
  }
}

void Parser::refuse_inner_let(const Token& t) const {
  fail("bad-let", "a let is inside an expression", t, "lets come first, in the text or in the body of a sum",
       "write let x = …; and then the expression");
}

// A token after a complete expression (within the bracket `open` if there is one) that cannot continue it.
void Parser::refuse_rest(const Token* open) const {
  const std::string_view bracket = open ? lexer_.slice(*open) : std::string_view{};
  const std::string_view closer = bracket == "[" ? "]" : ")";
  switch (token_.kind) {
    case Tok::End:
      if (bracket == "?") break;
      fail("unclosed", quoted(bracket) + " is never closed", *open, "", "add the missing " + std::string(closer));
    case Tok::Name:
      if (is_word("let")) refuse_inner_let(token_);
      if (!advice_on(lexer_.slice(token_)).empty()) refuse_word();
      [[fallthrough]];
    case Tok::Int:
    case Tok::Float:
    case Tok::Open:
    case Tok::Not:
    case Tok::BitNot: {
      const std::string product = std::string(lexer_.slice(last_)) + " * " + std::string(lexer_.slice(token_));
      fail("missing-operator", "there is no operator between " + quote(last_) + " and " + quote(token_), last_.begin,
           token_.end, "",
           last_.kind == Tok::Int || last_.kind == Tok::Float
               ? "if this is a product, write " + product
               : "write the operator, or a comma between a function's arguments");
    }
    case Tok::OpenIndex:
      if (last_.kind == Tok::CloseIndex)
        fail("wrong-rank", "an element of a captured tensor cannot be indexed", token_, "",
             "write all indices in one pair of brackets: bias[q, kv]");
      fail("not-indexable", "only a captured tensor can be indexed", token_, "", "write its name and then [index, …]");
    case Tok::Close:
    case Tok::CloseIndex:
      if (bracket == "(" || bracket == "[")
        fail("unclosed", quoted(bracket) + " is closed by " + quote(token_), open->begin, token_.end, "",
             "close it with " + std::string(closer));
      if (bracket.empty())
        fail("unopened", quote(token_) + " has no opening bracket", token_, "",
             "leave it out, or add the opening bracket");
      break;
    case Tok::Assign:
      fail("unknown-operator", "= is not a comparison", token_, "an expression cannot assign",
           "write ==, or let x = …; … to name a part");
    case Tok::Semicolon:
      fail("trailing-text", "the expression ends before " + quote(token_), token_, "only a let ends with ;",
           "leave it out, or write let x = …; …");
    case Tok::Comma:
      fail("trailing-text", "a comma is outside a function's arguments", token_, "an expression has one value",
           "leave it out, or name the function");
    case Tok::Colon: fail("trailing-text", "a : has no ?", token_, "", "write c ? a : b");
    case Tok::Question:
    case Tok::Infix: break;
  }
  fail("unclosed", "`?` has no :", *open, "", "write c ? a : b");
}

void Parser::refuse_int(const Token& t) const {
  fail("bad-number", quote(t) + " does not fit an Int", t, "an Int is between -2147483648 and 2147483647",
       "write a Float: 2147483648.0f");
}

std::string Parser::sample_index(int rank) const {
  constexpr std::array<std::string_view, 5> samples{"[]", "[h]", "[q, kv]", "[h, q, kv]", "[b, h, q, kv]"};
  return std::string(samples[static_cast<std::size_t>(std::clamp(rank, 0, 4))]);
}

void Parser::refuse_unindexed(const Token& t, std::uint32_t slot) const {
  const Signature::Capture& c = scope_.signature->captures[slot];
  const bool called = token_.kind == Tok::Open;
  fail("missing-index",
       quote(t) + " is a captured tensor" + (called ? ", not a function" : ": it has elements, not a value"), t,
       quote(t) + " has rank " + std::to_string(c.rank),
       "write " + c.name + sample_index(c.rank) + (c.rank > 0 ? ", with the indices you mean" : ""));
}

void Parser::refuse_value(const Token& t, const Meaning& meaning) const {
  std::string_view what = "variable";
  if (meaning.kind == Meaning::Param) what = "parameter";
  if (meaning.kind == Meaning::Value && names_.contains(lexer_.slice(t))) what = "let";
  if (token_.kind == Tok::OpenIndex)
    fail("not-indexable", quote(t) + " is a " + std::string(what) + ": it has no elements", t.begin, token_.end, "",
         "write " + std::string(lexer_.slice(t)) + " alone, or capture a tensor");
  fail("unknown-function", quote(t) + " is a " + std::string(what) + ", not a function", t, "",
       "if this is a product, write " + std::string(lexer_.slice(t)) + " * (…)");
}

std::vector<std::string> Parser::known_values() const {
  std::vector<std::string> known;
  for (int i = 0; i < user_input_count; ++i)
    if (scope_.inputs & bit(static_cast<Input>(i))) known.emplace_back(input_names[static_cast<std::size_t>(i)]);
  std::vector<std::string> own;
  for (const auto& [name, meaning] : names_) own.emplace_back(name);
  std::ranges::sort(own);
  known.insert(known.end(), own.begin(), own.end());
  return known;
}

// True if only a mod could stand there: alone, or joined to others by && and ||. In `kv <= window` a number is meant.
bool Parser::is_no_operand(const Token& t) const {
  const std::string_view text = text_->body;
  constexpr std::string_view space = " \t\n", joins = "()&|!";
  const std::size_t before = t.begin == 0 ? std::string_view::npos : text.find_last_not_of(space, t.begin - 1),
                    after = text.find_first_not_of(space, t.end);
  const auto joined = [&](std::size_t at) {
    return at == std::string_view::npos || joins.find(text[at]) != std::string_view::npos;
  };
  return joined(before) && joined(after);
}

void Parser::refuse_unknown(const Token& t) const {
  const std::string_view word = lexer_.slice(t);
  if (word == "let") refuse_inner_let(t);
  if (op_named(word))
    fail("missing-arguments", quote(t) + " is a function", t, "", "write " + std::string(word) + "(…)");
  for (const NamedMod& mod : named_mods())
    if (mod.name == word && is_no_operand(t))
      fail("missing-arguments", quote(t) + " is a mod and needs arguments in brackets", t, "", "write " + mod.shown());
  if (word == defining_)
    fail("unknown-name", quote(t) + " is used in its own definition", t, "a let may use only names defined before it",
         "rename one of the two");
  if (gone_.contains(word))
    fail("unknown-name", quote(t) + " is undefined outside its sum", t,
         "it is defined inside a sum that ends before this", "move this into the sum, or define it before the sum");
  const std::vector<std::string> known = known_values();
  // For a short word, advice on another language's word is likelier right than a similar known name.
  std::string fix(advice_on(word));
  const auto meant = fix.empty() || word.size() > 3 ? nearest(word, known) : std::nullopt;
  if (meant) fix = "write " + *meant + " if you meant that";
  fail("unknown-name", "unknown name " + quote(t), t, "names known here: " + listed(known),
       fix.empty() ? "pass it as a capture or a parameter" : fix);
}

void Parser::refuse_function(const Token& t) const {
  const std::string_view word = lexer_.slice(t);
  const auto input = std::ranges::find(input_names, word);
  if (input != input_names.end()) refuse_value(t, {Meaning::Variable});
  if (word == "true" || word == "false" || word == "let") refuse_value(t, {Meaning::Variable});
  std::vector<std::string> functions;
  for (const OpRow& r : op_rows)
    if (r.bind == 0 && !r.spelling.empty()) functions.emplace_back(r.spelling);
  std::string fix(advice_on(word));
  std::vector<std::string> known = functions;
  for (const NamedMod& mod : named_mods()) known.emplace_back(mod.name);
  if (const auto meant = fix.empty() ? nearest(word, known) : std::nullopt)
    fix = "write " + *meant + " if you meant that";
  const std::string all = listed(functions);
  fail("unknown-function", "there is no function " + quote(t), t, fix.empty() ? "the functions are " + all : "",
       fix.empty() ? "write it with these, or tabulate it and pass the table as a capture" : fix);
}

void Parser::refuse_let(const Token& t, const Node& value) const {
  const auto first = static_cast<std::size_t>(std::countr_zero(value.uses & ~scope_.inputs));
  const bool drawn = value.random && first >= static_cast<std::size_t>(Input::Q);
  const std::string read = drawn ? "random numbers, which differ for every q and kv" : quoted(input_names[first]);
  fail("not-allowed-here", quote(t) + " may not be used in " + scope_.name, t, "it reads " + read,
       "write it without " + std::string(drawn ? "random" : input_names[first]));
}

void Parser::refuse_named(const Token& t) const {
  const std::string_view word = lexer_.slice(t);
  std::vector<std::string> forms, details;
  for (const NamedMod& mod : named_mods()) {
    if (mod.name != word) continue;
    if (const std::string shown = mod.shown(); std::ranges::find(forms, shown) == forms.end()) forms.push_back(shown);
    for (const NamedArgument& one : mod.takes) {
      if (!one.given()) break;
      std::string is = std::string(one.name) + " is " + a(one.type);
      if (one.rank >= 0)
        is = std::string(one.name) + " names a captured tensor of " +
             (one.type == Type::F32   ? "floats"
              : one.type == Type::I32 ? "integers"
                                      : "bools") +
             " with " + std::to_string(one.rank) + (one.rank == 1 ? " dimension" : " dimensions");
      if (std::ranges::find(details, is) == details.end()) details.push_back(is);
    }
  }
  std::string why, fix = "write ";
  for (const std::string& one : details) why += (why.empty() ? "" : "; ") + one;
  for (std::size_t i = 0; i < forms.size(); ++i) fix += (i ? " or " : "") + forms[i];
  fail("wrong-arguments", quote(t) + " does not take these arguments", t.begin, last_.end, why, fix);
}

void Parser::refuse_share(const std::string& name, const Operand& number) const {
  fail("bad-argument", quoted(name) + " cannot be " + std::string(slice(number)), number.begin, number.end, why_a_share,
       fix_of_a_share);
}

void Parser::refuse_input(const Token& t) const {
  std::vector<std::string> allowed;
  for (int i = 0; i < user_input_count; ++i)
    if (scope_.inputs & bit(static_cast<Input>(i))) allowed.emplace_back(input_names[static_cast<std::size_t>(i)]);
  const std::string_view word = lexer_.slice(t);
  std::string fix = "use one of these";
  if (allowed.empty()) fix = "use captures, parameters and numbers";
  if (word == "s" && scope_.inputs & bit(Input::P))
    fix = "write p, the probability: s does not exist after the softmax";
  if (word == "p" && scope_.inputs & bit(Input::S)) fix = "write s, the score: p exists only after the softmax";
  if (word == "s" && !(scope_.inputs & bit(Input::P)) && scope_.inputs & bit(Input::KV))
    fix = "to remove pairs by their score, write c ? s : -inf in the score";
  fail("not-allowed-here", quote(t) + " may not be used in " + scope_.name, t,
       allowed.empty() ? "no variable may be used here"
                       : "available here: " + listed(allowed) + ", captures and parameters",
       fix);
}

void Parser::refuse_rank(const Token& t, const Signature::Capture& capture, std::size_t given) const {
  fail("wrong-rank",
       quote(t) + " takes " + (capture.rank == 1 ? "1 index" : std::to_string(capture.rank) + " indices") + ", and " +
           std::to_string(given) + (given == 1 ? " is given" : " are given"),
       t.begin, last_.end, quote(t) + " is a tensor of rank " + std::to_string(capture.rank),
       "write " + capture.name + sample_index(capture.rank) + (capture.rank > 0 ? ", with the indices you mean" : ""));
}

void Parser::refuse_count(const Token& t, std::size_t wanted, std::size_t given) const {
  const std::string_view word = lexer_.slice(t);
  const auto op = op_named(word);
  std::string shape = "(x)";
  if (wanted == 2) shape = "(x, y)";
  if (op == Op::Where) shape = "(c, a, b)";
  if (op == Op::Clamp) shape = "(x, lo, hi)";
  if (op == Op::Sum) shape = "(i, 16, body)";
  if (op == Op::Random) shape = "(seed)";
  if (op == Op::Kept) shape = "(seed, n)";
  if (op == Op::Custom) shape = "(value, derivative)";
  std::string fix = "write " + std::string(word) + shape;
  if ((op == Op::Min || op == Op::Max) && given > 2)
    fix = "write " + std::string(word) + "(x, " + std::string(word) + "(y, z))";
  fail("wrong-count",
       quote(t) + " takes " + counted(wanted, "argument") + ", and " + std::to_string(given) +
           (given == 1 ? " is given" : " are given"),
       t.begin, std::max(last_.end, t.end), "", fix);
}

void Parser::refuse_sum_count(const Operand& count) const {
  const Node& n = *count.expr;
  if (n.op == Op::Literal && n.type == Type::I32)
    fail("bad-sum",
         "a sum has between 0 and " + std::to_string(max_sum_count) + " terms, and this one " +
             std::string(slice(count)),
         count, "", static_cast<std::int32_t>(n.bits) < 0 ? "write the number of terms" : "split it into several sums");
  fail("bad-sum", "the number of terms of a sum must be a literal Int, and " + quote(count) + " is not", count,
       "the kernel is compiled for this number", "write a number, such as 16");
}

void Parser::refuse_sums(const Token& t) const {
  fail("too-deep", "sums may nest " + std::to_string(max_binders) + " deep, and this is one more", t, "",
       "nest fewer sums");
}

}  // namespace attune::ir
