// ir/print.cpp — Expr to text: where brackets are needed, and which nodes get a name
#include "ir/print.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>

namespace attune::ir {
namespace {

constexpr std::uint32_t small_text = 64;        // tree nodes; below this, repetition reads better than a name
constexpr std::uint32_t worth_a_name = 8;       // tree nodes of a shared expression
constexpr std::uint32_t deepest_nesting = 100;  // nested brackets; deeper ones get a name
constexpr int prefix_bind = 12;
constexpr double lowest_int = std::numeric_limits<std::int32_t>::min();

// A node in the scope (the whole text, or the body of one sum) that binds the innermost variable it mentions. Equal
// nodes in two sums are two entries, since a name given in one sum means nothing in the other.
struct Entry {
  const Node* node;
  std::uint32_t scope;
  std::uint32_t inner;  ///< the scope of its arguments: for a Sum, its own body
  std::array<std::uint32_t, max_args> args{};
  std::uint32_t uses = 0;
  std::uint32_t nesting = 0;
  bool named = false;
  std::string name{};  ///< set when its let is written
};

struct NameScope {
  std::uint32_t parent;
  std::uint32_t binder;  ///< 0: the whole text
  std::vector<std::uint32_t> lets;
  std::uint32_t nesting = 0;  ///< of its deepest let
};

class Printer {
 public:
  enum class Spans : std::uint8_t { none, all };

  Printer(const Expr& root, const Signature& signature, const FieldNames* device = nullptr,
          std::uint32_t small = small_text)
      : signature_(signature), device_(device), small_(small) {
    for (const auto& c : signature.captures) taken_.insert(c.name);
    for (const auto& p : signature.params) taken_.insert(p.name);
    name_variables(std::max<std::uint32_t>(root->binder, std::bit_width(root->free & ~fresh_bit)));
    scopes_.push_back({0, 0, {}});
    collect(root);
    choose_names(root->size);
  }

  DevicePrinted write_for_device(const Expr& root) {
    Printed all = write(Spans::none);
    std::vector<Expr> statements;
    for (const std::uint32_t let : scopes_[0].lets) statements.emplace_back(root, entries_[let].node);
    statements.push_back(root);
    return {all.text.substr(0, lets_end_), all.text.substr(lets_end_), std::move(statements)};
  }

  Printed write(Spans spans) {
    spans_ = spans;
    push_body(0, 0);
    while (!stack_.empty()) {
      const Item item = stack_.back();
      stack_.pop_back();
      switch (item.kind) {
        case Item::Text: out_.text += item.text; break;
        case Item::Value:
          if (entries_[item.entry].named)
            out_.text += entries_[item.entry].name;
          else
            define(item.entry);
          break;
        case Item::Let:
          entries_[item.entry].name = next_name();
          out_.text += (device_ ? "const auto " : "let ") + entries_[item.entry].name + " = ";
          define(item.entry);
          break;
        case Item::LetsEnd: lets_end_ = out_.text.size(); break;
        case Item::End:
          out_.spans.try_emplace(entries_[item.entry].node->digest, Printed::Span{item.begin, out_.text.size()});
          break;
      }
    }
    return std::move(out_);
  }

 private:
  struct Item {
    enum Kind : std::uint8_t { Text, Value, Let, LetsEnd, End } kind;
    std::string_view text;  ///< for Text; static, or owned by the signature
    std::uint32_t entry = 0;
    std::size_t begin = 0;  ///< for End: where its entry's text began
  };

  // i, j, k, i4, i5, … by binder, skipping the names of captures and parameters.
  void name_variables(std::uint32_t largest) {
    constexpr std::array<std::string_view, 3> letters{"i", "j", "k"};
    for (std::size_t next = 0; variables_.size() < largest; ++next) {
      std::string name = next < letters.size() ? std::string(letters[next]) : "i" + std::to_string(next + 1);
      if (!taken_.contains(name)) variables_.push_back(std::move(name));
    }
    taken_.insert(variables_.begin(), variables_.end());
  }

