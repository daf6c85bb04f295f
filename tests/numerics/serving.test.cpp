// tests/numerics/serving.test.cpp — lengths, positions, page tables and splits of keys, on every engine that takes them
#include <attune/attune.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/golden.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/rich.h"
#include "tests/refusal.h"
#include "tests/sanitizers.h"

using namespace attune;
using compiler::Problem;
using tests::Compared, tests::Engine, tests::Inputs, tests::Layout, tests::Placed, tests::Shape, tests::Subject;

namespace {

const Device host = Device::cpu();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

const Attention plain{};
const Attention causal{.mask = mods::causal()};
const Attention rich = tests::rich();
const Attention windowed{.mask = mods::sliding_window(20)};
/// Takes two passes over the keys, and no shortcut for decode.
const Attention squared{.mask = mods::causal(), .prob = [](Float p, At at) { return p * p + 0 * at.q; }};

void agree(const Attention& attention, const Shape& shape) {
  const std::string wrong = tests::disagreement(attention, shape, {.backward = false});
  INFO(wrong);
  CHECK(wrong.empty());
}

/// Engines that take such calls; under a sanitizer the last of them.
std::vector<const Engine*> engines() {
  std::vector<const Engine*> out;
  for (const Engine& engine : tests::engines())
    if (engine.per_entry) out.push_back(&engine);
  if (tests::sanitized && out.size() > 1) out.erase(out.begin(), out.end() - 1);
  return out;
}

const Engine oracle_engine{.name = "oracle",
                           .forward =
                               [](const Subject& subject, const Forward& call, const Problem& problem) {
                                 runtime::oracle_forward(runtime::call_of(subject.written, call, problem));
                               },
                           .backward = {}};

struct Results {
  Placed o, lse, max;
  bool operator==(const Results& other) const {
    for (const auto& [a, b] : {std::pair{&o, &other.o}, {&lse, &other.lse}, {&max, &other.max}}) {
      const auto x = tests::elements(a->tensor), y = tests::elements(b->tensor);
      // Bits, not values: -0 is not 0.
      if (x.size() != y.size() || std::memcmp(x.data(), y.data(), x.size() * sizeof x[0]) != 0) return false;
    }
    return true;
  }
};

Results results_for(const Inputs& in, DType type) {
  return {tests::place(type, in.shape_of_o()), tests::place(DType::f32, in.shape_of_lse()),
          tests::place(DType::f32, in.shape_of_lse())};
}

Results run(const Engine& engine, const Subject& subject, const Inputs& in, Forward call) {
  const Results out = results_for(in, in.shape.dtype);
  call.o = out.o.tensor;
  call.lse = out.lse.tensor;
  call.max = out.max.tensor;
  engine.forward(subject, call, compiler::check(subject.lowered, call, subject.scale));
  return out;
}

/// The same keys in a dense tensor of the same layout: zeros where there is no page.
Placed gathered(const Inputs& in, const Tensor& pool, std::int64_t width) {
  const Shape& shape = in.shape;
  Forward call = in.forward();
  const Results unused = results_for(in, DType::f32);
  call.o = unused.o.tensor;
  const Problem problem = compiler::check(Subject(plain).lowered, call, {});
  Placed out = tests::place(shape.dtype, {shape.entries(), shape.kv_heads, shape.kv_len, width}, shape.layout);
  tests::each_element(out.tensor, [&](std::int64_t at) { runtime::store(out.tensor, at, not_a_number); });
  for (std::int64_t b = 0; b < shape.entries(); ++b)
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const runtime::Sequence seq = runtime::sequence(problem, b);
      const runtime::KeyRows rows(problem, call.page_table, seq, h);
      for (std::int64_t i = 0; i < seq.kv_len; ++i) {
        const auto one = rows.range(pool, i, i + 1);
        for (std::int64_t j = 0; j < width; ++j)
          runtime::store(out.tensor, runtime::offset(out.tensor, b, h, i, j),
                         one.there ? runtime::load(pool, one.at.origin + j * one.at.column) : 0.0);
      }
    }
  return out;
}

