// tests/c/examples.test.cpp — each program of examples/ through C: the same bits as C++ gives
#include <attune/attune.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/c/examples.h"
#include "tests/catch.h"

using namespace attune;

namespace {

const Device host = Device::cpu();

template <class T = float>
Array<T> normal(std::initializer_list<std::int64_t> shape, unsigned seed) {
  Array<T> out = host.array<T>(shape);
  std::mt19937 dice(seed);
  std::normal_distribution<float> draw;
  for (T& x : out.values()) x = draw(dice);
  return out;
}

template <class T>
std::string bits(const Array<T>& t) {
  return {reinterpret_cast<const char*>(t.data()), t.values().size_bytes()};
}

void good(attune_error* error) {
  if (!error) return;
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  const std::string message = said.message;
  attune_error_free(error);
  FAIL(message);
}

/// Tensors and calls of C, made of those of C++; they live as long as this.
class Made {
 public:
  const attune_tensor* operator()(const Tensor& t) {
    Tensor& own = tensors_.emplace_back(t);
    attune_tensor out{};
    out.data = own.data;
    out.device.device_type = static_cast<decltype(out.device.device_type)>(ATTUNE_CPU);
    out.ndim = own.rank;
    const auto code = own.dtype == DType::i32 ? ATTUNE_INT : own.dtype == DType::bf16 ? ATTUNE_BFLOAT : ATTUNE_FLOAT;
    out.dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(own.dtype)), 1};
    out.shape = own.shape.data();
    out.strides = own.strides.data();
    return &c_.emplace_back(out);
  }
  attune_call operator()(const Forward& f, const std::vector<Tensor>& captures = {}) {
    attune_call out{};
    out.size = sizeof out;
    out.q = (*this)(f.q);
    out.k = (*this)(f.k);
    out.v = (*this)(f.v);
    if (f.o.given()) out.o = (*this)(f.o);
    if (f.lse.given()) out.lse = (*this)(f.lse);
    if (f.cu_seqlens_q.given()) out.cu_q = (*this)(f.cu_seqlens_q), out.cu_kv = (*this)(f.cu_seqlens_kv);
    out.max_q_len = f.max_q_len;
    out.max_kv_len = f.max_kv_len;
    out.captures = list(captures);
    out.n_captures = captures.size();
    return out;
  }
  const attune_tensor* const* list(const std::vector<Tensor>& tensors) {
    auto& out = lists_.emplace_back();
    for (const Tensor& t : tensors) out.push_back((*this)(t));
    return out.data();
  }

 private:
  std::deque<Tensor> tensors_;
  std::deque<attune_tensor> c_;
  std::deque<std::vector<const attune_tensor*>> lists_;
};

/// Both ways into the same memory: the bits of each.
template <class T, class Cpp, class C>
void same(const Array<T>& o, const Cpp& cpp, const C& c) {
  cpp();
  const std::string wanted = bits(o);
  std::memset(static_cast<void*>(o.data()), 0, wanted.size());
  CHECK(bits(o) != wanted);
  c();
  CHECK(bits(o) == wanted);
}

}  // namespace

TEST_CASE("plain, causal and ALiBi examples", "[c]") {
  Made made;
  const auto q = normal({2, 4, 64, 16}, 1), k = normal({2, 2, 64, 16}, 2), v = normal({2, 2, 64, 16}, 3),
             o = host.array<float>({2, 4, 64, 16}), lse = host.array<float>({2, 4, 64});
  const Forward call{.q = q, .k = k, .v = v, .o = o};
  same(
      o, [&] { Attention{}(q, k, v, o); },
      [&] {
        const attune_call c = made(call);
        good(c_01_plain(&c));
      });
  same(
      o, [&] { Attention{.mask = mods::causal()}(q, k, v, o); },
      [&] {
        const attune_call c = made(call);
        good(c_02_causal(&c));
      });
  const auto slope = normal({4}, 4);
  const auto doc = host.array<int>({64});
  for (int i = 0; i < 64; ++i) doc.data()[i] = i / 24;
  const Attention attention{.score = mods::alibi(slope) | mods::softcap(30),
                            .mask = mods::causal() && mods::document(doc)};
  Forward with_lse = call;
  with_lse.lse = lse;
  same(
      lse, [&] { attention.run(with_lse); },
      [&] {
        const attune_call c = made(with_lse, {slope, doc});
        good(c_03_alibi(&c));
      });
}

