// tests/runtime/ranks/carry/host.test.cpp — calls over ranks that are threads: the bits of one rank, merges, gradients,
// errors
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "runtime/machine/tensor.h"
#include "runtime/ranks/ranks.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/corpus.h"
#include "tests/numerics/inputs.h"
#include "tests/numerics/rich.h"
#include "tests/ranks.h"
#include "tests/refusal.h"
#include "tests/runtime/ranks/calls.h"
#include "tests/sanitizers.h"

using namespace attune;

using namespace attune::tests::ranks;
using tests::Inputs, tests::Layout, tests::Placed, tests::Shape, tests::on_ranks;
using Assignment = Sharding::Assignment;
using Travel = Sharding::Travel;

namespace {

const Device host = Device::cpu();

const Attention rich = tests::rich();
const Attention plain{}, causal{.mask = mods::causal()}, windowed{.mask = mods::sliding_window(20)};
const Attention by_head{.mask = [](At at) { return at.kv <= at.q && at.q - at.kv < 30 * (at.head + 1); }};
/// Takes two passes over the keys, and cannot be merged.
const Attention squared{.mask = mods::causal(), .prob = [](Float p, At at) { return p * p + 0 * at.q; }};

constexpr std::array all_assignments{Assignment::contiguous, Assignment::zigzag, Assignment::greedy};

}  // namespace

TEST_CASE("any assignment over any number of ranks gives the bits of one", "[ranks]") {
  std::size_t next = 0;
  for (const auto& [name, attention] : {std::pair{"plain", &plain},
                                        {"causal", &causal},
                                        {"window", &windowed},
                                        {"rich", &rich},
                                        {"by head", &by_head},
                                        {"squared", &squared}})
    for (const DType type : {DType::f32, DType::bf16}) {
      const Inputs in = tests::inputs(
          {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 307, .kv_len = 307, .d = 16, .dv = 24, .dtype = type});
      const Results one = alone(*attention, in);
      for (const int count : {1, 2, 3, 4, 8})
        for (const Assignment assignment : all_assignments)
          for (const int groups : {1, 2}) {
            if (count == 8 && groups == 2) continue;
            if (!tests::runs_case(next++, 11)) continue;
            INFO(name << ", " << name_of(type) << ", " << count << " ranks, " << runtime::ranks::name_of(assignment)
                      << ", " << groups << " groups");
            CHECK(differs(
                      one,
                      together(*attention, in, count,
                               {.assignment = assignment, .travel = Travel::gather, .groups = groups, .block = 20})) ==
                  "");
          }
    }
}

TEST_CASE("every mod of the corpus gives the bits of one rank", "[ranks]") {
  std::size_t next = 0;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (!tests::runs_case(next++, 5)) continue;
    INFO(mod.name);
    tests::Made made = tests::make(mod, 1);
    made.attention.target = Target::automatic;
    const Inputs in = tests::inputs({.seed = 3});
    const Results one = alone(made.attention, in);
    for (const int count : {2, 3})
      CHECK(differs(one, together(made.attention, in, count,
                                  {.assignment = count == 2 ? Assignment::greedy : Assignment::zigzag,
                                   .travel = Travel::gather,
                                   .block = 4})) == "");
    CHECK(differs(one, together(made.attention, in, 2, {.travel = Travel::heads, .block = 4})) == "");
  }
}

TEST_CASE("packed sequences, empty ones and ones of one token, give the bits of one rank", "[ranks]") {
  for (const Attention* attention : {&causal, &rich})
    for (const auto& lens : {std::vector<std::int64_t>{0, 1, 150, 0, 97, 3, 17, 0}, {5, 1, 2, 7}, {1}, {0, 0}, {130}}) {
      const Inputs in = tests::inputs({.q_heads = 4, .kv_heads = 2, .q_lens = lens, .kv_lens = lens});
      const Results one = alone(*attention, in);
      for (const int count : {2, 3})
        for (const Assignment assignment : all_assignments) {
          INFO(lens.size() << " sequences, " << count << " ranks, " << runtime::ranks::name_of(assignment));
          CHECK(differs(one, together(*attention, in, count,
                                      {.assignment = assignment, .travel = Travel::gather, .block = 12})) == "");
        }
      CHECK(differs(one, together(*attention, in, 2, {.travel = Travel::heads, .block = 12})) == "");
    }
}