std::vector<Shape> per_entry() {
  std::vector<Shape> out;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t q_len : {1, 3, 8, 9, 70}) {
      Shape shape{.batch = 4,
                  .q_heads = 6,
                  .kv_heads = 2,
                  .q_len = q_len,
                  .kv_len = 300,
                  .d = 16,
                  .dv = 24,
                  .dtype = dtype,
                  .used = {300, 0, 1, 131},
                  .q_offsets = {299, 0, 500, 100}};
      out.push_back(shape);
      shape.q_offsets = {};
      shape.kv_offset = 77;
      shape.q_offset = 200;
      shape.layout = Layout::bshd;
      out.push_back(shape);
      shape.layout = Layout::columns;
      out.push_back(shape);
      shape.layout = Layout::reversed;
      shape.kv_shared = true;
      out.push_back(shape);
      shape = {.q_heads = 4,
               .kv_heads = 2,
               .kv_len = 260,
               .d = 16,
               .dv = 16,
               .dtype = dtype,
               .q_lens = {1, q_len, 0, 5},
               .used = {260, 129, 7, 0},
               .q_offsets = {250, 129 - 1, 7, 3}};
      out.push_back(shape);
      shape.used = {};
      out.push_back(shape);
    }
  return out;
}

std::vector<Shape> paged() {
  std::vector<Shape> out;
  std::uint64_t seed = 0;
  for (const std::int64_t page : {1, 2, 5, 8, 16, 33, 64, 128, 256})
    for (const std::int64_t q_len : {1, 6, 40})
      for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::padded, Layout::columns}) {
        const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[seed % 3];
        out.push_back({.batch = 3,
                       .q_heads = 4,
                       .kv_heads = 2,
                       .q_len = q_len,
                       .kv_len = 290,
                       .d = 16,
                       .dv = 32,
                       .dtype = dtype,
                       .layout = layout,
                       .used = {290, 17, 128},
                       .q_offsets = {289, 16, 140},
                       .page = page,
                       .holes = seed % 4 == 3,
                       .seed = ++seed});
      }
  return out;
}

}  // namespace

TEST_CASE("entries of their own lengths and positions are as the oracle has them", "[engine][serving]") {
  std::size_t next = 0;
  for (const Shape& shape : per_entry())
    for (const Attention* attention : {&plain, &causal, &rich, &windowed})
      if (tests::runs_case(next++, 5)) agree(*attention, shape);
  for (const Shape& shape : per_entry())
    if (shape.dtype == DType::f32 && tests::runs_case(next++, 5)) agree(squared, shape);
}

TEST_CASE("a paged KV cache is as the oracle has them", "[engine][serving]") {
  std::size_t next = 0;
  for (const Shape& shape : paged())
    if (tests::runs_case(next++, 5)) agree(shape.seed % 2 ? rich : causal, shape);
  Shape mixed{.q_heads = 4,
              .kv_heads = 2,
              .kv_len = 200,
              .d = 8,
              .dv = 8,
              .q_lens = {1, 30, 2, 100},
              .used = {200, 30, 2, 150},
              .q_offsets = {199, 0, 0, 50},
              .page = 16};
  for (const Attention* attention : {&plain, &causal, &rich, &squared})
    if (tests::runs_case(next++, 5)) agree(*attention, mixed);
  mixed.used = {};
  mixed.kv_offset = 500;
  agree(rich, mixed);
}

/// Heads of 576 columns, of which values are the first 512.
std::vector<Shape> mla() {
  std::vector<Shape> out;
  for (const std::int64_t heads : {1, 5, 16, 24})
    for (const std::int64_t page : {0, 1, 16, 64}) {
      const std::size_t nth = out.size();
      out.push_back({.batch = 3,
                     .q_heads = heads,
                     .kv_heads = 1,
                     .q_len = heads == 24 ? 2 : 1,
                     .kv_len = 150,
                     .d = 576,
                     .dv = 512,
                     .dtype = nth % 4 == 3   ? DType::f16
                              : nth % 4 == 1 ? DType::f32
                                             : DType::bf16,
                     .layout = nth % 3 == 1 ? Layout::bshd : Layout::bhsd,
                     .q_offset = 148,
                     .used = page || nth % 2 ? std::vector<std::int64_t>{150, 0, 67} : std::vector<std::int64_t>{},
                     .page = page,
                     .holes = nth % 5 == 2,
                     .mla = true,
                     .seed = nth + 1});
    }
  return out;
}

