// tests/gpu/packed.test.cpp — packed sequences on a device: each gets the same results as alone, with any neighbours
#include <attune/attune.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

constexpr std::int64_t q_heads = 4, kv_heads = 2;

/// Sequences with these numbers of queries and keys, on a device.
struct Packed {
  std::vector<std::int64_t> q_lens, kv_lens;
  std::int64_t d;
  Device gpu = Device::cuda();
  Array<bf16> q = filled(1, q_lens, q_heads), k = filled(2, kv_lens, kv_heads), v = filled(3, kv_lens, kv_heads);
  Array<bf16> o = filled(4, q_lens, q_heads);
  Array<float> lse = gpu.array<float>({q_heads, total(q_lens)});
  Array<int> cu_q = starts(q_lens), cu_kv = starts(kv_lens);

  static std::int64_t total(const std::vector<std::int64_t>& lens) {
    return std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
  }
  static std::int64_t start(const std::vector<std::int64_t>& lens, std::size_t b) {
    return std::accumulate(lens.begin(), lens.begin() + static_cast<std::ptrdiff_t>(b), std::int64_t{0});
  }
  static Array<int> starts(const std::vector<std::int64_t>& lens) {
    auto out = Device::cpu().array<int>({static_cast<std::int64_t>(lens.size()) + 1});
    std::partial_sum(lens.begin(), lens.end(), out.values().begin() + 1);
    return out;
  }
  Array<bf16> filled(unsigned seed, const std::vector<std::int64_t>& lens, std::int64_t heads) const {
    return normal<bf16>(seed, {total(lens), heads, d}).on(gpu);
  }
  Forward call() const {
    return {.q = q, .k = k, .v = v, .o = o, .lse = lse, .cu_seqlens_q = cu_q, .cu_seqlens_kv = cu_kv};
  }
  /// With starts on the device, and this bound on the sequences' lengths.
  Forward call(const Array<int>& starts_q, const Array<int>& starts_kv, std::int64_t longest) const {
    Forward out = call();
    out.cu_seqlens_q = starts_q;
    out.cu_seqlens_kv = starts_kv;
    out.max_q_len = out.max_kv_len = longest;
    return out;
  }
  /// The bits of o and lse.
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> out;
    const auto here = o.on(Device::cpu());
    const auto lse_here = lse.on(Device::cpu());
    for (const bf16 x : here.values()) out.push_back(x.bits);
    for (const float x : lse_here.values()) out.push_back(std::bit_cast<std::uint32_t>(x));
    return out;
  }
  /// One sequence as a dense call, with its own output.
  Forward alone(std::size_t b, const Array<bf16>& into) const {
    const auto part = [&](const Array<bf16>& of, const std::vector<std::int64_t>& lens, std::int64_t heads) {
      return Tensor(of.data() + start(lens, b) * heads * d, DType::bf16, {1, heads, lens[b], d},
                    {lens[b] * heads * d, d, heads * d, 1}, gpu);
    };
    return {.q = part(q, q_lens, q_heads),
            .k = part(k, kv_lens, kv_heads),
            .v = part(v, kv_lens, kv_heads),
            .o = Tensor(into.data(), DType::bf16, {1, q_heads, q_lens[b], d},
                        {q_lens[b] * q_heads * d, d, q_heads * d, 1}, gpu)};
  }
};

std::vector<Attention> attentions() {
  return {Attention{}, Attention{.mask = mods::causal()},
          Attention{.score = [](Float s, At at) { return s + 0.03f * f32(at.kv - at.q); },
                    .mask = [](At at) { return at.kv <= at.q || at.kv < 20; }}};
}

}  // namespace

TEST_CASE("a packed sequence gets what it gets alone, and writes nothing of its neighbours", "[gpu]") {
  if (skipped()) return;
  const std::vector<Attention> mods = attentions();
  constexpr std::array<std::int64_t, 4> widths{64, 72, 128, 192};
  CHECK(side_by_side(widths.size() * mods.size(), [&](std::size_t nth) {
          const std::int64_t d = widths[nth / mods.size()];
          const Attention& attention = mods[nth % mods.size()];
          const Packed all{.q_lens = {1, 128, 17, 0, 300, 129, 5}, .kv_lens = {7, 128, 0, 9, 300, 260, 64}, .d = d};
          attention.run(all.call());
          const auto o = all.o.on(Device::cpu());
          std::size_t wrong = 0;
          for (std::size_t b = 0; b < all.q_lens.size(); ++b) {
            if (all.q_lens[b] == 0) continue;
            const auto own = all.filled(5, {all.q_lens[b]}, q_heads);
            attention.run(all.alone(b, own));
            const auto expected = own.on(Device::cpu());
            const auto first = static_cast<std::size_t>(Packed::start(all.q_lens, b) * q_heads * d);
            for (std::size_t i = 0; i < expected.values().size(); ++i) {
              const float x = o.values()[first + i], y = expected.values()[i];
              wrong += !is_near(x, y);
            }
          }
          return wrong ? fmt::format("d {}, mod {}: {} wrong\n", d, nth % mods.size(), wrong) : "";
        }) == "");
}