TEST_CASE("few queries, shared keys, offsets and any strides give the bits of one rank", "[ranks]") {
  const std::array shapes{
      Shape{.q_len = 3, .kv_len = 1100, .q_offset = 797},
      Shape{.batch = 3, .q_len = 70, .kv_len = 70, .kv_shared = true},
      Shape{.q_len = 90, .kv_len = 200, .q_offset = 110, .kv_offset = 0},
      Shape{.q_len = 64, .kv_len = 64, .q_offset = 20, .kv_offset = 20},
      Shape{.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 131, .kv_len = 131, .dtype = DType::f16},
      Shape{.batch = 0, .q_len = 40, .kv_len = 40},
      Shape{.q_len = 0, .kv_len = 40},
      Shape{.q_len = 40, .kv_len = 0}};
  for (const Shape& shape : shapes)
    for (const Attention* attention : {&causal, &rich}) {
      const Inputs in = tests::inputs(shape);
      INFO(shape.describe());
      const Results one = alone(*attention, in);
      for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::padded})
        CHECK(differs(one, together(*attention, in, 3, {.travel = Travel::gather, .block = 16}, layout)) == "");
      if (shape.kv_heads % 2 == 0)
        CHECK(differs(one, together(*attention, in, 2, {.travel = Travel::heads, .block = 16}, Layout::bshd)) == "");
    }
}

TEST_CASE("a ring and decode merge to what one rank computes", "[ranks]") {
  std::size_t next = 0;
  for (const Travel travel : {Travel::ring, Travel::decode})
    for (const auto& shape : {Shape{.q_len = 150, .kv_len = 150}, Shape{.q_len = 2, .kv_len = 900, .q_offset = 898},
                              Shape{.q_len = 90, .kv_len = 200, .kv_shared = true, .q_offset = 110},
                              Shape{.q_lens = {0, 1, 150, 40}, .kv_lens = {0, 1, 150, 40}},
                              Shape{.q_len = 0, .kv_len = 20}, Shape{.q_len = 30, .kv_len = 0}})
      for (const Attention* attention : {&causal, &rich, &by_head}) {
        if (!tests::runs_case(next++, 7)) continue;
        const Inputs in = tests::inputs(shape);
        INFO(runtime::ranks::name_of(travel) << ", " << shape.describe());
        const Results one = alone(*attention, in);
        for (const int count : {1, 2, 3}) {
          const Results many = together(*attention, in, count, {.travel = travel, .block = 20});
          CHECK(distance(one.o.tensor, many.o.tensor) < 3e-6);
          CHECK(distance(one.lse.tensor, many.lse.tensor) < 3e-6);
          CHECK(distance(one.max.tensor, many.max.tensor) < 3e-6);
          // Reproducible.
          CHECK(differs(many, together(*attention, in, count, {.travel = travel, .block = 20})) == "");
        }
      }
}

TEST_CASE("keys that no query needs may be NaN, and are not sent", "[ranks]") {
  const Attention half{.mask = [](At at) { return at.kv <= at.q && at.kv % 64 < 32; }};
  const Shape shape{.q_len = 256, .kv_len = 256};
  const Inputs clean = tests::inputs(shape);
  const Results one = alone(half, clean);
  const Inputs in = tests::inputs(shape);
  for (const Placed* t : {&in.k, &in.v})
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t i = 0; i < 256; ++i)
          for (std::int64_t j = 0; j < 16 && i % 64 >= 32; ++j)
            runtime::store(t->tensor, runtime::offset(t->tensor, b, h, i, j), std::nan(""));
  for (const Travel travel : {Travel::gather, Travel::heads})
    CHECK(differs(one, together(half, in, 2, {.travel = travel, .block = 32})) == "");
  for (const Travel travel : {Travel::ring, Travel::decode})
    CHECK(distance(one.o.tensor, together(half, in, 2, {.travel = travel, .block = 32}).o.tensor) < 3e-6);
  const Sharding sharding(std::span(&half, 1), in.forward(), {.rank = 0, .count = 2},
                          {.assignment = Assignment::contiguous, .travel = Travel::gather, .block = 32});
  CHECK(sharding.received(0) == 0);
  CHECK(sharding.received(1) == 64 * 2 * 2 * 32 * sizeof(float));
}

