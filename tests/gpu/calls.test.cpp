// tests/gpu/calls.test.cpp — calls on a device: arrays, streams, graphs, workspaces, threads, contexts
#include <attune/attune.h>

#include <array>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/attention/tools.h"
#include "tests/gpu/device.h"
#include "tests/refusal.h"

using namespace attune;
using runtime::cuda::driver;
using tests::refusal, tests::side_by_side, tests::skipped;
namespace cu = runtime::cuda::cu;

namespace {

const Device host = Device::cpu(), gpu = Device::cuda();

struct Call {
  Array<bf16> q, k, v, o;
  Array<float> lse;
  Forward forward;

  explicit Call(const Device& where, std::int64_t q_len = 300, std::int64_t kv_len = 300, std::int64_t d = 64)
      : q(filled(1, {2, 4, q_len, d}).on(where)), k(filled(2, {2, 2, kv_len, d}).on(where)),
        v(filled(3, {2, 2, kv_len, d}).on(where)), o(where.array<bf16>({2, 4, q_len, d})),
        lse(where.array<float>({2, 4, q_len})), forward{.q = q, .k = k, .v = v, .o = o, .lse = lse} {}

  static Array<bf16> filled(unsigned seed, std::initializer_list<std::int64_t> shape) {
    return tests::normal<bf16>(seed, shape);
  }
  std::vector<std::uint16_t> bits() const {
    std::vector<std::uint16_t> out;
    const auto here = o.on(host);
    for (const bf16 x : here.values()) out.push_back(x.bits);
    return out;
  }
  void forget() const {
    auto wrong = host.array<bf16>({o.tensor().shape[0], o.tensor().shape[1], o.tensor().shape[2], o.tensor().shape[3]});
    for (bf16& x : wrong.values()) x = 7.0f;
    copy(wrong, o);
  }
};

/// A causal attention within documents of 100 positions, whose tiles are listed on the device. `number` makes an
/// attention that no other test has compiled.
struct Documents {
  Array<int> doc;
  Attention attention;

  explicit Documents(const Device& where, float number = 1) : Documents(ids().on(where), number) {}
  Documents(const Array<int>& of, float number)
      : doc(of), attention{.score = [=](Float s, At) { return s * number; },
                           .mask = [doc = doc](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }} {}
  static Array<int> ids() {
    auto out = host.array<int>({300}, "doc");
    for (int i = 0; i < 300; ++i) out.values()[static_cast<std::size_t>(i)] = i / 100;
    return out;
  }
};

/// Masks whose tiles are listed, with documents of every length from 0 on; and one mask that needs no lists.
struct Lists {
  struct Call {
    const char* name;
    Attention attention;
    bool listed = true;
  };
  Array<int> doc, unsorted, by_batch, by_head;

  explicit Lists(unsigned seed) : Lists(std::mt19937(seed)) {}
  explicit Lists(std::mt19937 dice)
      : doc(ids({length},
                [&, id = 0](std::int64_t) mutable {
                  if (dice() % 97 == 0) id += 1 + static_cast<int>(dice() % 3);
                  return id;
                })),
        unsorted(ids({length}, [&](std::int64_t) { return static_cast<int>(dice() % 5); })),
        by_batch(ids({2, length}, [](std::int64_t i) { return static_cast<int>(i / (i < length ? 100 : 333)); })),
        by_head(
            ids({4, length}, [](std::int64_t i) { return static_cast<int>(i % length / (50 + 70 * (i / length))); })) {}

  std::vector<Call> calls() const {
    const auto same = [](const Array<int>& of) { return mods::document(of); };
    return {{"documents, causal", {.mask = mods::causal() && same(doc)}},
            {"documents", {.mask = same(doc)}},
            {"documents in no order", {.mask = mods::causal() && same(unsorted)}},
            {"documents of each batch entry",
             {.mask = [of = by_batch](At at) { return of(at.batch, at.q) == of(at.batch, at.kv); }}},
            {"documents of each head",
             {.mask = [of = by_head](At at) { return at.kv <= at.q && of(at.head, at.q) == of(at.head, at.kv); }}},
            {"all gone", {.mask = [of = doc](At at) { return of[at.q] + of[at.kv] < 0; }}},
            {"causal", {.mask = mods::causal()}, false}};
  }