TEST_CASE("MLA is as the oracle has them: values are the first columns of the keys", "[engine][serving]") {
  std::size_t next = 0;
  for (const Shape& shape : mla())
    for (const Attention* attention : {&plain, &causal, &rich})
      if (tests::runs_case(next++, 7)) agree(*attention, shape);
}

TEST_CASE("MLA gives what the same values in memory of their own give", "[engine][serving]") {
  for (const Engine* engine : engines())
    for (Shape shape : mla()) {
      if (engine->widest < shape.d || shape.layout != Layout::bhsd) continue;
      const Inputs in = tests::inputs(shape);
      Inputs apart = in;
      const Tensor& v = in.v.tensor;
      apart.v = tests::place(v.dtype, std::span(v.shape).first(static_cast<std::size_t>(v.rank)));
      std::vector<std::int64_t> from;
      tests::each_element(v, [&](std::int64_t at) { from.push_back(at); });
      std::size_t nth = 0;
      tests::each_element(apart.v.tensor,
                          [&](std::int64_t at) { runtime::store(apart.v.tensor, at, runtime::load(v, from[nth++])); });
      INFO(engine->name << ": " << shape.describe());
      CHECK(run(*engine, Subject(rich), in, in.forward()) == run(*engine, Subject(rich), apart, apart.forward()));
    }
}

TEST_CASE("keys and values of e4m3 are as the oracle has them, beside queries of any type", "[engine][serving]") {
  std::size_t number = 0;
  for (Shape shape : per_entry()) {
    shape.fp8_kv = true;
    for (const Attention* attention : {&plain, &rich})
      if (tests::runs_case(number++, 7)) agree(*attention, shape);
  }
  for (Shape shape : paged()) {
    shape.fp8_kv = true;
    if (tests::runs_case(number++, 7)) agree(shape.seed % 2 ? causal : rich, shape);
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t q_len : {1, 3, 70})
      for (const std::int64_t d : {8, 40, 128}) {
        if (!tests::runs_case(number++, 7)) continue;
        Shape shape{.q_len = q_len, .kv_len = 333, .d = d, .dv = d, .dtype = dtype, .seed = 7};
        shape.fp8_kv = true;
        agree(rich, shape);
      }
}

TEST_CASE("every e4m3 is read as it is, also NaN", "[engine][serving]") {
  // A key for each of them; a mask keeps one.
  for (const Engine* engine : engines())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Shape shape{
          .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 256, .kv_len = 256, .d = 16, .dv = 16, .dtype = dtype};
      shape.fp8_kv = true;
      const Inputs in = tests::inputs(shape);
      for (std::int64_t i = 0; i < 256; ++i)
        for (std::int64_t j = 0; j < 16; ++j)
          *(static_cast<std::uint8_t*>(in.v.tensor.data) +
            runtime::offset(in.v.tensor, 0, 0, i, j)) = static_cast<std::uint8_t>(i);
      const Results out = run(*engine, Subject({.mask = [](At at) { return at.q == at.kv; }}), in, in.forward());
      const auto o = tests::elements(out.o.tensor);
      for (std::size_t i = 0; i < 256; ++i) {
        const double value = runtime::load(in.v.tensor, static_cast<std::int64_t>(16 * i));
        INFO(engine->name << ", " << name_of(dtype) << ", bits " << i << ", " << value << " and " << o[16 * i]);
        CHECK((o[16 * i] == value || (std::isnan(value) && std::isnan(o[16 * i]))));
      }
    }
}

TEST_CASE("a paged KV cache gives the same bits as the same keys in a row", "[engine][serving]") {
  std::size_t next = 0;
  for (const Engine* engine : engines())
    for (const Shape& shape : paged()) {
      if (!tests::runs_case(next++, 5)) continue;
      // With one row a page, a page's columns are adjacent, so it can be read in place; other pages cannot.
      if (shape.page == 1 && shape.layout == Layout::columns) continue;
      const Inputs in = tests::inputs(shape);
      const Placed k = gathered(in, in.k.tensor, shape.d), v = gathered(in, in.v.tensor, shape.dv);
      Forward dense = in.forward();
      dense.page_table = {};
      dense.k = k.tensor;
      dense.v = v.tensor;
      for (const Attention* attention : {&plain, &rich, &windowed}) {
        const Subject subject(*attention);
        INFO(engine->name << ", " << shape.describe());
        CHECK(run(*engine, subject, in, in.forward()) == run(*engine, subject, in, dense));
      }
    }
}

