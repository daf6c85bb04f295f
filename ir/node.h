// ir/node.h — an expression: pure, immutable, named by the digest of its content; verify() finds a broken rule
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/op.h"

namespace attune::ir {

/// 128 bits over (op, type, bits, the arguments' digests): stable across processes and machines.
struct Digest {
  std::uint64_t high = 0, low = 0;
  auto operator<=>(const Digest&) const = default;
  std::string hex() const;
};
struct DigestHash {
  std::size_t operator()(const Digest& d) const noexcept { return static_cast<std::size_t>(d.low); }
};
template <class T>
using DigestMap = std::unordered_map<Digest, T, DigestHash>;

/// A piece of text an expression was parsed from.
struct Text {
  std::string name;  ///< its name in messages: --score
  std::string body;
};

/// The place where a node was first written. Not part of its digest.
struct Written {
  const char* file = nullptr;  ///< a literal's storage: __FILE__
  std::uint32_t line = 0;
  std::uint32_t begin = 0, end = 0;  ///< within text->body
  std::shared_ptr<const Text> text{};
  explicit operator bool() const { return file || text; }
};

struct Node;
using Expr = std::shared_ptr<const Node>;

inline constexpr std::size_t max_args = 8;  ///< a summary of a captured tensor takes two per index: compiler/cover.h
inline constexpr std::size_t max_rank = 4;
inline constexpr std::uint32_t max_sum_count = 1024;
inline constexpr std::uint32_t max_binders = 31;  ///< the deepest nesting of sums
/// Marks variables of sums under construction, also in Node::free of nodes that mention such a variable. Distinct from
/// binders, which are 1 to max_binders.
inline constexpr std::uint32_t fresh_bit = 0x80000000u;

struct Node {
  Op op;
  Type type;
  std::uint8_t arity = 0;
  std::uint32_t bits = 0;  ///< a literal's bits, or which input, slot, binder or field
  std::array<Expr, max_args> args;
  Digest digest;

  // Derived from the arguments when the node is made.
  std::uint32_t uses = 0;    ///< bit(Input) of every input it depends on; random uses b, h, q and kv
  std::uint32_t free = 0;    ///< a bit per binder that it mentions outside that binder's sum
  std::uint32_t binder = 0;  ///< the largest binder of a sum within it
  std::uint32_t depth = 1;
  std::uint32_t size = 1;  ///< number of nodes as a tree, saturating
  bool reads = false;      ///< contains a captured read
  bool random = false;

  Written written;

  std::span<const Expr> arguments() const { return {args.data(), arity}; }
  ~Node();
};

/// The only way to make a node. Checks nothing: see verify().
Expr make(Op op, Type type, std::uint32_t bits, std::span<const Expr> args, Written written = {});

/// An operation of one to three arguments; its type follows from ops.def. A Bug when the types are wrong.
Expr op(Op op, Expr a, Written written = {});
Expr op(Op op, Expr a, Expr b, Written written = {});
Expr op(Op op, Expr a, Expr b, Expr c, Written written = {});

Expr boolean(bool value, Written written = {});
Expr integer(std::int32_t value, Written written = {});
Expr real(float value, Written written = {});
Expr zero(Type type);
Expr input(Input which, Written written = {});
Expr param(std::uint32_t slot, Type type, Written written = {});
Expr read(std::uint32_t slot, Type type, std::span<const Expr> indices, Written written = {});

/// The variable of a sum under construction; `sum` replaces it by the canonical one.
/// Every call gives a new variable, so equal sums get equal digests only through `sum`.
Expr fresh_bound(Written written = {});
/// The canonical variable of binder `id`, as finished sums use it.
Expr bound(std::uint32_t id);
/// The sum of body over variable = 0 .. count - 1.
/// Its binder is 1 + the largest binder within `body`: no variable is captured, and equal sums have equal digests.
Expr sum(const Expr& variable, std::uint32_t count, const Expr& body, Written written = {});
/// `body` with the free occurrences of a bound variable replaced by `by`: an expression without sums or bound
/// variables, or another variable that no sum around an occurrence binds.
Expr rename(const Expr& body, const Expr& variable, const Expr& by);
/// True if the variable is free in `body`.
bool mentions(const Expr& body, const Expr& variable);
inline std::uint32_t sum_count(const Node& n) { return n.bits & 0xffff; }
inline std::uint32_t sum_binder(const Node& n) { return n.bits >> 16; }

/// A value that level() hoisted.
enum class Level : std::uint8_t { Head, Row, Col };
Expr field(Level level, std::uint32_t index, Type type);
inline Level field_level(const Node& n) { return static_cast<Level>(n.bits >> 24); }
inline std::uint32_t field_index(const Node& n) { return n.bits & 0xffffff; }

bool is_literal(const Expr& e);
bool is_literal(const Expr& e, double value);
/// A literal's value; Int and Float are exact in a double, Bool is 0 or 1.
double literal_value(const Node& n);
Expr literal(Type type, double value, Written written = {});

inline bool same(const Expr& a, const Expr& b) { return a->digest == b->digest; }
inline bool uses(const Expr& e, Input which) { return (e->uses & bit(which)) != 0; }

/// Every distinct node of the roots, arguments before their users. Not recursive; visits each content once.
enum class SumBodies : std::uint8_t { Visit, Skip };
std::vector<Expr> in_order(std::span<const Expr> roots, SumBodies bodies = SumBodies::Visit);
std::vector<Expr> in_order(const Expr& root);
/// An estimate of the number of distinct nodes, for reserve(): exact for a small tree, capped for a large DAG.
std::size_t room_for(const Node& n);
/// The number of distinct nodes.
std::size_t count(const Expr& root);

/// Rebuilds `root` bottom up. `replace(node, rebuilt arguments)` gives the new node, or null to keep it (with its
/// new arguments). It sees a sum with its body already rebuilt and its binder renamed.
using Replace = std::function<Expr(const Expr& node, std::span<const Expr> args)>;
Expr rebuild(const Expr& root, const Replace& replace);
/// The node with other arguments, or the node itself if they are the same objects. Not for the body of a sum: use
/// rebuild.
Expr with_args(const Expr& node, std::span<const Expr> args);

/// Replaces leaves, looked up by digest.
Expr substitute(const Expr& root, const DigestMap<Expr>& by);

/// The captures and parameters that an expression's slots refer to.
struct Signature {
  struct Capture {
    std::string name;
    Type type = Type::F32;
    int rank = 0;
    bool operator==(const Capture&) const = default;
  };
  struct Param {
    std::string name;
    Type type = Type::F32;
    bool operator==(const Param&) const = default;
  };
  std::vector<Capture> captures;
  std::vector<Param> params;
  /// For expressions of a part of a call: the first of four parameters, which are added to the part's own b, h, q_len
  /// and kv_len.
  std::optional<std::uint32_t> whole{};
  bool operator==(const Signature&) const = default;
};

/// Checks types, arities, slots and binders, on which every pass relies.
std::optional<std::string> verify(const Expr& root, const Signature& signature);

}  // namespace attune::ir