 private:
  static constexpr std::int64_t length = 2500;
  template <class F>
  static Array<int> ids(std::initializer_list<std::int64_t> shape, F id) {
    auto out = host.array<int>(shape, "doc");
    for (std::int64_t i = 0; i < out.tensor().size(); ++i) out.data()[i] = id(i);
    return out.on(gpu);
  }
};

/// A stream of the program, which does not wait for the default one.
class Stream {
 public:
  Stream() { driver().cuStreamCreate(&stream_, cu::stream_non_blocking); }
  ~Stream() { driver().cuStreamDestroy.raw(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cu::Stream() const { return stream_; }
  void wait() const { driver().cuStreamSynchronize(stream_); }

 private:
  runtime::cuda::Current current_{0};
  cu::Stream stream_ = nullptr;
};

void near(const Call& there, const Call& here) {
  const auto o = there.o.on(host), wanted = here.o.on(host);
  const auto lse = there.lse.on(host);
  double worst = 0, worst_lse = 0;
  for (std::size_t i = 0; i < o.values().size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(o.values()[i]) - static_cast<double>(wanted.values()[i])));
  for (std::size_t i = 0; i < lse.values().size(); ++i)
    worst_lse = std::max(worst_lse, std::abs(static_cast<double>(lse.values()[i] - here.lse.values()[i])));
  CHECK(worst < 0.05);
  CHECK(worst_lse < 0.02);
}

}  // namespace

TEST_CASE("an array of a device is zeroed, goes there and back, and is not read from the host", "[gpu][small]") {
  if (skipped()) return;
  auto zeros = gpu.array<float>({3, 5});
  const auto zeros_here = zeros.on(host);
  for (const float x : zeros_here.values()) CHECK(x == 0);
  auto numbers = host.array<float>({7});
  for (int i = 0; i < 7; ++i) numbers.data()[i] = static_cast<float>(i);
  const auto back = numbers.on(gpu).on(gpu).on(host);
  CHECK(std::vector(back.values().begin(), back.values().end()) ==
        std::vector(numbers.values().begin(), numbers.values().end()));
  CHECK(refusal([&] { zeros.values(); }).code == "not-on-host");
  CHECK(refusal([&] { copy(zeros, numbers); }).code == "copy-shape");
  CHECK(refusal([] { Device::cuda(1000).array<float>({1}); }).code == "no-device");
  CHECK(refusal([] { gpu.array<float>({std::int64_t{1} << 44}); }).code == "no-memory");
  CHECK(gpu.array<float>({0}).data() != nullptr);
}

TEST_CASE("kernels that are asked for by name compute the same", "[gpu]") {
  if (skipped()) return;
  const Attention attention{.score = mods::softcap(20), .mask = mods::causal()};
  for (const int d : {64, 128}) {
    const Call there(gpu, 300, 300, d), here(host, 300, 300, d);
    attention.run(here.forward);
    int computed = 0;
    for (const char* text : {"forward_sm80", "forward_sm80:m=64,n=16,warps=4", "forward_sm90", "forward_sm90:n=64",
                             "forward_sm90:m=128,n=96,issue_order=1", "forward_sm90:m=128,n=80,issue_order=2",
                             "forward_sm90:m=192,n=48,issue_order=1", "forward_sm90:m=64,n=64,issue_order=0,q_stages=1",
                             "forward_sm90:m=128,n=80,items=2", "forward_sm90:m=128,n=112,dynamic=0",
                             "forward_sm90:m=128,n=160,q_stages=1,own_o=0", "forward_sm90:m=128,n=64,stages=3"}) {
      const codegen::Preference preference{codegen::variant(text), true, ""};
      INFO(text << " at " << d);
      there.forget();
      try {
        runtime::run(attention, there.forward, &preference);
      } catch (const Error& e) {
        // A kernel for another device, or too large at this width.
        REQUIRE(e.code == "bad-kernel");
        continue;
      }
      ++computed;
      near(there, here);
    }
    CHECK(computed >= 2);
  }
}

TEST_CASE("a device computes what the host does", "[gpu][small]") {
  if (skipped()) return;
  for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {1, 300}, {300, 17}}) {
    const Call there(gpu, q_len, kv_len), here(host, q_len, kv_len);
    const Attention attention{.score = mods::softcap(20), .mask = mods::causal()};
    attention.run(there.forward);
    attention.run(here.forward);
    near(there, here);
  }
}