  std::string next_name() {
    std::string name;
    do name = "x" + std::to_string(++names_);
    while (taken_.contains(name));
    return name;
  }

  // The outermost scope in which everything `n` mentions is bound.
  std::uint32_t home(const Node& n, std::uint32_t scope) const {
    if (!n.free) return 0;
    while (scope != 0 && !(n.free & 1u << (scopes_[scope].binder - 1))) scope = scopes_[scope].parent;
    return scope;
  }

  std::pair<std::uint32_t, bool> enter(const Expr& e, std::uint32_t scope) {
    scope = home(*e, scope);
    if (2 * (entries_.size() + 1) > slots_.size()) grow();
    std::uint32_t& slot = slots_[place(e->digest, scope)];
    const bool is_new = slot == none;
    if (is_new) {
      slot = static_cast<std::uint32_t>(entries_.size());
      std::uint32_t inner = scope;
      if (e->op == Op::Sum) {
        inner = static_cast<std::uint32_t>(scopes_.size());
        scopes_.push_back({scope, sum_binder(*e), {}});
      }
      entries_.push_back({e.get(), scope, inner});
    }
    return {slot, is_new};
  }

  /// The slot of this entry, or the empty one where it belongs.
  std::size_t place(const Digest& digest, std::uint32_t scope) const {
    std::size_t i = digest.low ^ (scope * 0x9e3779b97f4a7c15u);
    for (;; ++i) {
      const std::uint32_t there = slots_[i & (slots_.size() - 1)];
      if (there == none || (entries_[there].scope == scope && entries_[there].node->digest == digest))
        return i & (slots_.size() - 1);
    }
  }

  void grow() {
    slots_.assign(2 * slots_.size(), none);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      slots_[place(entries_[i].node->digest, entries_[i].scope)] = static_cast<std::uint32_t>(i);
  }

  void collect(const Expr& root) {
    struct Visit {
      std::uint32_t entry;
      std::uint8_t next;
    };
    std::vector<Visit> stack{{enter(root, 0).first, 0}};
    while (!stack.empty()) {
      const std::uint32_t parent = stack.back().entry;
      const Node& n = *entries_[parent].node;
      if (stack.back().next == n.arity) {
        order_.push_back(parent);
        stack.pop_back();
        continue;
      }
      const std::uint8_t i = stack.back().next++;
      const auto [child, is_new] = enter(n.args[i], entries_[parent].inner);
      entries_[parent].args[i] = child;
      ++entries_[child].uses;
      if (is_new) stack.push_back({child, 0});
    }
  }

  /// In device code, && and || of few instructions are functions, which evaluate both sides: C++'s own would branch.
  bool is_call(const Node& n) const {
    constexpr std::uint32_t few = 24;  // tree nodes
    return device_ && (n.op == Op::And || n.op == Op::Or) && n.size <= few && !n.reads && !n.random && !n.binder;
  }

  bool bracketed(const Node& parent, std::size_t i, const Entry& child) const {
    if (child.named || is_call(*child.node)) return false;
    const int bind = row(parent.op).bind, inner = row(child.node->op).bind;
    // -(3) is a negation and -3 a literal; --x is not C++.
    if (parent.op == Op::Neg && (child.node->op == Op::Literal || child.node->op == Op::Neg)) return true;
    if (bind == 0 || inner == 0) return false;
    if (bind == prefix_bind) return inner < prefix_bind;
    return i == 0 ? inner < bind : inner <= bind;
  }

