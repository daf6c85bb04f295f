// tests/gpu/ranks.test.cpp — calls over ranks on devices: the bits of one rank, gradients, layouts, hostile shapes
#include "tests/runtime/ranks/calls.h"

#include <array>
#include <tuple>

#include "runtime/ranks/ranks.h"
#include "tests/gpu/device.h"
#include "tests/numerics/corpus.h"

namespace attune::tests::ranks {
namespace {

using Assignment = Sharding::Assignment;
using Travel = Sharding::Travel;

/// All ranks on one device, or distributed over all devices.
std::vector<Where> places() {
  const int devices = runtime::cuda::device_count();
  return devices > 1 ? std::vector<Where>{{1}, {devices}} : std::vector<Where>{{1}};
}

constexpr std::int64_t length = 1900;

/// Reads positions, lengths, heads and captured tensors at every level; its mask looks at data; a sink, dropout.
Attention rich() {
  const Device host = Device::cpu();
  const auto slope = host.array<float>({24}, "slope"), bias = host.array<float>({length}, "bias"),
             sinks = host.array<float>({24, 24}, "sinks");
  const auto doc = host.array<std::int32_t>({length}, "doc");
  for (std::int64_t i = 0; i < 24; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < length; ++i) bias.data()[i] = static_cast<float>(i % 7) * 0.3f - 1;
  for (std::int64_t i = 0; i < length; ++i) doc.data()[i] = static_cast<std::int32_t>(i / 290);
  for (std::int64_t i = 0; i < 576; ++i) sinks.data()[i] = static_cast<float>(i % 5) * 0.5f - 1;
  return {.score =
              [=](Float s, At at) {
                return 5 * tanh((s + slope[at.head] * (at.kv - at.q) * 0.01f + bias[at.kv] +
                                 0.001f * f32(at.kv_len - at.kv + at.q_len)) /
                                5);
              },
          .mask = [=](At at) { return at.kv <= at.q + 130 && (doc[at.kv] <= doc[at.q] || at.kv % 3 == at.batch % 3); },
          .prob = [](Float p, At) { return where(attune::random(11) < 0.9f, p / 0.9f, 0); },
          .sink = [=](SinkAt at) { return sinks(at.batch, at.head); }};
}
const Attention plain{}, causal{.mask = mods::causal()}, windowed{.mask = mods::sliding_window(300)},
    by_head{.mask = [](At at) { return at.kv <= at.q && at.q - at.kv < 300 * (at.head + 1); }},
    squared{.mask = mods::causal(), .prob = [](Float p, At at) { return p * p + 0 * at.q; }};

struct Named {
  const char* name;
  Attention attention;
};
std::vector<Named> mods_here() {
  return {{"plain", plain}, {"causal", causal},   {"window", windowed},
          {"rich", rich()}, {"by head", by_head}, {"squared", squared}};
}

std::string how_of(const char* name, const Shape& shape, int count, Assignment assignment, int groups, Where where) {
  return fmt::format("{}, {}, {} ranks on {} devices, {}, {} groups", name, shape.describe(), count, where.devices,
                     runtime::ranks::name_of(assignment), groups);
}

}  // namespace

TEST_CASE("on devices any assignment over any number of ranks gives the bits of one", "[gpu][ranks]") {
  if (skipped()) return;
  const std::vector<Named> mods = mods_here();
  const std::array shapes{Shape{.batch = 1,
                                .q_heads = 4,
                                .kv_heads = 2,
                                .q_len = length,
                                .kv_len = length,
                                .d = 128,
                                .dv = 128,
                                .dtype = DType::bf16},
                          Shape{.batch = 1,
                                .q_heads = 2,
                                .kv_heads = 2,
                                .q_len = length - 7,
                                .kv_len = length - 7,
                                .d = 64,
                                .dv = 72,
                                .dtype = DType::f16},
                          Shape{.q_heads = 4,
                                .kv_heads = 2,
                                .q_len = 900,
                                .kv_len = length,
                                .d = 64,
                                .dv = 64,
                                .dtype = DType::bf16,
                                .kv_shared = true,
                                .q_offset = length - 900}};
  CHECK(side_by_side(mods.size() * shapes.size(), [&](std::size_t i) {
          const auto& [name, attention] = mods[i / shapes.size()];
          const Inputs in = inputs(shapes[i % shapes.size()]);
          const Results one = alone(attention, in, {1});
          std::string said;
          std::size_t next = i;
          for (const auto& [count, assignment, groups, travel] : {std::tuple{2, Assignment::zigzag, 2, Travel::gather},
                                                                  {1, Assignment::contiguous, 1, Travel::gather},
                                                                  {2, Assignment::best, 1, Travel::heads},
                                                                  {3, Assignment::greedy, 1, Travel::gather},
                                                                  {4, Assignment::zigzag, 2, Travel::gather},
                                                                  {8, Assignment::contiguous, 2, Travel::gather}})
            for (const Where where : places()) {
              if (count != 2 && where.devices == 1 && next++ % 3 != 0) continue;
              const std::string differ = differs(
                  one, together(attention, in, count, {.assignment = assignment, .travel = travel, .groups = groups},
                                i % 2 ? Layout::bhsd : Layout::bshd, where));
              if (!differ.empty())
                said += how_of(name, in.shape, count, assignment, groups, where) + ", " +
                        std::string(runtime::ranks::name_of(travel)) + ": " + differ + "\n";
            }
          return said;
        }) == "");
}

TEST_CASE("on devices packed sequences over ranks get the bits of one", "[gpu][ranks]") {
  if (skipped()) return;
  const Attention by_entry{.score = [](Float s, At at) { return s + 0.1f * f32(at.batch + at.head); },
                           .mask = [](At at) { return at.kv <= at.q + at.kv_len - at.q_len; }};
  const Attention dropped{.mask = mods::causal(),
                          .prob = [](Float p, At) { return where(attune::random(3) < 0.8f, p / 0.8f, 0); }};
  const std::vector<std::vector<std::int64_t>> all{{0, 1, 700, 40, 900, 0, 130}, {1600}, {5, 6, 7}, {0, 0, 400, 0}};
  CHECK(
      side_by_side(2 * all.size(), [&](std::size_t i) {
        const auto& lens = all[i / 2];
        const Attention& attention = i % 2 ? by_entry : dropped;
        const Inputs in = inputs(
            {.q_heads = 4, .kv_heads = 2, .d = 128, .dv = 128, .dtype = DType::bf16, .q_lens = lens, .kv_lens = lens});
        const Results one = alone(attention, in, {1});
        std::string said;
        for (const int count : {1, 2, 3})
          for (const auto& [assignment, travel] : {std::pair{Assignment::contiguous, Travel::gather},
                                                   {Assignment::zigzag, Travel::gather},
                                                   {Assignment::greedy, Travel::gather},
                                                   {Assignment::best, Travel::heads}}) {
            if (travel == Travel::heads && count == 3) continue;
            const std::string differ = differs(one, together(attention, in, count,
                                                             {.assignment = assignment, .travel = travel, .groups = 2},
                                                             Layout::bhsd, {1}));
            if (!differ.empty())
              said += how_of(i % 2 ? "by entry" : "dropped", in.shape, count, assignment, 2, {1}) + ": " + differ +
                      "\n";
          }
        return said;
      }) == "");
}

TEST_CASE("on devices decode queries go to the keys, and parts merge", "[gpu][ranks]") {
  if (skipped()) return;
  const std::vector<Named> mods = mods_here();
  CHECK(side_by_side(mods.size(), [&](std::size_t i) -> std::string {
          const auto& [name, attention] = mods[i];
          std::string said;
          if (name == std::string("squared")) return said;  // parts of it cannot be merged
          // One shape for each: compiling takes most of the time.
          for (const Shape& shape : {i % 2 ? Shape{.q_heads = 4,
                                             .kv_heads = 2,
                                             .q_len = 1,
                                             .kv_len = length,
                                             .d = 128,
                                             .dv = 128,
                                             .dtype = DType::bf16,
                                             .q_offset = length - 1}
                                           : Shape{.q_heads = 4,
                                             .kv_heads = 2,
                                             .q_len = 3,
                                             .kv_len = 700,
                                             .d = 64,
                                             .dv = 64,
                                             .dtype = DType::f16,
                                             .kv_shared = true,
                                             .q_offset = 697}}) {
            const Inputs in = inputs(shape);
            const Results one = alone(attention, in, {1});
            for (const int count : {1, 2, 3})
              for (const Where where : places()) {
                const Results many = together(attention, in, count, {.travel = Travel::decode}, Layout::bhsd, where);
                const double far = std::max({distance(one.o.tensor, many.o.tensor),
                                             distance(one.lse.tensor, many.lse.tensor),
                                             distance(one.max.tensor, many.max.tensor)});
                if (!(far < 1e-2))
                  said += fmt::format("{}: {} apart\n", how_of(name, shape, count, Assignment::best, 1, where), far);
              }
          }
          return said;
        }) == "");
}

TEST_CASE("on devices every mod of the corpus gives over ranks what it gives alone", "[gpu][ranks]") {
  if (skipped()) return;
  const std::vector<CorpusMod>& mods = corpus();
  CHECK(side_by_side(mods.size(), [&](std::size_t i) -> std::string {
          Made made = make(mods[i], 1);
          made.attention.target = Target::automatic;
          const Inputs in = inputs({.d = 64, .dv = 64, .dtype = DType::bf16, .seed = 3});
          const Results one = alone(made.attention, in, {1});
          std::string said = differs(one,
                                     together(made.attention, in, 2, {.travel = Travel::gather}, Layout::bhsd, {1}));
          // Blocks have fewer queries than tiles: different tiles of keys may be full, but sums are as accurate.
          const Results cut = together(made.attention, in, 3, {.travel = Travel::gather, .groups = 2, .block = 8},
                                       Layout::bhsd, {1});
          const double far = std::max(distance(one.o.tensor, cut.o.tensor), distance(one.lse.tensor, cut.lse.tensor));
          if (far > 2e-2) said += fmt::format(" and by blocks of 8 {} apart", far);
          return said.empty() ? "" : fmt::format("{}: {}\n", mods[i].name, said);
        }) == "");
}

TEST_CASE("on devices rows may have any strides, and lengths may be hostile", "[gpu][ranks]") {
  if (skipped()) return;
  for (const Shape& shape : {Shape{.q_len = 1000, .kv_len = 1000, .d = 64, .dv = 64, .dtype = DType::bf16},
                             Shape{.q_len = 1, .kv_len = 1, .d = 64, .dv = 64, .dtype = DType::bf16},
                             Shape{.q_len = 0, .kv_len = 5, .d = 64, .dv = 64, .dtype = DType::bf16},
                             Shape{.q_len = 5, .kv_len = 0, .d = 64, .dv = 64, .dtype = DType::bf16},
                             Shape{.q_len = 397, .kv_len = 1009, .d = 40, .dv = 24, .dtype = DType::f32}}) {
    const Inputs in = inputs(shape);
    const Results one = alone(causal, in, {1});
    for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::padded, Layout::columns, Layout::reversed}) {
      INFO(shape.describe() << ", layout " << static_cast<int>(layout));
      CHECK(distance(one.o.tensor, together(causal, in, 3, {.travel = Travel::gather}, layout, {1}).o.tensor) < 1e-2);
    }
  }
}