TEST_CASE("a mask that looks at data is listed on the device", "[gpu][small]") {
  if (skipped()) return;
  const Call there(gpu), here(host);
  const Documents on_device(gpu), on_host(host);
  INFO(runtime::stories(on_device.attention, there.forward).front().kernel);
  on_device.attention.run(there.forward);
  on_host.attention.run(here.forward);
  near(there, here);
}

TEST_CASE("engines read the memory that they can reach", "[gpu][small]") {
  if (skipped()) return;
  const Call there(gpu), here(host);
  CHECK(refusal([&] { Attention{.target = Target::cpu}.run(there.forward); }).code == "engine-device");
  CHECK(refusal([&] { Attention{.target = Target::oracle}.run(there.forward); }).code == "engine-device");
  CHECK(refusal([&] { Attention{.target = Target::cuda}.run(here.forward); }).code == "engine-device");
}

TEST_CASE("the same call gives the same bits every time", "[gpu]") {
  if (skipped()) return;
  const Documents documents(gpu);
  const Attention all[] = {{.mask = mods::causal()},
                           {.mask = mods::sliding_window(70)},
                           {.mask = [](At at) { return (at.q ^ at.kv) % 3 != 0; }},
                           documents.attention};
  for (const std::int64_t d : {64, 128}) {
    const Call call(gpu, 300, 300, d);
    for (const Attention& attention : all) {
      attention.run(call.forward);
      const auto first = call.bits();
      for (int i = 0; i < 20; ++i) {
        call.forget();
        attention.run(call.forward);
        REQUIRE(call.bits() == first);
      }
    }
  }
}

TEST_CASE("a call goes to the stream it is given", "[gpu][small]") {
  if (skipped()) return;
  const Call call(gpu);
  const Documents documents(gpu);
  documents.attention.run(call.forward);
  const auto wanted = call.bits();
  call.forget();
  const Stream stream;
  documents.attention.run(call.forward, {.stream = stream});
  stream.wait();
  CHECK(call.bits() == wanted);
}

TEST_CASE("a call works in the memory it is given, and says how much it needs", "[gpu][small]") {
  if (skipped()) return;
  const Call call(gpu);
  const Documents documents(gpu);
  documents.attention.run(call.forward);
  const auto wanted = call.bits();
  call.forget();
  const std::size_t bytes = documents.attention.workspace(call.forward);
  REQUIRE(bytes > 0);
  const auto room = gpu.array<std::uint8_t>({static_cast<std::int64_t>(bytes) + 64});
  auto* at = reinterpret_cast<std::byte*>(room.data());
  documents.attention.run(call.forward, {.workspace = {at, bytes}});
  CHECK(call.bits() == wanted);
  CHECK(refusal([&] {
          documents.attention.run(call.forward, {.workspace = {at, bytes - 1}});
        }).code == "workspace-small");
  CHECK(refusal([&] {
          documents.attention.run(call.forward, {.workspace = {at + 1, bytes}});
        }).code == "workspace-alignment");
  CHECK(Attention{}.workspace(call.forward) == 0);
}

TEST_CASE("a prepared call is captured into a graph, and replayed with other data", "[gpu][small]") {
  if (skipped()) return;
  const Call call(gpu);
  const Documents documents(gpu, 0.75f);
  const Stream stream;
  const auto& d = driver();
  const runtime::cuda::Current current(0);
  d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
  CHECK(refusal([&] { documents.attention.run(call.forward, {.stream = stream}); }).code == "stream-capture");
  cu::Graph graph = nullptr;
  d.cuStreamEndCapture.raw(stream, &graph);
  if (graph) d.cuGraphDestroy(graph);

  documents.attention.prepare(call.forward);
  d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
  documents.attention.run(call.forward, {.stream = stream});
  d.cuStreamEndCapture(stream, &graph);
  cu::GraphExec replay = nullptr;
  d.cuGraphInstantiateWithFlags(&replay, graph, 0);
  for (const unsigned seed : {11u, 12u}) {
    copy(Call::filled(seed, {2, 4, 300, 64}), call.q);
    call.forget();
    d.cuGraphLaunch(replay, stream);
    stream.wait();
    const auto replayed = call.bits();
    call.forget();
    documents.attention.run(call.forward);
    CHECK(call.bits() == replayed);
  }
  d.cuGraphExecDestroy(replay);
  d.cuGraphDestroy(graph);
}