  // order_ has arguments before their users, so a name counts in the nesting of everything around it.
  void choose_names(std::uint32_t root_size) {
    for (const std::uint32_t index : order_) {
      Entry& e = entries_[index];
      const Node& n = *e.node;
      const bool infix = row(n.op).bind > 0 && row(n.op).bind < prefix_bind && !is_call(n);
      for (std::size_t i = 0; i < n.arity; ++i) {
        const Entry& a = entries_[e.args[i]];
        e.nesting = std::max(e.nesting, (a.named ? 0 : a.nesting) + (!infix || bracketed(n, i, a) ? 1 : 0));
      }
      if (n.op == Op::Sum) e.nesting = std::max(e.nesting, scopes_[e.inner].nesting + 1);
      const bool repeats = e.uses > 1 && n.size >= worth_a_name && root_size > small_;
      if (index == 0 || !(repeats || e.nesting >= deepest_nesting)) continue;
      e.named = true;
      scopes_[e.scope].lets.push_back(index);
      scopes_[e.scope].nesting = std::max(scopes_[e.scope].nesting, e.nesting);
    }
  }

  void push(std::span<const Item> items) { stack_.insert(stack_.end(), items.rbegin(), items.rend()); }

  void push_body(std::uint32_t scope, std::uint32_t entry) {
    std::vector<Item> items;
    for (const std::uint32_t let : scopes_[scope].lets) {
      items.push_back({Item::Let, {}, let});
      items.push_back({Item::Text, device_ && scope == 0 ? ";\n" : "; "});
    }
    const bool wrapped = scope != 0 && is_int(*entries_[entry].node);
    if (scope == 0)
      items.push_back({Item::LetsEnd, {}});
    else if (device_)
      items.push_back({Item::Text, wrapped ? "return Int(" : "return "});
    items.push_back({Item::Value, {}, entry});
    if (wrapped) items.push_back({Item::Text, ")"});
    push(items);
  }

  // A literal that C++ would take as an int, which wraps and divides unlike an Int; and f32(3) fits several overloads.
  bool is_int(const Node& n) const {
    return device_ && n.op == Op::Literal && n.type == Type::I32 && literal_value(n) != lowest_int;
  }
  // Next to an Int, a literal converts to an Int. If there is no Int, the first literal is written Int(3).
  bool wraps(const Node& parent, std::size_t i) const {
    const bool takes_ints = parent.op == Op::Read || draws(parent.op) || parent.op == Op::Where;
    return i == 0 && !takes_ints &&
           std::ranges::all_of(std::span(parent.args.data(), parent.arity), [&](const Expr& e) { return is_int(*e); });
  }

  void push_arguments(const Entry& e, std::string_view close) {
    std::array<Item, 2 * max_args + 3> items{};
    std::size_t used = 0;
    if (wraps(*e.node, 0)) items[used++] = {Item::Text, "Int("};
    for (std::size_t i = 0; i < e.node->arity; ++i) {
      if (i > 0) items[used++] = {Item::Text, ", "};
      items[used++] = {Item::Value, {}, e.args[i]};
      if (wraps(*e.node, i)) items[used++] = {Item::Text, ")"};
    }
    items[used++] = {Item::Text, close};
    push(std::span(items).first(used));
  }

  void push_operand(const Entry& parent, std::size_t i) {
    const std::uint32_t child = parent.args[i];
    const bool wrapped = wraps(*parent.node, i);
    if (wrapped || bracketed(*parent.node, i, entries_[child]))
      push(std::array{Item{Item::Text, wrapped ? "Int(" : "("}, Item{Item::Value, {}, child}, Item{Item::Text, ")"}});
    else
      stack_.push_back({Item::Value, {}, child});
  }

