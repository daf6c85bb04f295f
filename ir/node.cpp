// ir/node.cpp — making nodes, their digests, walks over them without recursion, and the rules that every expression
// obeys
#include "ir/node.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <attune/error.h>

namespace attune::ir {
namespace {

std::uint32_t saturating_add(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t sum = std::uint64_t{a} + b;
  return sum > std::numeric_limits<std::uint32_t>::max() ? std::numeric_limits<std::uint32_t>::max()
                                                         : static_cast<std::uint32_t>(sum);
}

Digest digest_of(const Node& n) {
  std::array<std::uint64_t, 2 + 2 * max_args> words{};
  words[0] = (std::uint64_t{n.bits} << 32) | (std::uint64_t{n.arity} << 16) |
             (std::uint64_t{static_cast<std::uint8_t>(n.type)} << 8);
  // Hash the name, not the enumerator: a new row in ops.def must not change the digest of every expression in a cache.
  words[1] = XXH3_64bits(row(n.op).name.data(), row(n.op).name.size());
  std::size_t used = 2;
  for (const Expr& a : n.arguments()) {
    words[used++] = a->digest.high;
    words[used++] = a->digest.low;
  }
  const XXH128_hash_t h = XXH3_128bits(words.data(), used * sizeof words[0]);
  return {h.high64, h.low64};
}

std::uint32_t own_uses(const Node& n) {
  if (n.op == Op::Input) return bit(static_cast<Input>(n.bits));
  if (draws(n.op)) return bit(Input::B) | bit(Input::H) | bit(Input::Q) | bit(Input::KV);
  if (n.op != Op::Field) return 0;
  switch (field_level(n)) {
    case Level::Head: return bit(Input::B) | bit(Input::H);
    case Level::Row: return bit(Input::B) | bit(Input::H) | bit(Input::Q);
    case Level::Col: return bit(Input::B) | bit(Input::H) | bit(Input::KV);
  }
  return 0;
}

Expr typed(Op op, std::span<const Expr> args, Written written) {
  const OpRow& r = row(op);
  bool good = static_cast<int>(args.size()) == r.args && r.gives != Gives::Own;
  const std::size_t first = op == Op::Where ? 1 : 0;
  for (std::size_t i = 0; i < args.size() && good; ++i)
    good = i < first ? args[i]->type == Type::Bool
                     : takes(r.takes, args[i]->type) && args[i]->type == args[first]->type;
  if (!good) throw Bug("an operation was made of arguments it does not take: " + std::string(r.name));
  Type type = args.back()->type;
  if (r.gives == Gives::Bool) type = Type::Bool;
  if (r.gives == Gives::I32) type = Type::I32;
  if (r.gives == Gives::F32) type = Type::F32;
  return make(op, type, 0, args, std::move(written));
}

}  // namespace

std::string Digest::hex() const {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[static_cast<std::size_t>(15 - i)] = digits[(high >> (4 * i)) & 15];
    text[static_cast<std::size_t>(31 - i)] = digits[(low >> (4 * i)) & 15];
  }
  return text;
}

// A deep expression must not be freed by recursion: inner destructors hand their arguments to the outermost one on the
// thread, which frees them in a loop. Shallow nodes recurse.
Node::~Node() {
  if (depth < 64) return;
  thread_local std::vector<Expr>* pending = nullptr;
  if (pending) {
    for (Expr& a : args)
      if (a) pending->push_back(std::move(a));
    return;
  }
  std::vector<Expr> mine;
  pending = &mine;
  for (Expr& a : args)
    if (a) mine.push_back(std::move(a));
  while (!mine.empty()) {
    Expr last = std::move(mine.back());
    mine.pop_back();
    last.reset();
  }
  pending = nullptr;
}

