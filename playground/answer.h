// playground/answer.h — what a page asks about a mod, and everything that the compiler and the oracle say of it
#pragma once

#include <string>
#include <string_view>

namespace attune::playground {

/// Question and answer are JSON objects. Every member of the question is optional:
///   score, mask, prob, sink            expressions
///   lets                               ["d=kv - q", ...]
///   captures                           [{name, type: "f32", shape: [8], fill: {how, limit, seed, list}}, ...]
///   params                             ["cap=30.0", ...]
///   q_len, kv_len, q_offset, batch, heads, b, h, tile: [128, 128]
///   qk                                 {d, seed}: random q and k; without it q . k is 0
///   cells                              upper bound on cells along each axis of a map; 0: no maps
///   cuda                               {arch, d, dtype, backward}: the sources, which are long
/// The answer has what README.md of this room lists, or only `error`: code, what, why, fix, where and the whole
/// message. The same question has the same answer on every machine, except for the last bits that depend on the
/// machine's exp and log. Never throws.
std::string answer(std::string_view question);

}  // namespace attune::playground