  // Writes the beginning of an entry's text and pushes the rest onto the stack, last piece first.
  void define(std::uint32_t index) {
    const Entry& e = entries_[index];
    const Node& n = *e.node;
    if (spans_ == Spans::all) stack_.push_back({Item::End, {}, index, out_.text.size()});
    const OpRow& r = row(n.op);
    if (r.bind == prefix_bind) {
      out_.text += r.spelling;
      push_operand(e, 0);
    } else if (is_call(n)) {
      out_.text += n.op == Op::And ? "both(" : "either(";
      push_arguments(e, ")");
    } else if (r.bind > 0) {
      push_operand(e, 1);
      push(std::array{Item{Item::Text, " "}, Item{Item::Text, r.spelling}, Item{Item::Text, " "}});
      push_operand(e, 0);
    } else if (n.op == Op::Sum) {
      const std::string& variable = variables_[sum_binder(n) - 1];
      const std::string count = std::to_string(sum_count(n));
      out_.text += device_ ? "sum<" + count + ">([&](Int " + variable + ") { "
                           : "sum(" + variable + ", " + count + ", ";
      stack_.push_back({Item::Text, device_ ? "; })" : ")"});
      push_body(e.inner, e.args[0]);
    } else if (n.op == Op::Read) {
      out_.text += n.bits < signature_.captures.size() ? signature_.captures[n.bits].name
                                                       : "capture" + std::to_string(n.bits);
      out_.text += device_ ? '(' : '[';
      push_arguments(e, device_ ? ")" : "]");
    } else if (draws(n.op) && device_) {
      out_.text += r.spelling;
      out_.text += '(';
      push_arguments(e, ", b, h, q, kv)");
    } else if (r.args > 0) {
      out_.text += r.spelling;
      out_.text += '(';
      push_arguments(e, ")");
    } else {
      out_.text += leaf(n);
    }
  }

  std::string leaf(const Node& n) const {
    if (n.op == Op::Literal) {
      const std::string text = print_literal(n.type, literal_value(n));
      // C++ reads the digits as a long, and negates that.
      return device_ && n.type == Type::I32 && literal_value(n) == lowest_int ? "Int(" + text + ")" : text;
    }
    if (n.op == Op::Input) return n.bits < input_count ? std::string(input_names[n.bits]) : "input?";
    if (n.op == Op::Param)
      return n.bits < signature_.params.size() ? signature_.params[n.bits].name : "param" + std::to_string(n.bits);
    // The variable of a sum under construction has no name yet.
    if (n.op == Op::Bound) return n.bits - 1 < variables_.size() ? variables_[n.bits - 1] : "unbound";
    constexpr std::array<std::string_view, 3> levels{"head", "row", "col"};
    const auto level = static_cast<std::size_t>(field_level(n));
    if (device_) return std::string(levels[level]) + "." + (*device_)[level].at(field_index(n));
    return std::string(levels[level]) + std::to_string(field_index(n));
  }

  const Signature& signature_;
  const FieldNames* device_;
  std::uint32_t small_;
  std::size_t lets_end_ = 0;
  std::set<std::string, std::less<>> taken_;
  std::vector<std::string> variables_;
  std::vector<NameScope> scopes_;
  std::vector<Entry> entries_;  // the root is the first
  std::vector<std::uint32_t> order_;
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  std::vector<std::uint32_t> slots_ = std::vector<std::uint32_t>(64,
                                                                 none);  ///< indices of entries, by digest and scope
  std::vector<Item> stack_;
  std::size_t names_ = 0;
  Spans spans_ = Spans::all;  ///< for large expressions their table costs as much as the text
  Printed out_;
};

}  // namespace

Printed print_spans(const Expr& root, const Signature& signature) {
  return Printer(root, signature).write(Printer::Spans::all);
}

DevicePrinted print_for_device(const Expr& root, const Signature& signature, const FieldNames& fields) {
  return Printer(root, signature, &fields).write_for_device(root);
}

std::string print(const Expr& root, const Signature& signature) {
  return Printer(root, signature).write(Printer::Spans::none).text;
}

std::string print_derivative(const Expr& root, const Signature& signature) {
  return Printer(root, signature, nullptr, 0).write(Printer::Spans::none).text;
}

std::string print_literal(Type type, double value) {
  if (type == Type::Bool) return value != 0 ? "true" : "false";
  if (type == Type::I32) return std::to_string(static_cast<std::int32_t>(value));
  const auto rounded = static_cast<float>(value);
  if (std::isnan(rounded)) return "nan";
  if (std::isinf(rounded)) return rounded < 0 ? "-inf" : "inf";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), rounded).ptr;
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

}  // namespace attune::ir