Expr make(Op op, Type type, std::uint32_t bits, std::span<const Expr> args, Written written) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->type = type;
  node->arity = static_cast<std::uint8_t>(args.size());
  node->bits = bits;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Node& a = *args[i];
    node->args[i] = args[i];
    node->uses |= a.uses;
    node->free |= a.free;
    node->binder = std::max(node->binder, a.binder);
    node->depth = std::max(node->depth, a.depth + 1);
    node->size = saturating_add(node->size, a.size);
    node->reads |= a.reads;
    node->random |= a.random;
  }
  node->written = std::move(written);
  node->uses |= own_uses(*node);
  if (op == Op::Read) node->reads = true;
  if (draws(op)) node->random = true;
  if (op == Op::Bound) node->free |= bits & fresh_bit ? fresh_bit : 1u << (bits - 1);
  if (op == Op::Sum) {
    node->free &= ~(1u << (sum_binder(*node) - 1));
    node->binder = std::max(node->binder, sum_binder(*node));
  }
  node->digest = digest_of(*node);
  return node;
}

Expr op(Op o, Expr a, Written written) { return typed(o, std::array{std::move(a)}, std::move(written)); }
Expr op(Op o, Expr a, Expr b, Written written) {
  return typed(o, std::array{std::move(a), std::move(b)}, std::move(written));
}
Expr op(Op o, Expr a, Expr b, Expr c, Written written) {
  return typed(o, std::array{std::move(a), std::move(b), std::move(c)}, std::move(written));
}

Expr boolean(bool value, Written written) {
  return make(Op::Literal, Type::Bool, value ? 1 : 0, {}, std::move(written));
}
Expr integer(std::int32_t value, Written written) {
  return make(Op::Literal, Type::I32, static_cast<std::uint32_t>(value), {}, std::move(written));
}
Expr real(float value, Written written) {
  const std::uint32_t bits = std::isnan(value) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(value);
  return make(Op::Literal, Type::F32, bits, {}, std::move(written));
}
Expr zero(Type type) { return make(Op::Literal, type, 0, {}); }
Expr input(Input which, Written written) {
  return make(Op::Input, type_of(which), static_cast<std::uint32_t>(which), {}, std::move(written));
}
Expr param(std::uint32_t slot, Type type, Written written) {
  return make(Op::Param, type, slot, {}, std::move(written));
}
Expr read(std::uint32_t slot, Type type, std::span<const Expr> indices, Written written) {
  return make(Op::Read, type, slot, indices, std::move(written));
}

Expr fresh_bound(Written written) {
  static std::atomic<std::uint32_t> next{0};
  return make(Op::Bound, Type::I32, fresh_bit | (next.fetch_add(1) & 0x7fffffffu), {}, std::move(written));
}
Expr bound(std::uint32_t id) { return make(Op::Bound, Type::I32, id, {}); }

Expr sum(const Expr& variable, std::uint32_t count, const Expr& body, Written written) {
  std::uint32_t id = body->binder + 1;
  // While an expression is being rebuilt, an outer sum may still hold the canonical name: see `rebuild`.
  while (id <= max_binders && (body->free & ~variable->free) >> (id - 1) & 1) ++id;
  if (id > max_binders || count > max_sum_count) throw Bug("a sum beyond its limits reached the IR");
  const Expr named = rename(body, variable, bound(id));
  return make(Op::Sum, named->type, id << 16 | count, std::array{named}, std::move(written));
}

// Descends only where the variable is free, so an inner sum that happens to use the same binder keeps its own. The
// structure stays the same, and so does every binder.
Expr rename(const Expr& body, const Expr& variable, const Expr& by) {
  if (!(body->free & variable->free) || same(variable, by)) return body;
  DigestMap<Expr> made{{variable->digest, by}};
  std::vector<const Expr*> stack{&body};
  while (!stack.empty()) {
    const Expr& node = *stack.back();
    if (made.contains(node->digest)) {
      stack.pop_back();
      continue;
    }
    std::array<Expr, max_args> args;
    bool ready = true;
    for (std::size_t i = 0; i < node->arity; ++i) {
      const Expr& a = node->args[i];
      if (!(a->free & variable->free)) {
        args[i] = a;
      } else if (const auto found = made.find(a->digest); found != made.end()) {
        args[i] = found->second;
      } else {
        stack.push_back(&a);
        ready = false;
      }
    }
    if (!ready) continue;
    made.emplace(node->digest, with_args(node, {args.data(), node->arity}));
    stack.pop_back();
  }
  return made.at(body->digest);
}