TEST_CASE("starts on the device give bit for bit what starts on the host give", "[gpu]") {
  if (skipped()) return;
  auto doc = Device::cpu().array<int>({512}, "doc");
  for (int i = 0; i < 512; ++i) doc.data()[i] = i / 50;
  std::vector<Attention> all = attentions();
  all.push_back({.mask = mods::causal() && mods::document(doc.on(Device::cuda()))});
  using Lengths = std::vector<std::int64_t>;
  const std::pair<Lengths, Lengths> calls[] = {
      {{1, 128, 17, 0, 300, 129, 5}, {7, 128, 0, 9, 300, 260, 64}},
      {{0, 0, 300, 0}, {5, 0, 300, 0}},
      {{256}, {256}},
      {Lengths(200, 1), Lengths(200, 33)},
      {Lengths(60, 20), Lengths(60, 33)},  // few enough queries that heads share tiles
      {{63, 1, 0, 40, 64}, {300, 2, 5, 0, 64}},
  };
  constexpr std::array<std::int64_t, 3> widths{64, 128, 40};
  CHECK(side_by_side(widths.size() * all.size() * std::size(calls), [&](std::size_t nth) -> std::string {
          const std::int64_t d = widths[nth / all.size() / std::size(calls)];
          const Attention& attention = all[nth / std::size(calls) % all.size()];
          const auto& [q_lens, kv_lens] = calls[nth % std::size(calls)];
          const Packed packed{.q_lens = q_lens, .kv_lens = kv_lens, .d = d};
          const auto there_q = packed.cu_q.on(packed.gpu), there_kv = packed.cu_kv.on(packed.gpu);
          attention.run(packed.call());
          const auto wanted = packed.bits();
          copy(packed.filled(6, q_lens, q_heads), packed.o);
          const std::int64_t longest = *std::ranges::max_element(q_lens);
          Forward call = packed.call(there_q, there_kv, 310);
          // One query has a kernel of its own, which starts on the device choose by their bound.
          if (longest <= 64) call.max_q_len = longest == 1 ? 1 : 64;
          attention.run(call);
          if (packed.bits() == wanted) return "";
          return fmt::format("d {}, {} sequences, {} queries at most: other bits\n", d, q_lens.size(), longest);
        }) == "");
}

TEST_CASE("a call whose starts are on the device is captured into a graph, and replayed with others", "[gpu]") {
  if (skipped()) return;
  using runtime::cuda::driver;
  namespace cu = runtime::cuda::cu;
  const Packed packed{.q_lens = {100, 0, 200}, .kv_lens = {110, 10, 190}, .d = 64};
  const auto cu_q = packed.cu_q.on(packed.gpu), cu_kv = packed.cu_kv.on(packed.gpu);
  const Forward call = packed.call(cu_q, cu_kv, 300);
  const Attention attention{.mask = mods::causal()};
  attention.prepare(call);
  const runtime::cuda::Current current(0);
  const auto& d = driver();
  cu::Stream stream = nullptr;
  d.cuStreamCreate(&stream, cu::stream_non_blocking);
  d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
  attention.run(call, {.stream = stream});
  cu::Graph graph = nullptr;
  d.cuStreamEndCapture(stream, &graph);
  cu::GraphExec replay = nullptr;
  d.cuGraphInstantiateWithFlags(&replay, graph, 0);
  for (const auto& [q_lens, kv_lens] :
       {std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>{{100, 0, 200}, {110, 10, 190}},
        {{3, 297, 0}, {5, 300, 5}},
        {{1, 1, 298}, {0, 20, 290}}}) {
    copy(Packed::starts(q_lens), cu_q);
    copy(Packed::starts(kv_lens), cu_kv);
    copy(packed.filled(6, packed.q_lens, q_heads), packed.o);
    d.cuGraphLaunch(replay, stream);
    d.cuStreamSynchronize(stream);
    const auto replayed = packed.bits();
    Forward direct = packed.call();
    const auto here_q = Packed::starts(q_lens), here_kv = Packed::starts(kv_lens);
    direct.cu_seqlens_q = here_q;
    direct.cu_seqlens_kv = here_kv;
    attention.run(direct);
    CHECK(packed.bits() == replayed);
  }
  d.cuGraphExecDestroy(replay);
  d.cuGraphDestroy(graph);
  d.cuStreamDestroy(stream);
}