TEST_CASE("pages of keys that no query needs may be gone", "[engine][serving]") {
  for (const std::int64_t q_len : {1, 40})
    for (const Engine* engine : engines()) {
      Shape shape{.batch = 2,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .q_len = q_len,
                  .kv_len = 400,
                  .d = 16,
                  .dv = 16,
                  .used = {400, 250},
                  .page = 16};
      shape.q_offsets = {static_cast<std::int32_t>(400 - q_len), static_cast<std::int32_t>(250 - q_len)};
      const Inputs in = tests::inputs(shape);
      const Subject subject(windowed);
      const Results whole = run(*engine, subject, in, in.forward());
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t first = shape.q_offsets[static_cast<std::size_t>(b)] - 20;
        for (std::int64_t i = 0; (i + 1) * 16 <= first; ++i)
          runtime::store(in.page_table.tensor, runtime::offset(in.page_table.tensor, b, i), -1);
      }
      INFO(engine->name);
      CHECK(run(*engine, subject, in, in.forward()) == whole);
    }
}

TEST_CASE("drafts see what is known, and of each other what the tree says", "[engine][serving]") {
  constexpr std::int64_t drafts = 5;
  const auto sees = Device::cpu().array<bool>({3, drafts, drafts}, "sees");
  for (std::int64_t i = 0; i < sees.tensor().size(); ++i)
    sees.data()[i] = i / drafts % drafts == i % drafts || i * 7 % 11 < 4;
  const Shape shape{.batch = 3,
                    .q_heads = 4,
                    .kv_heads = 2,
                    .q_len = drafts,
                    .kv_len = 290,
                    .d = 16,
                    .dv = 16,
                    .used = {290, 17, 128},
                    .q_offsets = {285, 12, 123},
                    .page = 16};
  agree({.mask = mods::tree(sees)}, shape);
  // The same as a mask of every pair.
  const auto keep = Device::cpu().array<bool>({3, 1, 290, 290}, "keep");
  for (std::int64_t b = 0; b < 3; ++b)
    for (std::int64_t q = 0; q < 290; ++q)
      for (std::int64_t kv = 0; kv < 290; ++kv) {
        const std::int64_t known = shape.used[static_cast<std::size_t>(b)] - drafts, row = q - known;
        const bool is_draft = row >= 0 && row < drafts && kv >= known && kv - known < drafts;
        keep.data()[(b * 290 + q) * 290 + kv] = kv < known ||
                                                (is_draft && sees.data()[(b * drafts + row) * drafts + kv - known]);
      }
  const Attention of_pairs{.mask = [=](At at) { return keep(at.batch, 0, at.q, at.kv); }};
  agree(of_pairs, shape);
  const Inputs in = tests::inputs(shape);
  CHECK(run(oracle_engine, Subject({.mask = mods::tree(sees)}), in, in.forward()) ==
        run(oracle_engine, Subject(of_pairs), in, in.forward()));
}