TEST_CASE("calls with a cover give bit for bit what calls without give", "[gpu]") {
  if (skipped()) return;
  const codegen::Preference portable{codegen::variant("forward_sm80"), true, ""};
  const Lists lists(3);
  const std::vector<Lists::Call> all = lists.calls();
  CHECK(side_by_side(2 * all.size(), [&](std::size_t i) {
          const auto& [name, attention, is_listed] = all[i / 2];
          const codegen::Preference* const preference = i % 2 ? &portable : nullptr;
          std::string said;
          for (const auto& [q_len, kv_len] :
               {std::pair{300, 300}, {1, 300}, {300, 1}, {257, 511}, {1, 1}, {129, 0}, {0, 64}, {2500, 2500}}) {
            const Call call(gpu, q_len, kv_len, 128);
            const std::string call_name = fmt::format("{}, {} x {}{}", name, q_len, kv_len,
                                                      preference ? ", portable" : "");
            const auto say = [&](const char* what) { said += fmt::format("{}: {}\n", call_name, what); };
            call.forget();
            runtime::run(attention, call.forward, preference);
            const auto wanted = call.bits();
            const Cover cover = runtime::cover(attention, call.forward, preference);
            if (static_cast<bool>(cover) != (is_listed && q_len > 0)) say(cover ? "a cover" : "no cover");
            for (int layer = 0; layer < 3; ++layer) {
              call.forget();
              runtime::run(attention, call.forward, preference, {.cover = cover});
              if (call.bits() != wanted) say("other bits");
            }
          }
          return said;
        }) == "");
}

TEST_CASE("a cover serves other batches, heads and scores where its mask does not vary with them", "[gpu][small]") {
  if (skipped()) return;
  const Documents documents(gpu), other(documents.doc, 0.5f);
  const Call call(gpu);
  const Cover cover = documents.attention.cover(call.forward);
  const auto part = [&](const Array<bf16>& t, std::int64_t heads) {
    return Tensor(t.data(), DType::bf16, {1, heads, 300, 64}, {}, gpu);
  };
  for (const std::int64_t heads : {1, 2, 4}) {
    // Every kind of GQA: one head of q per key head, and two.
    const Forward few{.q = part(call.q, heads),
                      .k = part(call.k, heads > 1 ? 2 : 1),
                      .v = part(call.v, heads > 1 ? 2 : 1),
                      .o = part(call.o, heads)};
    for (const Attention& attention : {documents.attention, other.attention}) {
      call.forget();
      attention.run(few);
      const auto wanted = call.bits();
      call.forget();
      attention.run(few, {.cover = cover});
      CHECK((call.bits() == wanted));
    }
  }
}

TEST_CASE("a cover lies in the memory it is given, and is looked at for nothing but its lists", "[gpu]") {
  if (skipped()) return;
  const Call call(gpu, 2500, 2500, 128);
  const Lists lists(2);
  for (const auto& [name, attention, is_listed] : lists.calls()) {
    INFO(name);
    const std::size_t bytes = attention.cover_bytes(call.forward);
    CHECK((bytes > 0) == is_listed);
    const auto room = gpu.array<std::uint8_t>({static_cast<std::int64_t>(bytes)}),
               work = gpu.array<std::uint8_t>({1 << 20});
    const std::span<std::byte> memory = std::as_writable_bytes(std::span(room.data(), bytes)),
                               workspace = std::as_writable_bytes(std::span(work.data(), std::size_t{1} << 20));
    call.forget();
    attention.run(call.forward);
    const auto wanted = call.bits();
    const Stream stream;
    const Cover cover = attention.cover(call.forward, {.workspace = memory, .stream = stream});
    const Resources with{.workspace = workspace, .stream = stream, .cover = cover};
    REQUIRE(attention.workspace(call.forward, with) <= workspace.size());
    for (int layer = 0; layer < 2; ++layer) {
      call.forget();
      attention.run(call.forward, with);
      stream.wait();
      CHECK((call.bits() == wanted));
    }
  }
}