bool mentions(const Expr& body, const Expr& variable) { return rename(body, variable, zero(Type::I32)) != body; }

Expr field(Level level, std::uint32_t index, Type type) {
  return make(Op::Field, type, static_cast<std::uint32_t>(level) << 24 | index, {});
}

bool is_literal(const Expr& e) { return e->op == Op::Literal; }
bool is_literal(const Expr& e, double value) { return is_literal(e) && literal_value(*e) == value; }

double literal_value(const Node& n) {
  switch (n.type) {
    case Type::Bool: return n.bits;
    case Type::I32: return static_cast<std::int32_t>(n.bits);
    case Type::F32: return std::bit_cast<float>(n.bits);
  }
  return 0;
}

Expr literal(Type type, double value, Written written) {
  switch (type) {
    case Type::Bool: return boolean(value != 0, std::move(written));
    case Type::I32: return integer(static_cast<std::int32_t>(value), std::move(written));
    case Type::F32: return real(static_cast<float>(value), std::move(written));
  }
  return {};
}

std::size_t room_for(const Node& n) { return std::min<std::size_t>(n.size, 1 << 14); }

namespace {

/// Digests, in one block of memory: the nodes of a standard library set take half of the time of large walks.
class Seen {
 public:
  /// Returns true if the digest was not yet in the set.
  bool insert(const Digest& d) {
    if (d == Digest{}) return !std::exchange(zero_, true);
    if (2 * (used_ + 1) > slots_.size()) grow();
    Digest& slot = place(d);
    if (slot == d) return false;
    slot = d, ++used_;
    return true;
  }

 private:
  /// Its slot: the digest's own, or an empty one.
  Digest& place(const Digest& d) {
    std::size_t i = d.low & (slots_.size() - 1);
    while (slots_[i] != Digest{} && slots_[i] != d) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }

  void grow() {
    std::vector<Digest> old(2 * slots_.size());
    old.swap(slots_);
    for (const Digest& d : old)
      if (d != Digest{}) place(d) = d;
  }

  std::vector<Digest> slots_ = std::vector<Digest>(64);  ///< a power of two of slots, half of them empty; 0: empty
  std::size_t used_ = 0;
  bool zero_ = false;  ///< true if the set contains the digest 0, which no slot can represent
};

}  // namespace

std::vector<Expr> in_order(std::span<const Expr> roots, SumBodies bodies) {
  struct Visit {
    const Expr* node;
    std::uint8_t next;
  };
  std::vector<Expr> order;
  std::vector<Visit> stack;
  std::size_t room = 0;
  for (const Expr& root : roots) room += root ? room_for(*root) : 0;
  Seen seen;
  order.reserve(room);
  for (const Expr& root : roots) {
    if (!root || !seen.insert(root->digest)) continue;
    stack.push_back({&root, 0});
    while (!stack.empty()) {
      Visit& top = stack.back();
      const Node& n = **top.node;
      if (top.next == n.arity || (n.op == Op::Sum && bodies == SumBodies::Skip)) {
        order.push_back(*top.node);
        stack.pop_back();
        continue;
      }
      const Expr& child = n.args[top.next++];
      if (seen.insert(child->digest)) stack.push_back({&child, 0});
    }
  }
  return order;
}

std::vector<Expr> in_order(const Expr& root) { return in_order(std::span(&root, 1)); }

std::size_t count(const Expr& root) { return in_order(root).size(); }

Expr with_args(const Expr& node, std::span<const Expr> args) {
  bool changed = false;
  for (std::size_t i = 0; i < args.size(); ++i) changed |= args[i] != node->args[i];
  return changed ? make(node->op, node->type, node->bits, args, node->written) : node;
}