TEST_CASE("with a fixed split size an entry's bits do not depend on its neighbours", "[engine][serving]") {
  constexpr std::array<std::int64_t, 6> lengths{1, 90, 8, 9, 300, 3};
  for (const Engine* engine : engines())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Attention* attention : {&causal, &rich}) {
        const Shape shape{.q_heads = 4,
                          .kv_heads = 2,
                          .kv_len = 700,
                          .d = 16,
                          .dv = 16,
                          .dtype = dtype,
                          .q_lens = {lengths.begin(), lengths.end()},
                          .used = {700, 90, 512, 600, 333, 3},
                          .q_offsets = {699, 0, 504, 591, 33, 0},
                          .page = 16,
                          .fixed_split_size = 128};
        if (!engine->why_not(shape).empty()) continue;
        const Inputs in = tests::inputs(shape);
        Subject subject(*attention);
        const Results together = run(*engine, subject, in, in.forward());
        std::int64_t start = 0;
        for (std::size_t b = 0; b < lengths.size(); start += lengths[b++]) {
          // Entries of no query before it, so that it keeps its number.
          std::vector<std::int64_t> alone(b + 1);
          alone[b] = lengths[b];
          Inputs one = in;
          one.shape.q_lens = alone;
          one.shape.used.resize(b + 1);
          one.shape.q_offsets.resize(b + 1);
          Forward call = in.forward();
          const auto rows = [&](Tensor t, std::size_t dim) {
            t.data = static_cast<char*>(t.data) + start * t.strides[dim] * static_cast<std::int64_t>(size_of(t.dtype));
            t.shape[dim] = lengths[b];
            return t;
          };
          std::vector<std::int32_t> starts(b + 2);
          starts.back() = static_cast<std::int32_t>(lengths[b]);
          call.q = rows(in.q.tensor, 0);
          call.cu_seqlens_q = Tensor(starts.data(), DType::i32, {static_cast<std::int64_t>(starts.size())});
          for (Tensor* t : {&call.kv_len, &call.q_offsets, &call.page_table})
            t->shape[0] = static_cast<std::int64_t>(b) + 1;
          const Results own = run(*engine, subject, one, call);
          INFO(engine->name << ", entry " << b);
          CHECK(tests::elements(own.o.tensor) == tests::elements(rows(together.o.tensor, 0)));
          CHECK(tests::elements(own.lse.tensor) == tests::elements(rows(together.lse.tensor, 1)));
        }
      }
}

namespace {

/// Positions [first, last) of [B, H, S, D].
Tensor part_of(Tensor t, std::int64_t first, std::int64_t last) {
  t.data = static_cast<char*>(t.data) + first * t.strides[2] * static_cast<std::int64_t>(size_of(t.dtype));
  t.shape[2] = last - first;
  return t;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    off += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return off == 0 ? 0 : std::sqrt(off / std::max(size, 1e-30));
}

}  // namespace

TEST_CASE("parts of the keys, each merged with those before, are one call", "[engine][serving]") {
  std::mt19937 random(5);
  std::vector<const Engine*> all = engines();
  all.push_back(&oracle_engine);
  for (const Engine* engine : all)
    for (const std::int64_t q_len : {1, 40})
      for (const Attention* attention : {&plain, &rich, &windowed})
        for (const std::size_t parts : {2u, 3u, 5u}) {
          const Shape shape{.batch = 3,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .q_len = q_len,
                            .kv_len = 300,
                            .d = 16,
                            .dv = 16,
                            .q_offset = 150,
                            .seed = parts};
          const Inputs in = tests::inputs(shape);
          // at.kv_len is where the keys of a call end, which differs from part to part.
          Attention without = *attention;
          if (attention == &rich) without.score = [](Float s, At at) { return s + 0.01f * f32(at.kv - at.q); };
          const Subject subject(without);
          const Results whole = results_for(in, DType::f64), merged = results_for(in, DType::f32);
          Forward call = in.forward();
          call.o = whole.o.tensor;
          call.lse = whole.lse.tensor;
          runtime::oracle_forward(runtime::call_of(subject.written, call, compiler::check(subject.lowered, call, {})));
          std::vector<std::int64_t> cuts{0, 300};
          while (cuts.size() < parts + 1) cuts.push_back(static_cast<std::int64_t>(random() % 301));
          std::ranges::sort(cuts);
          call.o = merged.o.tensor;
          call.lse = merged.lse.tensor;
          for (std::size_t i = 0; i < parts; ++i) {
            call.k = part_of(in.k.tensor, cuts[i], cuts[i + 1]);
            call.v = part_of(in.v.tensor, cuts[i], cuts[i + 1]);
            call.kv_offset = static_cast<std::int32_t>(cuts[i]);
            if (i > 0) {
              call.o_before = call.o;
              call.lse_before = call.lse;
            }
            engine->forward(subject, call, compiler::check(subject.lowered, call, {}));
          }
          INFO(engine->name << ", " << parts << " parts, " << q_len << " queries");
          CHECK(distance(tests::elements(merged.o.tensor), tests::elements(whole.o.tensor)) < 1e-6);
          CHECK(distance(tests::elements(merged.lse.tensor), tests::elements(whole.lse.tensor)) < 1e-6);
        }
}