TEST_CASE("gradients over ranks: dq's bits, and the others as on one rank, reproducibly", "[ranks]") {
  const auto bias = host.array<float>({400}, "bias"), logits = host.array<float>({4}, "logits");
  for (float& x : bias.values()) x = 0.25f;
  const Attention biased{.score = [=](Float s, At at) { return s + bias[at.q] * bias[at.kv]; },
                         .mask = mods::causal(),
                         .prob = [](Float p, At) { return where(attune::random(5) < 0.8f, p / 0.8f, 0); },
                         .sink = [=](SinkAt at) { return logits[at.head]; }};
  const std::array<Tensor, 2> captures{bias.tensor(), logits.tensor()};
  for (const auto& shape : {Shape{.q_len = 211, .kv_len = 211}, Shape{.q_len = 90, .kv_len = 211, .kv_shared = true},
                            Shape{.dtype = DType::bf16, .q_lens = {0, 1, 150, 40}, .kv_lens = {0, 1, 150, 40}},
                            Shape{.q_len = 0, .kv_len = 30}})
    for (const HowBackward back : {HowBackward{}, HowBackward{.results = true}}) {
      const Inputs in = tests::inputs(shape);
      const Gradients one = alone(biased, in, captures, back);
      const double close = shape.dtype == DType::bf16 ? 2e-2 : 2e-5;
      for (const int count : {1, 2, 3})
        for (const int groups : {1, 2}) {
          INFO(shape.describe() << ", " << count << " ranks, " << groups << " groups");
          const How how{.assignment = Assignment::zigzag, .travel = Travel::gather, .groups = groups, .block = 20};
          const Gradients many = together(biased, in, captures, count, how, back);
          CHECK(same_bits(one.dq.tensor, many.dq.tensor));
          CHECK(distance(one.dk.tensor, many.dk.tensor) < close);
          CHECK(distance(one.dv.tensor, many.dv.tensor) < close);
          for (std::size_t i = 0; i < captures.size(); ++i)
            CHECK(distance(one.captured[i].tensor, many.captured[i].tensor) < 1e-4);
          const Gradients again = together(biased, in, captures, count, how, back);
          for (const auto& [a, b] : {std::pair{&many.dk, &again.dk},
                                     {&many.dv, &again.dv},
                                     {&many.captured[0], &again.captured[0]},
                                     {&many.captured[1], &again.captured[1]}})
            CHECK(same_bits(a->tensor, b->tensor));
        }
    }
}

TEST_CASE("every mod of the corpus has the gradients of one rank", "[ranks]") {
  std::size_t next = 0;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (!tests::runs_case(next++, 5)) continue;
    INFO(mod.name);
    tests::Made made = tests::make(mod, 1);
    made.attention.target = Target::automatic;
    const Inputs in = tests::inputs({.seed = 4});
    const Gradients one = alone(made.attention, in, std::span<const Tensor>()),
                    many = together(made.attention, in, {}, 3, {.block = 4});
    CHECK(same_bits(one.dq.tensor, many.dq.tensor));
    CHECK(distance(one.dk.tensor, many.dk.tensor) < 1e-4);
    CHECK(distance(one.dv.tensor, many.dv.tensor) < 1e-4);
  }
}