TEST_CASE("a cover that was made for other calls is refused", "[gpu][small]") {
  if (skipped()) return;
  const Call call(gpu);
  const Documents documents(gpu), others(gpu);
  const Cover cover = documents.attention.cover(call.forward);
  const auto code = [&](const Attention& attention, const Forward& forward) {
    return refusal([&] { attention.run(forward, {.cover = cover}); }).code;
  };
  CHECK(code(documents.attention, call.forward) == "nothing");
  CHECK(code(documents.attention, Call(gpu, 299, 300).forward) == "cover-other");
  CHECK(code(documents.attention, Call(gpu, 300, 299).forward) == "cover-other");
  CHECK(code(others.attention, call.forward) == "cover-other");
  CHECK(code({.mask = mods::document(documents.doc)}, call.forward) == "cover-other");
  CHECK(code({.mask = mods::causal()}, call.forward) == "cover-other");
}

TEST_CASE("calls with a cover are captured into a graph, alone or behind it, and replayed", "[gpu]") {
  if (skipped()) return;
  const Call call(gpu, 2500, 2500, 128);
  const Lists lists(2);
  const Attention attention = lists.calls()[0].attention;
  const std::size_t bytes = attention.cover_bytes(call.forward);
  const auto room = gpu.array<std::uint8_t>({static_cast<std::int64_t>(bytes)});
  const Stream stream;
  const auto& d = driver();
  const runtime::cuda::Current current(0);
  const Cover before = attention.cover(call.forward, {.stream = stream});
  for (const bool within : {false, true}) {
    Cover cover = before;
    d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
    if (within)
      cover = attention.cover(call.forward,
                              {.workspace = std::as_writable_bytes(std::span(room.data(), bytes)), .stream = stream});
    for (int layer = 0; layer < 2; ++layer) attention.run(call.forward, {.stream = stream, .cover = cover});
    cu::Graph graph = nullptr;
    d.cuStreamEndCapture(stream, &graph);
    cu::GraphExec replay = nullptr;
    d.cuGraphInstantiateWithFlags(&replay, graph, 0);
    for (const unsigned seed : {21u, 22u}) {
      copy(Call::filled(seed, {2, 4, 2500, 128}), call.q);
      call.forget();
      d.cuGraphLaunch(replay, stream);
      stream.wait();
      const auto replayed = call.bits();
      call.forget();
      attention.run(call.forward);
      CHECK((call.bits() == replayed));
    }
    d.cuGraphExecDestroy(replay);
    d.cuGraphDestroy(graph);
  }
}

TEST_CASE("a cover outlives its calls' threads, and its last copy gives its memory back", "[gpu]") {
  if (skipped()) return;
  const Call call(gpu);
  const Documents documents(gpu);
  call.forget();
  documents.attention.run(call.forward);
  const auto wanted = call.bits();
  Cover cover = documents.attention.cover(call.forward);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, mine = cover] {
      for (int i = 0; i < 20; ++i) documents.attention.run(call.forward, {.cover = mine});
    });
  for (std::thread& thread : threads) thread.join();
  call.forget();
  documents.attention.run(call.forward, {.cover = std::exchange(cover, {})});
  CHECK((call.bits() == wanted));
  // Many in sequence: each takes the memory that the previous one freed.
  for (int i = 0; i < 200; ++i) {
    const Cover again = documents.attention.cover(call.forward);
    documents.attention.run(call.forward, {.cover = again});
  }
  CHECK((call.bits() == wanted));
}