TEST_CASE("the examples of packed sequences", "[c]") {
  Made made;
  constexpr int tokens = 60, heads = 2, d = 8;
  const auto q = normal({tokens, heads, d}, 1), k = normal({tokens, heads, d}, 2), v = normal({tokens, heads, d}, 3),
             o = host.array<float>({tokens, heads, d});
  const auto starts = host.array<int>({4}), doc = host.array<int>({tokens});
  std::ranges::copy(std::array{0, 10, 37, tokens}, starts.data());
  for (int i = 0; i < tokens; ++i) doc.data()[i] = (i >= 10) + (i >= 37);
  const Attention each{.score = mods::softcap(5), .mask = mods::causal()};
  const Forward packed{.q = q, .k = k, .v = v, .o = o, .cu_seqlens_q = starts, .cu_seqlens_kv = starts};
  same(
      o, [&] { each.run(packed); },
      [&] {
        const attune_call c = made(packed);
        good(c_04_documents_packed(&c));
      });
  const Attention all{.score = each.score, .mask = mods::causal() && mods::document(doc)};
  const auto row = [](const Array<float>& t) {
    return Tensor(t.data(), DType::f32, {1, heads, tokens, d}, {0, d, heads * d, 1});
  };
  const Forward masked{.q = row(q), .k = row(k), .v = row(v), .o = row(o)};
  same(
      o, [&] { all.run(masked); },
      [&] {
        const attune_call c = made(masked, {doc});
        good(c_04_documents_masked(&c));
      });

  const auto q16 = normal<bf16>({tokens, 4, 64}, 1), k16 = normal<bf16>({tokens, 4, 64}, 2),
             v16 = normal<bf16>({tokens, 4, 64}, 3), o16 = host.array<bf16>({tokens, 4, 64});
  const Attention capped{.score = mods::softcap(30), .mask = mods::causal()};
  const Forward longest{.q = q16,
                        .k = k16,
                        .v = v16,
                        .o = o16,
                        .cu_seqlens_q = starts,
                        .cu_seqlens_kv = starts,
                        .max_q_len = 27,
                        .max_kv_len = 27};
  same(
      o16, [&] { capped.run(longest); },
      [&] {
        const attune_call c = made(longest);
        good(c_12_packed(&c));
      });
}

TEST_CASE("the example of a captured table's gradient", "[c]") {
  Made made;
  const auto q = normal({1, 2, 16, 8}, 1), k = normal({1, 2, 16, 8}, 2), v = normal({1, 2, 16, 8}, 3),
             grad_o = normal({1, 2, 16, 8}, 4), table = normal({2, 32}, 5), grad = host.array<float>({2, 32});
  const Attention attention{.score = mods::relative_bias(table, 16)};
  same(
      grad,
      [&] {
        attention.backward({.q = q, .k = k, .v = v, .grad_o = grad_o, .captured = {{.of = table, .into = grad}}});
      },
      [&] {
        attune_call c = made(Forward{.q = q, .k = k, .v = v}, {table});
        c.pass = ATTUNE_BACKWARD;
        c.grad_o = made(grad_o);
        c.captured_grads = made.list({grad});
        c.n_captured_grads = 1;
        good(c_05_bias_gradient(&c));
      });
}

TEST_CASE("the example of a model that learns", "[c]") {
  Made made;
  constexpr int tokens = 103, heads = 2, d = 16;
  const auto array = [](unsigned seed) { return normal({tokens, heads, d}, seed); };
  const auto q = array(1), k = array(2), v = array(3), o = array(4), grad_o = array(5), dq = array(6), dk = array(7),
             dv = array(8), lse = host.array<float>({heads, tokens});
  const auto table = normal({heads, 32}, 9), grad = host.array<float>({heads, 32});
  const auto starts = host.array<int>({5});
  std::ranges::copy(std::array{0, 23, 63, 72, tokens}, starts.data());
  const Attention attention{.score = mods::softcap(20) | mods::relative_bias(table, 16), .mask = mods::causal()};
  const Forward forward{.q = q, .k = k, .v = v, .o = o, .lse = lse, .cu_seqlens_q = starts, .cu_seqlens_kv = starts};
  attune_call c = made(forward, {table});
  same(
      o, [&] { attention.run(forward); }, [&] { good(c_13_training(&c)); });
  c.pass = ATTUNE_BACKWARD;
  c.grad_o = made(grad_o), c.dq = made(dq), c.dk = made(dk), c.dv = made(dv);
  c.captured_grads = made.list({grad});
  c.n_captured_grads = 1;
  for (const auto* written : {&grad, &dq, &dk, &dv})
    same(
        *written,
        [&] {
          attention.backward({.q = q,
                              .k = k,
                              .v = v,
                              .grad_o = grad_o,
                              .o = o,
                              .lse = lse,
                              .dq = dq,
                              .dk = dk,
                              .dv = dv,
                              .captured = {{.of = table, .into = grad}},
                              .cu_seqlens_q = starts,
                              .cu_seqlens_kv = starts});
        },
        [&] { good(c_13_training(&c)); });
}