TEST_CASE("captured gradients are of all ranks, or of each if the caller sums them", "[ranks]") {
  const auto bias = host.array<float>({64}, "bias");
  const Attention biased{.score = [=](Float s, At at) { return s + bias[at.kv]; }, .mask = mods::causal()};
  const std::array<Tensor, 1> captures{bias.tensor()};
  const Inputs in = tests::inputs({.q_len = 64, .kv_len = 64});
  const Gradients one = alone(biased, in, captures);
  std::vector<std::vector<Placed>> summed, apart;
  together(biased, in, captures, 3, {.block = 8}, {}, &summed);
  together(biased, in, captures, 3, {.block = 8}, {.sum_captured = false}, &apart);
  for (const auto& rank : summed) CHECK(same_bits(rank[0].tensor, summed[0][0].tensor));
  CHECK(distance(one.captured[0].tensor, summed[0][0].tensor) < 2e-5);
  for (std::int64_t i = 0; i < 64; ++i) {
    double sum = 0;
    for (const auto& rank : apart) sum += runtime::load(rank[0].tensor, i);
    CHECK(sum == Approx(runtime::load(one.captured[0].tensor, i)).margin(2e-5));
  }
}

TEST_CASE("a call that its Sharding are not of is refused before anything travels", "[ranks]") {
  const Inputs in = tests::inputs({.q_len = 40, .kv_len = 40});
  const auto o = tests::place(DType::f32, in.shape_of_o());
  Forward call = in.forward();
  call.o = o.tensor;
  // One rank: its rows are all rows.
  const auto run = [&](const Attention& attention, const Forward& of, const Attention& made_of, const Forward& whole) {
    return tests::refusal(
        [&] { attention.run(of, {.sharding = Sharding(std::span(&made_of, 1), whole, {}, How{.block = 8})}); });
  };
  CHECK(run(causal, call, causal, call).code == "nothing");
  CHECK(run(causal, call, plain, call).code == "sharding-other");
  CHECK(run(windowed, call, Attention{.mask = mods::sliding_window(21)}, call).code == "sharding-other");
  CHECK(run(Attention{.score = rich.score, .mask = mods::causal()}, call, causal, call).code == "nothing");
  Forward longer = call;
  longer.q = Tensor(nullptr, DType::f32, {2, 4, 41, 16});
  CHECK(run(causal, call, causal, longer).code == "sharding-shape");
  longer = call;
  longer.k = Tensor(nullptr, DType::f32, {2, 2, 41, 16});
  longer.v = Tensor(nullptr, DType::f32, {2, 2, 41, 16});
  CHECK(run(causal, call, causal, longer).code == "sharding-shape");
  Forward other = call;
  other.q = Tensor(nullptr, DType::f32, {2, 8, 40, 16});
  CHECK(run(causal, call, causal, other).code == "sharding-other");
  other = call;
  for (Tensor* t : {&other.q, &other.k, &other.v, &other.o}) t->dtype = DType::f16;
  CHECK(run(causal, call, causal, other).code == "sharding-other");
  other = call;
  other.q_offset = 1;
  CHECK(run(causal, call, causal, other).code == "sharding-other");

  const auto doc = host.array<int>({40}, "doc");
  const Attention documents{.mask = mods::document(doc)};
  const Sharding before(std::span(&documents, 1), call, {}, How{.block = 8});
  documents.run(call, {.sharding = before});
  doc.values()[20] = 1;
  CHECK(tests::refusal([&] { documents.run(call, {.sharding = before}); }).code == "sharding-other");

  const Sharding sharding(std::span(&causal, 1), call, {}, How{.block = 8});
  const auto refused = [&](const Forward& of, const Attention& attention = causal) {
    return tests::refusal([&] { attention.run(of, {.sharding = sharding}); }).code;
  };
  Forward wrong = call;
  wrong.o = {};
  CHECK(refused(wrong) == "tensor-missing");
  wrong = call;
  wrong.fixed_split_size = 128;
  CHECK(refused(wrong) == "sharding-call");
  wrong = call;
  wrong.cu_seqlens_q = wrong.cu_seqlens_kv = host.array<int>({2}).tensor();
  CHECK(refused(wrong) == "sharding-other");
  CHECK(refused(call, Attention{.mask = causal.mask, .target = Target::oracle}) == "sharding-call");
  const Sharding planned(std::span(&causal, 1), call, {.rank = 0, .count = 2},
                         How{.assignment = Assignment::contiguous, .block = 20});
  const Placed q = sliced(in.q.tensor, planned.of(0), 2, true), k = sliced(in.k.tensor, planned.of(0), 2, true);
  const Forward half{
      .q = q.tensor, .k = k.tensor, .v = k.tensor, .o = sliced(o.tensor, planned.of(0), 2, false).tensor};
  CHECK(tests::refusal([&] { causal.run(half, {.sharding = planned}); }).code == "sharding-call");
  CHECK(causal.workspace(half, {.sharding = planned}) == 0);
}