TEST_CASE("eight threads launch at once, each on its own stream, some the same kernels for the first time", "[gpu]") {
  if (skipped()) return;
  std::vector<std::thread> threads;
  std::vector<int> wrong(8);
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([t, &wrong] {
      const Call call(gpu);
      const Documents documents(gpu, t % 2 ? 0.5f : 0.25f);
      const Stream stream;
      documents.attention.run(call.forward, {.stream = stream});
      stream.wait();
      const auto first = call.bits();
      for (int i = 0; i < 50; ++i) {
        documents.attention.run(call.forward, {.stream = stream});
        if (i % 10) continue;
        stream.wait();
        wrong[static_cast<std::size_t>(t)] += call.bits() != first;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(8));
}

TEST_CASE("packed sequences run on a device, and are refused within a capture", "[gpu][small]") {
  if (skipped()) return;
  const auto q = Call::filled(1, {300, 4, 64}), k = Call::filled(2, {310, 2, 64}), v = Call::filled(3, {310, 2, 64});
  const auto starts = [](std::initializer_list<int> all) {
    auto out = host.array<int>({static_cast<std::int64_t>(all.size())});
    std::copy(all.begin(), all.end(), out.values().begin());
    return out;
  };
  const auto cu_q = starts({0, 100, 100, 300}), cu_kv = starts({0, 110, 120, 310});
  const auto o = host.array<bf16>({300, 4, 64}), there = gpu.array<bf16>({300, 4, 64});
  const Attention attention{.mask = mods::causal()};
  attention.run({.q = q, .k = k, .v = v, .o = o, .cu_seqlens_q = cu_q, .cu_seqlens_kv = cu_kv});
  const auto gq = q.on(gpu), gk = k.on(gpu), gv = v.on(gpu);
  const Forward call{.q = gq, .k = gk, .v = gv, .o = there, .cu_seqlens_q = cu_q, .cu_seqlens_kv = cu_kv};
  attention.run(call);
  const auto got = there.on(host);
  for (std::size_t i = 0; i < got.values().size(); ++i)
    REQUIRE(std::abs(static_cast<float>(got.values()[i]) - static_cast<float>(o.values()[i])) < 0.05f);

  const Stream stream;
  driver().cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
  CHECK(refusal([&] { attention.run(call, {.stream = stream}); }).code == "stream-capture");
  cu::Graph graph = nullptr;
  driver().cuStreamEndCapture.raw(stream, &graph);
  if (graph) driver().cuGraphDestroy(graph);
}

TEST_CASE("the caller's context stays as it was", "[gpu][small]") {
  if (skipped()) return;
  cu::Context before = nullptr, after = nullptr;
  driver().cuCtxGetCurrent(&before);
  const Call call(gpu);
  Attention{.mask = mods::causal()}.run(call.forward);
  driver().cuCtxGetCurrent(&after);
  CHECK(before == after);
}

TEST_CASE("kernels read the captures and parameters that a call binds, also from many threads", "[gpu][small]") {
  if (skipped()) return;
  Text text;
  text.capture("slope", Tensor::declared(DType::f32, 1)).capture("doc", Tensor::declared(DType::i32, 1));
  text.param("cap", 1.0f);
  const Attention attention{.score = text.score("cap * tanh((s + slope[h]) / cap)"),
                            .mask = text.mask("kv <= q && doc[q] == doc[kv]")};
  constexpr unsigned threads = 4;
  std::vector<Array<float>> slopes;
  std::vector<Array<int>> docs;
  for (unsigned t = 0; t < threads; ++t) {
    slopes.push_back(tests::normal<float>(90 + t, {4}));
    docs.push_back(host.array<int>({300}));
    for (int i = 0; i < 300; ++i)
      docs.back().values()[static_cast<std::size_t>(i)] = i / (40 + 30 * static_cast<int>(t));
  }
  const auto run = [&](const Call& call, unsigned t, const Device& where) {
    const Array<float> slope = slopes[t].on(where);
    const Array<int> doc = docs[t].on(where);
    const std::array<Tensor, 2> captures{slope, doc};
    const std::array<double, 1> params{5.0 + t};
    Forward forward = call.forward;
    forward.captures = captures;
    forward.params = params;
    attention.run(forward);
    call.bits();  // waits, so that the captures live long enough
  };
  std::vector<Call> calls;
  for (unsigned t = 0; t < threads; ++t) calls.emplace_back(gpu);
  std::vector<std::thread> running;
  for (unsigned t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) run(calls[t], t, gpu);
    });
  for (std::thread& thread : running) thread.join();
  for (unsigned t = 0; t < threads; ++t) {
    const Call here(host);
    run(here, t, host);
    near(calls[t], here);
  }
}