TEST_CASE("what was before is refused beside a prob mod that is no multiple of p", "[serving]") {
  const Inputs in = tests::inputs({});
  Forward call = in.forward();
  const Results out = results_for(in, DType::f32), before = results_for(in, DType::f32);
  call.o = out.o.tensor;
  call.o_before = before.o.tensor;
  call.lse_before = before.lse.tensor;
  tests::golden_error("before-prob", tests::refusal([&] { squared.run(call, Line{}); }).what());
}

TEST_CASE("what was before is merged as the oracle merges it", "[engine][serving]") {
  for (const std::int64_t q_len : {1, 40})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Attention* attention : {&plain, &causal, &rich})
        agree(*attention,
              {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = q_len, .kv_len = 70, .dtype = dtype, .before = true});
}

TEST_CASE("what was before counts by its lse, and for nothing where that is -inf", "[engine][serving]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const Engine* engine : engines())
    for (const std::int64_t q_len : {4, 20}) {
      // The first two rows of each entry keep no key.
      const Subject subject(Attention{.mask = [](At at) { return at.q >= 2; }});
      const Inputs in = tests::inputs({.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = q_len, .kv_len = 30});
      const Results alone = run(*engine, subject, in, in.forward());
      Forward call = in.forward();
      const Placed o = tests::place(DType::f32, in.shape_of_o()), lse = tests::place(DType::f64, in.shape_of_lse());
      call.o_before = o.tensor;
      call.lse_before = lse.tensor;
      const auto fill = [&](float value, double of_lse) {
        tests::each_element(o.tensor,
                            [&](std::int64_t at) { runtime::store(o.tensor, at, static_cast<double>(value)); });
        tests::each_element(lse.tensor, [&](std::int64_t at) { runtime::store(lse.tensor, at, of_lse); });
      };
      INFO(engine->name);
      fill(not_a_number, -infinity);
      CHECK(run(*engine, subject, in, call) == alone);
      fill(3, 1.5);
      const Results both = run(*engine, subject, in, call);
      CHECK(runtime::load(both.o.tensor, 0) == 3);  // a row without a key: what was before
      CHECK(runtime::load(both.lse.tensor, 0) == 1.5);
      CHECK(runtime::load(both.lse.tensor, 3) > runtime::load(alone.lse.tensor, 3));
      CHECK(tests::elements(both.max.tensor) == tests::elements(alone.max.tensor));
      fill(3, 1e6);
      for (const double x : tests::elements(run(*engine, subject, in, call).o.tensor)) CHECK(x == 3);
    }
}