TEST_CASE("ranks that disagree, or do not come, are Errors on all", "[ranks]") {
  const Inputs in = tests::inputs({.q_len = 40, .kv_len = 40});
  const auto call_on = [&](const Transport& at, const Attention& attention, const Attention& made_of, bool lse) {
    const Sharding sharding(std::span(&made_of, 1), in.forward(), at,
                            {.assignment = Assignment::contiguous, .block = 20});
    const auto mine = sharding.of(at.rank);
    const Placed q = sliced(in.q.tensor, mine, 2, true), k = sliced(in.k.tensor, mine, 2, true),
                 v = sliced(in.v.tensor, mine, 2, true), o = tests::place(DType::f32, {2, 4, 20, 16}),
                 l = tests::place(DType::f32, {2, 4, 20});
    attention.run({.q = q.tensor, .k = k.tensor, .v = v.tensor, .o = o.tensor, .lse = lse ? l.tensor : Tensor()},
                  {.executor = {.workers = 1}, .sharding = sharding});
  };
  // Sharding of other masks.
  auto errors = on_ranks(threads(2, 60), [&](const Transport& at) {
    const Attention& mine = at.rank == 0 ? causal : windowed;
    call_on(at, mine, mine, false);
  });
  REQUIRE(errors.size() == 2);
  for (const Error& e : errors) CHECK(e.code == "ranks-differ");
  // The same mask, another score.
  errors = on_ranks(threads(2, 60), [&](const Transport& at) {
    const Attention other{.score = [](Float s, At) { return s * 2; }, .mask = causal.mask};
    call_on(at, at.rank == 0 ? causal : other, causal, false);
  });
  REQUIRE(errors.size() == 2);
  for (const Error& e : errors) CHECK(e.code == "ranks-differ");
}

TEST_CASE("a call that one rank refuses ends on the others at once", "[ranks]") {
  const Inputs in = tests::inputs({.q_len = 60, .kv_len = 60});
  const auto codes = [&](const Attention& of_last, std::int64_t more_rows, bool backward) {
    std::vector<std::string> out;
    const auto errors = on_ranks(threads(3, 600), [&](const Transport& at) {
      const Sharding sharding(std::span(&causal, 1), in.forward(), at,
                              {.assignment = Assignment::contiguous, .block = 20});
      const bool last = at.rank == 2;
      const auto mine = sharding.of(at.rank);
      const Placed q = sliced(in.q.tensor, mine, 2, true), k = sliced(in.k.tensor, mine, 2, true),
                   v = sliced(in.v.tensor, mine, 2, true), dq = sliced(in.q.tensor, mine, 2, false),
                   o = tests::place(DType::f32, {2, 4, 20 + (last ? more_rows : 0), 16});
      const Attention& attention = last ? of_last : causal;
      if (backward)
        attention.backward({.q = q.tensor, .k = k.tensor, .v = v.tensor, .grad_o = o.tensor, .dq = dq.tensor},
                           {.executor = {.workers = 1}, .sharding = sharding});
      else
        attention.run({.q = q.tensor, .k = k.tensor, .v = v.tensor, .o = o.tensor},
                      {.executor = {.workers = 1}, .sharding = sharding});
    });
    for (const Error& e : errors) {
      out.push_back(e.code);
      // They are told, and do not wait for the time limit.
      if (e.code == "ranks-timeout") CHECK(e.problem == "rank 2 has failed");
    }
    std::ranges::sort(out);
    return out;
  };
  for (const bool backward : {false, true}) {
    const auto other = codes(windowed, 0, backward), more_rows = codes(causal, 1, backward);
    CHECK(other == std::vector<std::string>{"ranks-timeout", "ranks-timeout", "sharding-other"});
    CHECK(more_rows == std::vector<std::string>{"ranks-timeout", "ranks-timeout", "tensor-shape"});
  }
}
