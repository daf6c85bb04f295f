// tests/fuzz/random_call.cpp — a random mod with its data and a call's sizes, and an engine's results compared
#include "tests/fuzz/random_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include <attune/error.h>
#include <fmt/format.h>

#include "ir/parse.h"
#include "runtime/machine/tensor.h"
#include "tests/storable.h"

namespace attune::tests {

using ir::Expr, ir::Random, ir::Type;

namespace {

/// A shape for the fastest kernels: 16 bits, rows that TMA can read.
Shape suits_tma(std::uint64_t seed, std::uint32_t most_q, std::uint32_t most_kv) {
  Random random(seed ^ 0x90);
  constexpr std::array widths{8, 64, 72, 128};
  Shape out{.batch = 1 + random.below(2), .kv_heads = 1 + random.below(2), .seed = seed};
  out.q_heads = out.kv_heads * (1 + random.below(3));
  out.q_len = 1 + random.below(most_q);
  out.kv_len = 1 + random.below(most_kv);
  out.d = random.pick(std::span<const int>(widths));
  out.dv = out.d;
  out.dtype = random.chance(0.5) ? DType::bf16 : DType::f16;
  out.layout = random.chance(0.5) ? Layout::bhsd : Layout::bshd;
  out.q_offset = random.chance(0.3) ? static_cast<std::int32_t>(random.below(50)) : 0;
  return out;
}

/// A shape of several tiles: up to `most_pairs` pairs, among all heads.
Shape of_several_tiles(std::uint64_t seed, Random& random) {
  constexpr std::array widths{64, 64, 64, 128, 128, 16, 96, 72, 192, 256};
  constexpr std::array groups{1, 1, 2, 3, 7, 16};
  constexpr std::array lengths{1, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257};
  constexpr std::int64_t most_pairs = 250'000;
  const auto length = [&](std::uint32_t most) -> std::int64_t {
    return random.chance(0.4) ? std::int64_t{random.pick(std::span<const int>(lengths))}
                              : 1 + std::int64_t{random.below(most)};
  };
  Shape out{.batch = 1 + random.below(3), .kv_heads = 1 + random.below(2), .seed = seed};
  out.q_heads = out.kv_heads * random.pick(std::span<const int>(groups));
  out.d = out.dv = random.pick(std::span<const int>(widths));
  if (out.d == 192 && random.chance(0.5)) out.dv = 128;
  out.dtype = random.chance(0.5) ? DType::bf16 : DType::f16;
  out.layout = random.chance(0.5) ? Layout::bhsd : Layout::bshd;
  out.q_len = length(450);
  out.kv_len = random.chance(0.3) ? out.q_len : length(700);
  out.q_offset = random.chance(0.3) ? static_cast<std::int32_t>(random.below(300)) : 0;
  const bool packed = random.chance(0.3), alike = random.chance(0.6);
  for (std::uint32_t n = 1 + random.below(5); packed && n > 0; --n) {
    out.q_lens.push_back(random.chance(0.2) ? 0 : length(300));
    out.kv_lens.push_back(alike ? out.q_lens.back() : random.chance(0.2) ? 0 : length(300));
  }
  out.kv_shared = !packed && random.chance(0.1);
  const auto pairs = [&] {
    std::int64_t sum = packed ? 0 : out.batch * out.q_len * out.kv_len;
    for (std::size_t b = 0; b < out.q_lens.size(); ++b) sum += out.q_lens[b] * out.kv_lens[b];
    return sum * out.q_heads * std::max<std::int64_t>(out.d / 64, 1);
  };
  if (pairs() > most_pairs) out.batch = 1;
  if (pairs() > most_pairs) out.q_heads /= out.kv_heads, out.kv_heads = 1;
  while (pairs() > most_pairs && out.q_lens.size() > 1) out.q_lens.pop_back(), out.kv_lens.pop_back();
  while (pairs() > most_pairs && out.q_heads > 1) --out.q_heads;
  return out;
}

/// A mask as text, of those that kernels treat in different ways: bands of several kinds, lists of tiles, rows and
/// whole tiles without a pair.
std::string mask_of_tiles(Random& random) {
  const auto number = [&](int from, int to) {
    return from + static_cast<int>(random.below(static_cast<std::uint32_t>(to - from)));
  };
  switch (random.below(16)) {
    case 0: return "true";
    case 1:
    case 2:
    case 3: return "kv <= q";
    case 4: return fmt::format("kv <= q + {}", number(-150, 150));
    case 5: return fmt::format("kv <= q && q - kv < {}", number(1, 200));
    case 6: return fmt::format("kv <= q && (q - kv < {} || kv < {})", number(1, 200), number(1, 90));
    case 7: return fmt::format("kv <= q + {} * h - {}", number(1, 60), number(0, 100));
    case 8: return fmt::format("kv >= q + {}", number(-150, 150));
    case 9: return fmt::format("kv <= {} * q + {}", number(2, 5), number(-100, 100));
    case 10: return fmt::format("q / {0} == kv / {0} && kv <= q", number(1, 200));
    case 11: return fmt::format("kv / 64 % 2 == q / {} % 2", number(1, 200));
    case 12: return "(q * q) % 7 != kv % 5";
    case 13: return fmt::format("q / 128 % 2 == 1 && kv <= q % {}", number(1, 200));
    case 14: return fmt::format("kv < {} || kv <= q", number(1, 300));
    default:
      return fmt::format("kv - q < {0} && q - kv < {1} && kv % {2} != 1", number(0, 99), number(0, 99), number(1, 4));
  }
}

/// A score as text. `bias`: what reads a dense bias, or empty.
std::string score_of_tiles(Random& random, const std::string& bias) {
  if (!bias.empty()) {
    constexpr std::array scores{"s + {}", "s + {}", "10.0f * tanh((s + {}) / 10.0f)", "0.5f * s + 2.0f * {}"};
    return fmt::format(fmt::runtime(random.pick(std::span<const char* const>(scores))), bias);
  }
  constexpr std::array scores{"s",
                              "s",
                              "s + 0.03f * f32(kv - q)",
                              "s - 0.03f * f32(kv - q) * f32(h + 1)",
                              "20.0f * tanh(s / 20.0f)",
                              "s + 20.0f * f32(kv)",
                              "s * 0.5f + f32(h)",
                              "where((q + kv) % 3 == 0, log(0.0f), s)"};
  return random.pick(std::span<const char* const>(scores));
}

/// The error of s that an engine may have and dense attention does not: f32 ulps.
constexpr double ulps = 4;

/// The error of a function that an engine may have and dense attention, which calls the C library, does not: f32 ulps.
double ulps_of(ir::Op op, Functions functions) {
  using enum ir::Op;
  constexpr std::array inexact{Rsqrt, Exp, Exp2, Log, Log2, Pow, Sin, Cos, Tan, Tanh, Sigmoid, Erf};
  if (std::ranges::find(inexact, op) == inexact.end()) return 0;
  if (functions == Functions::near) return ulps;
  return op == Tanh ? 0x1p13 : op == Sin || op == Cos || op == Tan ? 0x1p5 : 2 * ulps;
}

/// If dense attention differs from the oracle by more than this, it is no measure for an engine's errors.
constexpr double hopeless = 0.05;
/// Among larger scores even the oracle's f64 loses the differences between pairs. Engines may keep them: see
/// compiler::Fold.
constexpr double enormous = 1e9;

std::uint32_t head() { return ir::bit(ir::Input::B) | ir::bit(ir::Input::H); }
std::uint32_t pair() {
  return head() | ir::bit(ir::Input::Q) | ir::bit(ir::Input::KV) | ir::bit(ir::Input::QLen) | ir::bit(ir::Input::KVLen);
}

template <class T>
T any(Random& random, std::initializer_list<T> from) {
  return random.pick(std::span(from.begin(), from.size()));
}

/// False if results become infinite or NaN when the score's term that is constant along a row is split off, as engines
/// do: (s + row[q]) / c is then inf - inf for c = 0. See docs/semantics.md, "Where engines may differ".
bool survives_fold(const Subject& subject, const RandomCall& call, const Engine& engine, const Compared& what) {
  compiler::BoundMod split = call.bound();
  const compiler::Fold& fold = subject.lowered.mod.fold;
  split.mod.score = ir::op(ir::Op::Add, fold.core, fold.row);
  const Subject by(split);
  const std::array yardsticks{&by};
  return std::isfinite(compare(subject, inputs(call.shape), std::span(&engine, 1), what, yardsticks).dense_error);
}

/// The mod as an engine may evaluate it at the ends of f32's range: denormal results are 0, and results that overflow
/// when multiplied by log2(e) are infinite, because kernels compute exponents of 2 (docs/semantics.md).
Subject at_the_ends(const RandomCall& call) {
  Subject out(call.bound());
  const auto flush = [](const Expr& e, std::span<const Expr> args) -> Expr {
    if (args.empty() || e->type != Type::F32) return nullptr;
    const Expr x = ir::with_args(e, args), size = ir::op(ir::Op::Abs, x);
    const Expr large = ir::op(ir::Op::Where, ir::op(ir::Op::Lt, ir::real(0x1.62e42ep127f), size),
                              ir::op(ir::Op::Mul, x, ir::real(std::numeric_limits<float>::infinity())), x);
    return ir::op(ir::Op::Where, ir::op(ir::Op::Lt, size, ir::real(0x1p-126f)), ir::real(0), large);
  };
  const auto each = [&](compiler::Mod& mod) {
    for (Expr* part : {&mod.score, &mod.mask, &mod.prob, &mod.sink, &mod.dscore.by, &mod.dprob.by})
      if (*part) *part = ir::rebuild(*part, flush);
    for (compiler::Derivative* derivative : {&mod.dscore, &mod.dprob, &mod.dsink})
      for (compiler::Scatter& scatter : derivative->captures) scatter.value = ir::rebuild(scatter.value, flush);
  };
  each(out.written.mod);
  each(out.lowered.mod);
  return out;
}

/// The same call measured by other dense attentions.
Verdict measured_by(std::span<const Subject> others, const RandomCall& call, const Engine& engine,
                    const Compared& what) {
  std::vector<const Subject*> yardsticks;
  for (const Subject& subject : others) yardsticks.push_back(&subject);
  return compare(Subject(call.bound()), inputs(call.shape), std::span(&engine, 1), what, yardsticks);
}

/// The mod, and copies of it whose functions have errors.
std::vector<Subject> with_shaken(std::uint64_t seed, int shakes, const RandomCall& call, Functions functions) {
  std::vector<Subject> out{Subject(call.bound())};
  for (int shake = 1; shake <= shakes; ++shake)
    out.emplace_back(call.shaken(seed + static_cast<std::uint64_t>(shake), functions));
  return out;
}

}  // namespace

RandomCall::RandomCall(std::uint64_t seed) : random_(seed ^ 0xe26) {
  grammar_ = ir::Grammar::ordinary();
  hostile_ = grammar_.hostile = seed % 4 == 3;
  grammar_.denormals = false;
  grammar_.max_nodes = random_.chance(0.2) ? 50 : 14;
  data();
  bound_.mod.score = score(seed);
  bound_.mod.mask = random_.chance(0.5) ? ir::boolean(true) : expr(seed ^ 0x3a5c, Type::Bool, pair());
  bound_.mod.prob = random_.chance(0.7) ? ir::input(ir::Input::P) : prob(seed ^ 0x960b);
  if (random_.chance(0.3)) bound_.mod.sink = expr(seed ^ 0x51c, Type::F32, head());
  shape = random_shape(seed);
}

RandomCall RandomCall::of_tiles(std::uint64_t seed) {
  RandomCall out(4 * seed);
  Random random(seed ^ 0x7115);
  out.shape = of_several_tiles(seed, random);
  compiler::Mod& mod = out.bound_.mod;
  if (!random.chance(0.1)) mod.prob = ir::input(ir::Input::P);
  const std::string bias = random.chance(0.25) ? out.add_dense_bias(random) : "";
  const ir::Signature signature = mod.signature();
  const auto parsed = [&](const std::string& text, Type type) {
    return ir::parse(text, {.expected = type, .signature = &signature});
  };
  if (random.chance(0.8)) mod.mask = parsed(mask_of_tiles(random), Type::Bool);
  if (!bias.empty() || random.chance(0.7)) mod.score = parsed(score_of_tiles(random, bias), Type::F32);
  return out;
}

std::string RandomCall::add_dense_bias(Random& random) {
  std::vector<std::int64_t> extents;
  std::string indices;
  const std::int64_t entries = shape.entries();
  std::int64_t q_len = shape.q_len, kv_len = shape.kv_len;
  for (const std::int64_t n : shape.q_lens) q_len = std::max(q_len, n);
  for (const std::int64_t n : shape.kv_lens) kv_len = std::max(kv_len, n);
  const auto add = [&](const char* index, std::int64_t extent) {
    indices += fmt::format("{}{}", indices.empty() ? "" : ", ", index);
    extents.push_back(extent);
  };
  if (random.chance(0.5)) add("b", entries);
  if (random.chance(0.5)) add("h", shape.q_heads);
  add("q", shape.q_offset + q_len + (random.chance(0.3) ? random.below(20) : 0));
  add("kv", kv_len + (random.chance(0.3) ? random.below(20) : 0));
  const DType dtype = any(random, {DType::bf16, DType::f16, DType::f32});
  const Placed placed = place(dtype, extents, any(random, {Layout::bhsd, Layout::bhsd, Layout::padded}));
  each_element(placed.tensor,
               [&](std::int64_t at) { runtime::store(placed.tensor, at, storable(dtype, random.between(-2, 2))); });
  memory_.push_back(placed.memory);
  bound_.slots.captures.push_back(placed.tensor);
  bound_.mod.captures.push_back({"dense", dtype, static_cast<int>(extents.size())});
  return fmt::format("dense[{}]", indices);
}

compiler::BoundMod RandomCall::shaken(std::uint64_t seed, Functions functions) const {
  Random random(seed);
  compiler::BoundMod out = bound_;
  const auto off = [&](double plus, double by) {
    const double least = (random.chance(0.5) ? 1 : -1) * (0.5 + random.unit() / 2) * by * 0x1p-24;
    const auto slot = static_cast<std::uint32_t>(out.slots.params.size());
    const std::string name = "off" + std::to_string(slot);
    out.slots.params.push_back(std::make_shared<detail::ParamCell>(detail::ParamCell{name, true, plus + least}));
    out.mod.params.push_back({name, Type::F32});
    return ir::param(slot, Type::F32);
  };
  const Expr of_s = off(0, ulps);
  // A few sets of tensors for each size, used in turn.
  std::map<double, std::array<Expr, 5>> factors;
  std::size_t next = 0;
  const auto factor = [&](double by) {
    const auto [found, fresh] = factors.try_emplace(by);
    if (fresh) std::ranges::generate(found->second, [&] { return off(1, by); });
    return found->second[next++ % found->second.size()];
  };
  const auto shake = [&](const Expr& e, std::span<const Expr> args) -> Expr {
    const bool s = e->op == ir::Op::Input && static_cast<ir::Input>(e->bits) == ir::Input::S;
    const double by = s ? ulps : ulps_of(e->op, functions);
    if (by == 0) return nullptr;
    const Expr times = ir::op(ir::Op::Mul, args.empty() ? e : ir::with_args(e, args), factor(by));
    return s ? ir::op(ir::Op::Add, times, of_s) : times;
  };
  for (Expr* part : {&out.mod.score, &out.mod.mask, &out.mod.prob, &out.mod.sink})
    if (*part) *part = ir::rebuild(*part, shake);
  return out;
}

Expr RandomCall::expr(std::uint64_t seed, Type type, std::uint32_t inputs) {
  ir::Grammar g = grammar_;
  g.inputs = inputs;
  g.random = inputs != head();
  return ir::random_expr(seed, type, g);
}

Expr RandomCall::score(std::uint64_t seed) {
  const Expr s = ir::input(ir::Input::S), e = expr(seed, Type::F32, pair() | ir::bit(ir::Input::S));
  if (random_.chance(0.4)) return e;
  return random_.chance(0.5) ? ir::op(ir::Op::Add, s, e) : ir::op(ir::Op::Where, expr(~seed, Type::Bool, pair()), s, e);
}

Expr RandomCall::prob(std::uint64_t seed) {
  const Expr p = ir::input(ir::Input::P), e = expr(seed, Type::F32, pair() | ir::bit(ir::Input::P));
  return random_.chance(0.5) ? e : ir::op(ir::Op::Mul, p, e);
}

void RandomCall::data() {
  using enum DType;
  for (const auto& capture : grammar_.signature.captures) {
    const DType dtype = capture.type == Type::Bool  ? boolean
                        : capture.type == Type::I32 ? any(random_, {i32, i32, i64, i16, i8, u8})
                                                    : any(random_, {f32, f32, f16, bf16, f64});
    std::vector<std::int64_t> extents;
    for (int i = 0; i < capture.rank; ++i) extents.push_back(1 + random_.below(capture.rank > 2 ? 5 : 30));
    const Layout layout = any(
        random_, {Layout::bhsd, Layout::bhsd, Layout::reversed, Layout::padded, Layout::spread, Layout::columns});
    const Placed placed = place(dtype, extents, layout);
    each_element(placed.tensor, [&](std::int64_t at) {
      const double value = ir::random_value(random_, capture.type, hostile_, false);
      runtime::store(placed.tensor, at, storable(dtype, value));
    });
    memory_.push_back(placed.memory);
    bound_.slots.captures.push_back(placed.tensor);
    bound_.mod.captures.push_back({capture.name, dtype, capture.rank});
  }
  for (const auto& param : grammar_.signature.params) {
    const double value = ir::random_value(random_, param.type, hostile_, false);
    bound_.slots.params.push_back(
        std::make_shared<detail::ParamCell>(detail::ParamCell{param.name, param.type == Type::F32, value}));
    bound_.mod.params.push_back({param.name, param.type});
  }
}

Shape RandomCall::random_shape(std::uint64_t seed) {
  const auto length = [&](std::uint32_t longest) -> std::int64_t {
    return 1 + random_.below(random_.chance(0.25) ? longest : 12);
  };
  Shape out{.batch = 1 + random_.below(2), .kv_heads = 1 + random_.below(2), .seed = seed};
  out.q_heads = out.kv_heads * (1 + random_.below(3));
  out.q_len = length(80);
  out.kv_len = length(200);
  out.d = 1 + random_.below(20);
  out.dv = 1 + random_.below(20);
  out.dtype = any(random_, {DType::f32, DType::f32, DType::bf16, DType::f16});
  out.layout = any(random_, {Layout::bhsd, Layout::bhsd, Layout::bhsd, Layout::bshd, Layout::columns, Layout::reversed,
                             Layout::padded, Layout::spread, Layout::one_head});
  out.kv_shared = random_.chance(0.1);
  out.q_offset = random_.chance(0.3) ? static_cast<std::int32_t>(random_.below(50)) : 0;
  if (random_.chance(0.15))
    for (int i = 0; i < 3; ++i) {
      out.q_lens.push_back(random_.below(20));
      out.kv_lens.push_back(random_.below(20));
    }
  if (out.packed()) out.kv_shared = false;
  return out;
}

RandomCall device_call(std::uint64_t seed, std::uint32_t most_q, std::uint32_t most_kv) {
  RandomCall call(seed);
  if (seed % 2 == 0 && !call.hostile()) call.shape = suits_tma(seed, most_q, most_kv);
  // Hostile mods call functions at arguments that the fast versions do not support: sin of a large number.
  if (call.hostile()) call.shape.dtype = DType::f32;
  return call;
}

Functions device_functions(const RandomCall& call) {
  return call.shape.dtype == DType::f32 ? Functions::near : Functions::fast;
}

Shape per_entry(Shape shape, std::uint64_t seed) {
  Random random(seed ^ 0xa9a);
  if (shape.packed()) {
    shape.kv_lens.clear();
    shape.kv_shared = false;
  }
  // Entries with several tiles of queries next to entries with few queries, which are computed in another way.
  if (!shape.packed() && random.chance(0.2)) {
    shape.q_lens = {random.below(8), 20 + random.below(60), 1};
    shape.kv_shared = false;
  }
  // One head's memory is one page's, and rows of it that no entry has would be rows that all have.
  if (shape.layout != Layout::one_head && random.chance(0.4))
    shape.page = any<std::int64_t>(random, {1, 2, 3, 7, 16, 48, 64, 256});
  if (shape.page) shape.kv_shared = false;
  shape.holes = shape.page && random.chance(0.3);
  shape.kv_offset = random.chance(0.4) ? static_cast<std::int32_t>(random.below(300)) : 0;
  shape.fixed_split_size = random.chance(0.2) ? 128 : 0;
  if (random.chance(0.7))
    for (std::int64_t b = 0; b < shape.entries(); ++b)
      shape.used.push_back(random.below(static_cast<std::uint32_t>(shape.kv_len) + 1));
  if (random.chance(0.5)) {
    shape.q_offset = 0;
    for (std::int64_t b = 0; b < shape.entries(); ++b)
      shape.q_offsets.push_back(static_cast<std::int32_t>(random.below(300)));
  }
  return shape;
}

Judged judge(std::uint64_t seed, const RandomCall& call, const Engine& engine, const Compared& what,
             Functions functions) {
  const auto is_too_inexact = [](const Verdict& v) { return !(v.dense_error < hopeless) || v.largest > enormous; };
  std::vector<Subject> subjects;
  try {
    subjects = with_shaken(seed * 3, 3, call, functions);
  } catch (const Error&) {
    return {.refused = true, .wrong = {}};
  }
  Verdict verdict = measured_by(subjects, call, engine, what);
  if (is_too_inexact(verdict)) return {.hopeless = true, .wrong = {}};
  if (verdict.wrong.empty()) return {};
  if (!survives_fold(subjects[0], call, engine, what)) return {.hopeless = true, .wrong = {}};
  // If a score is next to a step, such as one of round, all three may be on the same side of it.
  verdict = measured_by(with_shaken(seed * 64, 32, call, functions), call, engine, what);
  if (is_too_inexact(verdict)) return {.hopeless = true, .wrong = {}};
  if (verdict.wrong.empty()) return {};
  const Subject ends = at_the_ends(call);
  const Verdict other = measured_by(std::span(&ends, 1), call, engine, what);
  if (is_too_inexact(other)) return {.hopeless = true, .wrong = {}};
  return {.wrong = other.wrong.empty() ? "" : fmt::format("seed {}\n{}", seed, verdict.wrong)};
}

void Tally::add(const Judged& one) {
  ++cases;
  hopeless += one.hopeless;
  refused += one.refused;
  wrong += one.wrong;
}

std::string Tally::too_few() const {
  if (hopeless <= cases / 3 && refused <= cases / 20) return {};
  return fmt::format("{} hopeless and {} refused of {}", hopeless, refused, cases);
}

}  // namespace attune::tests
