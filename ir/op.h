// ir/op.h — enum Op and the look-ups made from ops.def
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace attune::ir {

enum class Type : std::uint8_t { Bool, I32, F32 };

enum class Op : std::uint8_t {
#define ATTUNE_OP(name, spelling, bind, args, takes, gives) name,
#include "ir/ops.def"
#undef ATTUNE_OP
};

enum class Takes : std::uint8_t { None, Bool, Int, Float, Num, Any };
enum class Gives : std::uint8_t { Bool, I32, F32, Arg, Own };

/// One row of ops.def.
struct OpRow {
  std::string_view name, spelling;
  int bind, args;
  Takes takes;
  Gives gives;
};

inline constexpr std::array op_rows{
#define ATTUNE_OP(name, spelling, bind, args, takes, gives) \
  OpRow{#name, spelling, bind, args, Takes::takes, Gives::gives},
#include "ir/ops.def"
#undef ATTUNE_OP
};

constexpr const OpRow& row(Op op) { return op_rows[static_cast<std::size_t>(op)]; }

constexpr bool takes(Takes takes, Type type) {
  switch (takes) {
    case Takes::None: return false;
    case Takes::Bool: return type == Type::Bool;
    case Takes::Int: return type == Type::I32;
    case Takes::Float: return type == Type::F32;
    case Takes::Num: return type != Type::Bool;
    case Takes::Any: return true;
  }
  return false;
}

/// The op written `name(…)`, if there is one.
std::optional<Op> op_named(std::string_view name);
/// The op written by a sign before its only argument, or between its arguments.
std::optional<Op> op_signed(std::string_view sign, std::size_t arguments);

/// "Bool", "Int" or "Float": the words of the language.
std::string_view name_of(Type type);

/// The inputs of expressions: first those that users may read, then those that only attune and engines use.
/// Origin: see Fold in compiler/mod.h. QBegin to KVEnd: a tile of pairs, half open, see compiler/cover.h.
enum class Input : std::uint8_t { S, P, B, H, Q, KV, QLen, KVLen, Origin, QBegin, QEnd, KVBegin, KVEnd };
inline constexpr int user_input_count = 8;
inline constexpr int input_count = 13;
inline constexpr std::array<std::string_view, input_count> input_names{
    "s", "p", "b", "h", "q", "kv", "q_len", "kv_len", "origin", "q_begin", "q_end", "kv_begin", "kv_end"};
constexpr std::uint32_t bit(Input input) { return 1u << static_cast<unsigned>(input); }
constexpr Type type_of(Input input) { return input == Input::S || input == Input::P ? Type::F32 : Type::I32; }

/// True for functions that give a whole number.
constexpr bool rounds(Op op) { return op == Op::Floor || op == Op::Ceil || op == Op::Round || op == Op::Trunc; }
/// True for functions of Floats whose results are rounded: sqrt, exp, sin and others.
constexpr bool is_inexact(Op op) { return row(op).takes == Takes::Float && op != Op::Custom && !rounds(op); }

/// True for what differs for every pair: random numbers and decisions.
constexpr bool draws(Op op) { return op == Op::Random || op == Op::Kept; }

/// True for == != < <= > >=.
constexpr bool compares(Op op) { return op >= Op::Eq && op <= Op::Ge; }

}  // namespace attune::ir