TEST_CASE("sequences grow in a paged KV cache, and each step is as if computed anew", "[engine][serving]") {
  const Device cpu = Device::cpu();
  constexpr int batch = 4, heads = 4, kv_heads = 2, d = 16, page = 16, steps = 40;
  const Attention attention{.score = mods::softcap(5), .mask = mods::sliding_window(24)};
  std::mt19937 dice(3);
  const auto normal = [&](const Array<float>& t) {
    for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
  };
  const auto q = cpu.array<float>({batch, heads, 1, d}), o = cpu.array<float>({batch, heads, 1, d}),
             new_k = cpu.array<float>({batch, kv_heads, 1, d}), new_v = cpu.array<float>({batch, kv_heads, 1, d});
  // [cache]
  // A pool of pages of 16 keys for all sequences; the pages of each of them, and how many keys.
  const auto k = cpu.array<float>({20, kv_heads, page, d}), v = cpu.array<float>({20, kv_heads, page, d});
  const auto page_table = cpu.array<int>({batch, 4}), lengths = cpu.array<int>({batch}), last = cpu.array<int>({batch});
  // [cache]
  for (float& x : k.values()) x = not_a_number;
  for (float& x : v.values()) x = not_a_number;
  std::ranges::fill(page_table.values(), -1);
  std::vector<std::vector<float>> all_k(batch), all_v(batch);
  int next = 0;
  for (int b = 0; b < batch; ++b) {
    lengths.data()[b] = 0;
    for (int i = 0; i < 4; ++i) page_table.data()[b * 4 + i] = i < 3 ? (7 * next++) % 20 : -1;
  }
  for (int step = 0; step < steps; ++step) {
    normal(q);
    normal(new_k);
    normal(new_v);
    // [step]
    for (int b = 0; b < batch; ++b) last.data()[b] = lengths.data()[b]++;
    append({.k_new = new_k, .v_new = new_v, .k = k, .v = v, .page_table = page_table, .kv_len = lengths});
    attention.run({.q = q, .k = k, .v = v, .o = o, .kv_len = lengths, .page_table = page_table, .q_offsets = last});
    // [step]
    for (int b = 0; b < batch; ++b) {
      const std::int64_t at = b * kv_heads * d;
      all_k[static_cast<std::size_t>(b)].insert(all_k[static_cast<std::size_t>(b)].end(), new_k.data() + at,
                                                new_k.data() + at + kv_heads * d);
      all_v[static_cast<std::size_t>(b)].insert(all_v[static_cast<std::size_t>(b)].end(), new_v.data() + at,
                                                new_v.data() + at + kv_heads * d);
      const std::int64_t n = step + 1;
      const auto seen = [&](std::vector<float>& of) {
        return Tensor(of.data(), DType::f32, {1, kv_heads, n, d}, {0, d, kv_heads * d, 1});
      };
      const auto anew = cpu.array<double>({1, heads, 1, d});
      const Tensor one(q.data() + b * heads * d, DType::f32, {1, heads, 1, d});
      Attention oracle = attention;
      oracle.target = Target::oracle;
      oracle.run({.q = one,
                  .k = seen(all_k[static_cast<std::size_t>(b)]),
                  .v = seen(all_v[static_cast<std::size_t>(b)]),
                  .o = anew,
                  .q_offset = step});
      for (int i = 0; i < heads * d; ++i) CHECK(std::abs(double{o.data()[b * heads * d + i]} - anew.data()[i]) < 1e-5);
    }
  }
}

TEST_CASE("slots name the rows that lengths and a page table lead to", "[engine][serving]") {
  const Device cpu = Device::cpu();
  constexpr int batch = 3, kv_heads = 2, d = 8, page = 5, pages = 12;
  const std::array<int, batch + 1> starts{0, 4, 4, 11};
  const auto rows = [&] {
    std::mt19937 dice(7);
    const auto out = cpu.array<float>({starts.back(), kv_heads, d});
    for (float& x : out.values()) x = std::normal_distribution<float>()(dice);
    return out;
  };
  const auto packed_k = rows(), packed_v = rows();
  const auto pool = [&] { return cpu.array<float>({pages, kv_heads, page, d}); };
  const auto k = pool(), v = pool(), by_table_k = pool(), by_table_v = pool();
  const auto page_table = cpu.array<int>({batch, 4}), lengths = cpu.array<int>({batch}),
             cu = cpu.array<int>({batch + 1});
  const auto slots = cpu.array<std::int64_t>({starts.back()});
  std::ranges::copy(std::array{13, 0, 7}, lengths.data());
  std::ranges::copy(starts, cu.data());
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < 4; ++i)
      page_table.data()[b * 4 + i] = i * page < lengths.data()[b] ? (5 * (b * 4 + i)) % pages : -1;
  for (std::size_t b = 0; b < batch; ++b)
    for (int i = starts[b]; i < starts[b + 1]; ++i) {
      const int key = lengths.data()[b] - starts[b + 1] + i;
      slots.data()[i] = page_table.data()[static_cast<int>(b) * 4 + key / page] * page + key % page;
    }
  // [slots]
  append({.k_new = packed_k, .v_new = packed_v, .k = k, .v = v, .slots = slots});
  // [slots]
  append({.k_new = packed_k,
          .v_new = packed_v,
          .k = by_table_k,
          .v = by_table_v,
          .page_table = page_table,
          .kv_len = lengths,
          .cu_seqlens = cu});
  CHECK(std::ranges::equal(k.values(), by_table_k.values()));
  CHECK(std::ranges::equal(v.values(), by_table_v.values()));
}