TEST_CASE("on devices keys that no query needs may be NaN, and are not sent", "[gpu][ranks]") {
  if (skipped()) return;
  const Attention half{.mask = [](At at) { return at.kv <= at.q && at.kv % 768 < 384; }};
  const Shape shape{.q_len = 1536, .kv_len = 1536, .d = 64, .dv = 64, .dtype = DType::bf16};
  const Inputs in = inputs(shape);
  const Results one = alone(half, in, {1});
  for (const Placed* t : {&in.k, &in.v})
    for (std::int64_t i = 0; i < 1536; ++i)
      for (std::int64_t j = 0; j < 64 && i % 768 >= 384; ++j)
        for (const std::int64_t b : {0, 1})
          for (const std::int64_t h : {0, 1})
            runtime::store(t->tensor, runtime::offset(t->tensor, b, h, i, j), std::nan(""));
  for (const Where where : places())
    CHECK(differs(one, together(half, in, 2, {.travel = Travel::gather}, Layout::bhsd, where)) == "");
}

TEST_CASE("on devices gradients over ranks are as on one rank, reproducibly", "[gpu][ranks]") {
  if (skipped()) return;
  const Device host = Device::cpu();
  const auto bias = host.array<float>({length}, "bias"), logits = host.array<float>({4}, "logits");
  for (std::int64_t i = 0; i < length; ++i) bias.data()[i] = 0.25f + 0.01f * static_cast<float>(i % 5);
  const Attention biased{.score = [=](Float s, At at) { return s + bias[at.q] * bias[at.kv]; },
                         .mask = mods::causal(),
                         .prob = [](Float p, At) { return where(attune::random(5) < 0.8f, p / 0.8f, 0); },
                         .sink = [=](SinkAt at) { return logits[at.head]; }};
  const std::array<Tensor, 2> captures{bias.tensor(), logits.tensor()};
  const std::array shapes{
      Shape{.batch = 1, .q_len = length, .kv_len = length, .d = 64, .dv = 64, .dtype = DType::bf16},
      Shape{.q_len = 600, .kv_len = 900, .d = 128, .dv = 128, .dtype = DType::bf16, .kv_shared = true, .q_offset = 300},
      Shape{.d = 64, .dv = 64, .dtype = DType::bf16, .q_lens = {0, 1, 700, 40, 500}, .kv_lens = {0, 1, 700, 40, 500}},
      Shape{.q_len = 0, .kv_len = 30, .d = 64, .dv = 64, .dtype = DType::bf16},
      Shape{.q_len = 500, .kv_len = 500, .d = 16, .dv = 24, .dtype = DType::f32}};
  CHECK(side_by_side(2 * shapes.size(), [&](std::size_t i) {
          const Attention& attention = i % 2 ? biased : causal;
          const std::span<const Tensor> asked = i % 2 ? std::span<const Tensor>(captures) : std::span<const Tensor>();
          const Inputs in = inputs(shapes[i / 2]);
          const double least = in.shape.dtype == DType::f32 ? 2e-4 : 3e-2;
          std::string said;
          if (i % 2 && i / 2 != 0 && i / 2 != 2) return std::string();  // its kernels take long to compile
          for (const bool results : i < 2 ? std::vector{false, true} : std::vector{true}) {
            const Gradients one = alone(attention, in, asked, {.results = results, .where = {1}});
            for (const int count : {1, 2, 3})
              for (const Where where : places()) {
                const How how{.assignment = Assignment::zigzag, .travel = Travel::gather, .groups = 2};
                const HowBackward back{.results = results, .where = where};
                const Gradients many = together(attention, in, asked, count, how, back);
                const auto check = [&](const char* name, const Tensor& a, const Tensor& b, double within) {
                  if (const double far = distance(a, b); !(far < within))
                    said += fmt::format(
                        "{}{}: {} is {} apart\n", results ? "with results, " : "",
                        how_of(i % 2 ? "biased" : "causal", in.shape, count, Assignment::zigzag, 2, where), name, far);
                };
                check("dq", one.dq.tensor, many.dq.tensor, least);
                check("dk", one.dk.tensor, many.dk.tensor, least);
                check("dv", one.dv.tensor, many.dv.tensor, least);
                for (std::size_t c = 0; c < asked.size(); ++c)
                  check("a captured one", one.captured[c].tensor, many.captured[c].tensor, 3e-2);
                if (count != 2) continue;
                const Gradients again = together(attention, in, asked, count, how, back);
                const bool same = same_bits(many.dq.tensor, again.dq.tensor) &&
                                  same_bits(many.dk.tensor, again.dk.tensor) &&
                                  same_bits(many.dv.tensor, again.dv.tensor);
                if (!same) said += fmt::format("{}: other bits the second time\n", in.shape.describe());
                for (std::size_t c = 0; c < asked.size(); ++c)
                  if (!same_bits(many.captured[c].tensor, again.captured[c].tensor)) said += "captured: other bits\n";
              }
          }
          return said;
        }) == "");
}