TEST_CASE("NaN in a packed sequence reaches no other", "[gpu]") {
  if (skipped()) return;
  for (const Attention& attention : attentions()) {
    Packed all{.q_lens = {40, 129, 3, 70}, .kv_lens = {50, 130, 3, 200}, .d = 64};
    attention.run(all.call());
    const auto before = all.o.on(Device::cpu());
    const auto lse_before = all.lse.on(Device::cpu());
    for (std::size_t b = 0; b < all.q_lens.size(); ++b) {
      Packed spoilt = all;
      const auto with_nan = [&](const Array<bf16>& of, const std::vector<std::int64_t>& lens, std::int64_t heads) {
        auto out = of.on(Device::cpu());
        const auto first = Packed::start(lens, b) * heads * all.d, count = lens[b] * heads * all.d;
        for (std::int64_t i = first; i < first + count; ++i)
          out.values()[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
        return out.on(all.gpu);
      };
      spoilt.q = with_nan(all.q, all.q_lens, q_heads);
      spoilt.k = with_nan(all.k, all.kv_lens, kv_heads);
      spoilt.v = with_nan(all.v, all.kv_lens, kv_heads);
      attention.run(spoilt.call());
      const auto o = spoilt.o.on(Device::cpu());
      const auto lse = spoilt.lse.on(Device::cpu());
      const std::int64_t begin = Packed::start(all.q_lens, b), end = begin + all.q_lens[b],
                         count = Packed::total(all.q_lens), row = q_heads * all.d;
      std::size_t wrong = 0, spoilt_rows = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const bool own = i >= begin && i < end;
        for (std::int64_t j = 0; j < row; ++j) {
          const auto at = static_cast<std::size_t>(i * row + j);
          const float x = o.values()[at], y = before.values()[at];
          if (own)
            spoilt_rows += std::isnan(x);
          else
            wrong += !is_near(x, y);
        }
        for (std::int64_t h = 0; h < q_heads; ++h) {
          const auto at = static_cast<std::size_t>(h * count + i);
          if (!own) wrong += !(std::fabs(lse.values()[at] - lse_before.values()[at]) < 1e-3f);
        }
      }
      INFO("sequence " << b);
      CHECK(wrong == 0);
      CHECK(spoilt_rows == static_cast<std::size_t>((end - begin) * row));
    }
  }
}

TEST_CASE("gradients of a packed sequence are those it has alone, with NaN beside it too", "[gpu]") {
  if (skipped()) return;
  const std::vector<Attention> mods = attentions();
  constexpr std::array<std::int64_t, 2> widths{64, 128};
  CHECK(side_by_side(widths.size() * mods.size(), [&](std::size_t nth) {
          const std::int64_t d = widths[nth / mods.size()];
          const Attention& attention = mods[nth % mods.size()];
          std::string said;
          const Packed all{.q_lens = {40, 129, 3, 270}, .kv_lens = {50, 130, 3, 200}, .d = d};
          const auto gradients = [&](const Packed& of, const Array<bf16>& grad_o) {
            const std::array out{all.filled(0, of.q_lens, q_heads), all.filled(0, of.kv_lens, kv_heads),
                                 all.filled(0, of.kv_lens, kv_heads)};
            attention.run(of.call());
            attention.backward({.q = of.q,
                                .k = of.k,
                                .v = of.v,
                                .grad_o = grad_o,
                                .o = of.o,
                                .lse = of.lse,
                                .dq = out[0],
                                .dk = out[1],
                                .dv = out[2],
                                .cu_seqlens_q = of.cu_q,
                                .cu_seqlens_kv = of.cu_kv});
            return std::array{out[0].on(Device::cpu()), out[1].on(Device::cpu()), out[2].on(Device::cpu())};
          };
          const auto grad_o = all.filled(5, all.q_lens, q_heads);
          const auto clean = gradients(all, grad_o);
          for (std::size_t b = 0; b < all.q_lens.size(); ++b) {
            const auto with_nan = [&](const Array<bf16>& of, const std::vector<std::int64_t>& lens,
                                      std::int64_t heads) {
              auto out = of.on(Device::cpu());
              const auto first = Packed::start(lens, b) * heads * d, count = lens[b] * heads * d;
              for (std::int64_t i = first; i < first + count; ++i)
                out.values()[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
              return out.on(all.gpu);
            };
            Packed spoilt = all;
            spoilt.q = with_nan(all.q, all.q_lens, q_heads);
            spoilt.k = with_nan(all.k, all.kv_lens, kv_heads);
            spoilt.v = with_nan(all.v, all.kv_lens, kv_heads);
            const auto beside = gradients(spoilt, with_nan(grad_o, all.q_lens, q_heads));
            std::size_t wrong = 0, own_nan = 0;
            for (std::size_t i = 0; i < clean.size(); ++i) {
              const auto& lens = i == 0 ? all.q_lens : all.kv_lens;
              const std::int64_t row = (i == 0 ? q_heads : kv_heads) * d, begin = Packed::start(lens, b) * row,
                                 end = begin + lens[b] * row;
              for (std::int64_t j = 0; j < Packed::total(lens) * row; ++j) {
                const float x = beside[i].values()[static_cast<std::size_t>(j)],
                            y = clean[i].values()[static_cast<std::size_t>(j)];
                if (j >= begin && j < end)
                  own_nan += std::isnan(x);
                else
                  wrong += !is_near(x, y);
              }
            }
            if (wrong > 0 || own_nan == 0)
              said += fmt::format("sequence {}, d {}: {} wrong, {} NaN of its own\n", b, d, wrong, own_nan);
          }
          return said;
        }) == "");
}

}  // namespace attune::tests
