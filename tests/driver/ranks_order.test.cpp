// tests/driver/ranks_order.test.cpp — the steps that each schedule of ranks enqueues on a device's streams, in order
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/driver/fake_driver.h"
#include "tests/golden.h"

using namespace attune;
namespace fake = tests::fake_driver;
using Travel = Sharding::Travel;

namespace {

constexpr std::int64_t length = 1536;

std::size_t bytes_of(std::span<const Transport::Chunk> parts) {
  std::size_t bytes = 0;
  for (const Transport::Chunk& part : parts) bytes += part.bytes;
  return bytes;
}

/// One of two ranks; the other one agrees with everything and sends whatever its memory holds.
Transport half(int rank) {
  return {
      .rank = rank,
      .count = 2,
      .exchange = [](std::span<const Transport::Chunk> send, std::span<const Transport::Chunk> receive, void* stream) {
        if (stream)
          return fake::add_step(stream, fmt::format("sends {} bytes in {}, receives {} in {}", bytes_of(send),
                                                    send.size(), bytes_of(receive), receive.size()));
        for (std::size_t i = 0; i < receive.size(); ++i) std::memcpy(receive[i].data, send[i].data, receive[i].bytes);
      }};
}

/// All kernels that an engine enqueues for one slice of a call count as one step.
std::string kernels_told(const std::string& what) {
  if (what.starts_with("fills ")) return "computes";
  if (!what.starts_with("launches ")) return what;
  for (const char* ours : {"add_parts", "copy_rows", "combine_ranks"})
    if (what.find(ours) != std::string::npos) return std::string("launches ") + ours;
  return "computes";
}

/// Events by the order in which the call records them; those of the call before have no number.
std::string renumbered(const std::string& what, std::vector<std::string>& events) {
  const std::size_t hash = what.find('#');
  if (hash == std::string::npos) return what;
  const std::string event = what.substr(hash);
  if (what.starts_with("records")) events.push_back(event);
  const auto found = std::ranges::find(events, event);
  return what.substr(0, hash) +
         (found == events.end() ? "the call before" : fmt::format("#{}", found - events.begin() + 1));
}

/// Steps, a line each. A call's streams are made in the order of their names here.
std::string lines() {
  const std::vector<fake::Step> steps = fake::steps();
  std::set<int> streams{0};
  for (const fake::Step& step : steps) streams.insert(step.stream);
  constexpr std::array names{"call", "travel", "own", "launch 1", "launch 2", "launch 3"};
  std::string out, last;
  std::vector<std::string> events;
  int times = 1;
  const auto end_line = [&] { out += times > 1 ? fmt::format(", {} times\n", times) : out.empty() ? "" : "\n"; };
  for (const fake::Step& step : steps) {
    const std::string what = renumbered(kernels_told(step.what), events);
    const std::string line = fmt::format(
        "  {:<10}{}", names.at(static_cast<std::size_t>(std::distance(streams.begin(), streams.find(step.stream)))),
        what);
    if (line == last) {
      if (what != "computes") ++times;
      continue;
    }
    end_line();
    times = 1;
    out += line;
    last = line;
  }
  end_line();
  return out;
}

struct Case {
  const char* name;
  std::int64_t q_len;
  DType type;
  Sharding::How how;
  bool backward = false, strided = false, results = false;
};

std::string order_of(const Case& c, int rank) {
  const auto bias = Device::cuda().array<float>({4}, "bias");
  const Attention causal{.score = [&](Float s, At at) { return s + bias[at.head]; }, .mask = mods::causal()};
  const auto unplaced = [&](std::int64_t heads, std::int64_t rows) {
    return Tensor(nullptr, c.type, {2, heads, rows, 64});
  };
  const auto q_offset = static_cast<std::int32_t>(length - c.q_len);
  const Sharding sharding(
      std::span(&causal, 1),
      {.q = unplaced(4, c.q_len), .k = unplaced(2, length), .v = unplaced(2, length), .q_offset = q_offset}, half(rank),
      c.how);
  const auto rows = [](std::span<const Sharding::Range> of) {
    std::int64_t out = 0;
    for (const Sharding::Range& s : of) out += s.end - s.begin;
    return out;
  };
  const std::int64_t queries = rows(sharding.of(rank)), keys = rows(sharding.keys_of(rank));
  const auto d_bias = Device::cuda().array<float>({4}, "d_bias");
  std::vector<Array<std::uint8_t>> memory;
  const auto placed = [&](DType type, std::int64_t heads, std::int64_t n, std::int64_t width) {
    memory.push_back(Device::cuda().array<std::uint8_t>({2 * heads * (n + 1) * width * 4}));
    void* const at = memory.back().data();
    // Or rows of one position after another.
    return c.strided
               ? Tensor(at, type, {2, heads, n, width}, {heads * n * width, width, heads * width, 1}, Device::cuda())
               : Tensor(at, type, {2, heads, n, width}, {}, Device::cuda());
  };
  const auto numbers = [&] {
    memory.push_back(Device::cuda().array<std::uint8_t>({2 * 4 * (queries + 1) * 4}));
    return Tensor(memory.back().data(), DType::f32, {2, 4, queries}, {}, Device::cuda());
  };
  const Tensor q = placed(c.type, 4, queries, 64), k = placed(c.type, 2, keys, 64), v = placed(c.type, 2, keys, 64),
               o = placed(c.type, 4, queries, 64), dq = placed(c.type, 4, queries, 64),
               dk = placed(c.type, 2, keys, 64), dv = placed(c.type, 2, keys, 64),
               lse = c.results ? numbers() : Tensor(), max = c.results ? numbers() : Tensor();
  const auto run = [&] {
    if (c.backward)
      causal.backward({.q = q,
                       .k = k,
                       .v = v,
                       .grad_o = o,
                       .dq = dq,
                       .dk = dk,
                       .dv = dv,
                       .captured = {{.of = bias, .into = d_bias}},
                       .q_offset = q_offset},
                      {.sharding = sharding});
    else
      causal.run({.q = q, .k = k, .v = v, .o = o, .lse = lse, .max = max, .q_offset = q_offset},
                 {.sharding = sharding});
  };
  run();
  fake::forget();
  run();
  return lines();
}

}  // namespace

TEST_CASE("each schedule of ranks puts its exchanges, copies and launches on streams in one order", "[driver]") {
  constexpr auto zigzag = Sharding::Assignment::zigzag;
  std::string all;
  for (const Case& c :
       {Case{
            "gather in two groups", length, DType::bf16, {.assignment = zigzag, .travel = Travel::gather, .groups = 2}},
        Case{"gather of strided rows",
             length,
             DType::bf16,
             {.assignment = zigzag, .travel = Travel::gather, .groups = 1},
             false,
             true},
        Case{"heads", length, DType::bf16, {.assignment = zigzag, .travel = Travel::heads}, false, false, true},
        Case{
            "heads of strided rows", length, DType::bf16, {.assignment = zigzag, .travel = Travel::heads}, false, true},
        Case{"decode", 3, DType::bf16, {.travel = Travel::decode}, false, false, true},
        Case{"backward in two groups",
             length,
             DType::bf16,
             {.assignment = zigzag, .travel = Travel::gather, .groups = 2},
             true}})
    for (const int rank : {0, 1}) all += fmt::format("{}, rank {}\n{}\n", c.name, rank, order_of(c, rank));
  tests::golden("runtime/ranks_order", all);
}