TEST_CASE("on devices the gradients of dense biases over ranks are as on one rank", "[gpu][ranks][small]") {
  if (skipped()) return;
  // Ranks compute some of the heads and queries of the call at a time.
  const Shape shape{.q_heads = 4, .q_len = 300, .kv_len = 300, .d = 64, .dv = 64, .dtype = DType::bf16};
  const Device host = Device::cpu();
  const auto bias = host.array<float>({4, 300, 300}, "bias"), pairs = host.array<float>({2, 2, 300, 300}, "pairs");
  for (std::int64_t i = 0; i < 360000; ++i) {
    bias.data()[i] = 0.1f * static_cast<float>(i % 13);
    pairs.data()[i] = 0.05f * static_cast<float>(i % 7);
  }
  const Attention biased{
      .score = [=](Float s,
                   At at) { return s + bias(at.head, at.q, at.kv) + pairs(at.batch, at.head / 2, at.q, at.kv); },
      .mask = mods::causal()};
  const std::array<Tensor, 2> asked{bias.tensor(), pairs.tensor()};
  const Inputs in = inputs(shape);
  const Gradients one = alone(biased, in, asked, {.results = true, .where = {1}});
  for (const int count : {1, 3}) {
    const How how{.assignment = Assignment::zigzag, .travel = Travel::gather, .groups = 2};
    const Gradients many = together(biased, in, asked, count, how, {.results = true, .where = {1}});
    for (std::size_t c = 0; c < asked.size(); ++c)
      CHECK(distance(one.captured[c].tensor, many.captured[c].tensor) < 1e-2);
    CHECK(distance(one.dq.tensor, many.dq.tensor) < 1e-2);
  }
}

}  // namespace attune::tests::ranks