TEST_CASE("the examples of text, sinks, dropout and sums", "[c]") {
  Made made;
  const auto q = normal({1, 4, 32, 8}, 1), k = normal({1, 4, 32, 8}, 2), v = normal({1, 4, 32, 8}, 3),
             slope = normal({4}, 4), o = host.array<float>({1, 4, 32, 8});
  const Forward call{.q = q, .k = k, .v = v, .o = o};
  Text text;
  text.capture("slope", slope).param("cap", 30.0f).let("distance", "f32(kv - q)");
  const Attention written{.score = text.score("cap * tanh((s + slope[h] * distance) / cap)"),
                          .mask = text.mask("kv <= q && q - kv < 12")};
  same(
      o, [&] { written.run(call); },
      [&] {
        const attune_call c = made(call, {slope});
        good(c_06_text(&c));
      });
  const Attention with_sink{.sink = [=](SinkAt at) { return slope[at.head]; }};
  same(
      o, [&] { with_sink.run(call); },
      [&] {
        const attune_call c = made(call, {slope});
        good(c_07_sink(&c));
      });
  Param<int> seed("seed", 1);
  const Attention dropped{.prob = mods::dropout(0.75f, seed)};
  for (int i = 0; i < 3; ++i)
    same(
        o, [&] { seed = i, dropped.run(call); },
        [&] {
          const attune_call c = made(call);
          good(c_07_dropout(&c, i));
        });
  const auto u = normal({32, 2}, 6), w = normal({32, 2}, 7);
  const Score with_more = [=](Float s, At at) { return s + sum(2, [=](Int i) { return u(at.q, i) * w(at.kv, i); }); };
  const Attention narrow{.score = with_more, .scale = 1.0};
  same(
      o, [&] { narrow.run(call); },
      [&] {
        const attune_call c = made(call, {u, w});
        good(c_08_sum(&c));
      });
}

TEST_CASE("the example of decoding", "[c]") {
  Made made;
  constexpr int n = 100, d = 32;
  const auto q = normal({1, 8, n, d}, 1), k = normal({1, 2, n, d}, 2), v = normal({1, 2, n, d}, 3),
             o = host.array<float>({1, 8, n, d});
  const Attention attention{.mask = mods::sliding_window(64)};
  const auto of = [](const Array<float>& t, int first, int count) {
    return Tensor(t.data() + first * d, DType::f32, {1, t.tensor().shape[1], count, d}, {0, n * d, d, 1});
  };
  same(
      o,
      [&] {
        for (int i = 0; i < n; ++i)
          attention.run(
              {.q = of(q, i, 1), .k = of(k, 0, i + 1), .v = of(v, 0, i + 1), .o = of(o, i, 1), .q_offset = i});
      },
      [&] {
        const attune_call c = made(Forward{.q = q, .k = k, .v = v, .o = o});
        good(c_09_decode(&c));
      });
}

TEST_CASE("the examples of watching and covers", "[c]") {
  Made made;
  const auto q = normal({1, 4, 32, 8}, 1), k = normal({1, 4, 32, 8}, 2), v = normal({1, 4, 32, 8}, 3),
             o = host.array<float>({1, 4, 32, 8});
  int built = -1, called = -1;
  same(
      o, [&] { Attention{.mask = mods::causal()}(q, k, v, o); },
      [&] {
        const attune_call c = made(Forward{.q = q, .k = k, .v = v, .o = o});
        good(c_10_watch(&c, &built, &called));
      });
  CHECK(called == 1);
  CHECK(built <= 1);  // 0: another test of this process built it

  constexpr int n = 90, layers = 3;
  const auto doc = host.array<int>({n});
  for (int i = 0; i < n; ++i) doc.data()[i] = i / 40;
  std::vector<Array<bf16>> arrays;
  std::vector<Forward> forwards;
  std::vector<attune_call> calls;
  for (unsigned i = 0; i < layers; ++i) {
    for (const unsigned what : {0u, 1u, 2u}) arrays.push_back(normal<bf16>({1, what ? 2 : 8, n, 64}, 10 * i + what));
    arrays.push_back(host.array<bf16>({1, 8, n, 64}));
    forwards.push_back({.q = arrays[4 * i], .k = arrays[4 * i + 1], .v = arrays[4 * i + 2], .o = arrays[4 * i + 3]});
    calls.push_back(made(forwards.back(), {doc}));
  }
  const Attention attention{.mask = mods::causal() && mods::document(doc)};
  const Cover cover = attention.cover(forwards[0]);
  for (unsigned i = 0; i < layers; ++i)
    same(
        arrays[4 * i + 3], [&] { attention.run(forwards[i], {.cover = cover}); },
        [&] { good(c_11_cover(calls.data(), layers)); });
}