namespace {

// Opens each sum: its variable becomes a fresh one while the body is rebuilt, since a body that gains or loses sums
// gets another binder afterwards and must not capture the variable of a sum around it. Recursion is as deep as sums
// nest. Fresh variables are unique, so `made` is valid in every body, and a shared sum is rebuilt once.
void rebuild(const Expr& root, const Replace& replace, DigestMap<Expr>& made) {
  for (const Expr& node : in_order(std::span(&root, 1), SumBodies::Skip)) {
    if (made.contains(node->digest)) continue;
    Expr now = node;
    if (node->op == Op::Sum) {
      const Expr variable = fresh_bound();
      const Expr body = rename(node->args[0], bound(sum_binder(*node)), variable);
      rebuild(body, replace, made);
      const Expr& rebuilt = made.at(body->digest);
      if (rebuilt != body) now = sum(variable, sum_count(*node), rebuilt, node->written);
    }
    std::array<Expr, max_args> args;
    for (std::size_t i = 0; i < now->arity; ++i)
      args[i] = now->op == Op::Sum ? now->args[i] : made.at(now->args[i]->digest);
    const std::span<const Expr> fresh(args.data(), now->arity);
    Expr next = replace(now, fresh);
    made.emplace(node->digest, next ? std::move(next) : with_args(now, fresh));
  }
}

}  // namespace

Expr rebuild(const Expr& root, const Replace& replace) {
  DigestMap<Expr> made;
  made.reserve(room_for(*root));
  rebuild(root, replace, made);
  return made.at(root->digest);
}

Expr substitute(const Expr& root, const DigestMap<Expr>& by) {
  return rebuild(root, [&](const Expr& node, std::span<const Expr>) -> Expr {
    const auto found = by.find(node->digest);
    return found == by.end() ? nullptr : found->second;
  });
}

namespace {

std::optional<std::string> leaf(const Node& n, const Signature& signature) {
  if (n.op == Op::Literal && n.type == Type::Bool && n.bits > 1) return "a Bool literal holds more than a bit";
  if (n.op == Op::Literal && n.type == Type::F32 && std::isnan(literal_value(n)) && n.bits != 0x7fc00000u)
    return "a NaN literal is not the quiet NaN";
  if (n.op == Op::Input && (n.bits >= input_count || n.type != type_of(static_cast<Input>(n.bits))))
    return "an input does not exist or has another type";
  if (n.op == Op::Param && (n.bits >= signature.params.size() || n.type != signature.params[n.bits].type))
    return "a parameter does not exist or has another type";
  if (n.op == Op::Read && (n.bits >= signature.captures.size() || n.type != signature.captures[n.bits].type ||
                           n.arity != signature.captures[n.bits].rank))
    return "a read names no capture, or has another type or rank";
  if (n.op == Op::Bound && (n.type != Type::I32 || n.bits == 0 || n.bits > max_binders))
    return "a bound variable is not a canonical Int";
  return std::nullopt;
}

std::optional<std::string> node(const Node& n, const Signature& signature) {
  const OpRow& r = row(n.op);
  if (n.op != Op::Read && n.arity != r.args) return "wrong number of arguments";
  if (auto broken = leaf(n, signature)) return broken;
  const std::size_t first = n.op == Op::Where ? 1 : 0;
  for (std::size_t i = 0; i < n.arity; ++i) {
    const Type t = n.args[i]->type;
    if (i < first ? t != Type::Bool : !takes(r.takes, t)) return "an argument has a type the operation does not take";
    if (i > first && t != n.args[first]->type) return "the arguments have different types";
  }
  if (r.gives == Gives::Arg && n.type != n.args[n.arity - 1u]->type) return "the type is not its argument's";
  if (r.gives == Gives::Bool && n.type != Type::Bool) return "the type is not Bool";
  if (r.gives == Gives::I32 && n.type != Type::I32) return "the type is not Int";
  if (r.gives == Gives::F32 && n.type != Type::F32) return "the type is not Float";
  if (n.op == Op::Sum && (sum_count(n) > max_sum_count || sum_binder(n) != n.args[0]->binder + 1))
    return "a sum is too long or its binder is not canonical";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> verify(const Expr& root, const Signature& signature) {
  if (!root) return "there is no expression";
  for (const Expr& e : in_order(root))
    if (auto broken = node(*e, signature)) return std::string(row(e->op).name) + ": " + *broken;
  if (root->free) return "a bound variable is used outside of its sum";
  return std::nullopt;
}

}  // namespace attune::ir
