// tests/runtime/attention/face.test.cpp — from a call to an engine: places of errors, one lowering, many threads
#include <attune/attune.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/refusal.h"

using namespace attune;
using tests::refusal;

namespace {

const Device host = Device::cpu();

struct Call {
  Array<float> q = host.array<float>({1, 2, 3, 4}), k = host.array<float>({1, 2, 5, 4}),
               v = host.array<float>({1, 2, 5, 4}), o = host.array<float>({1, 2, 3, 4});
};

}  // namespace

TEST_CASE("an error of a call names the line of the call", "[attention]") {
  const Call c;
  const Attention attention{.target = Target::oracle};
  const auto narrow = host.array<float>({1, 2, 5, 3});
  const int line = __LINE__ + 1;
  const Error e = refusal([&] { attention(c.q, narrow, c.v, c.o); });
  CHECK(e.code == "head-size");
  CHECK(e.where.line == line);
  CHECK(e.where.name.ends_with("face.test.cpp"));
}

TEST_CASE("an error of an expression keeps the line of the expression", "[attention]") {
  const Call c;
  const auto slope = host.array<float>({2}, "slope");
  const int line = __LINE__ + 1;
  const Attention attention{.score = [=](Float s, At at) { return s + slope[at.kv + 5]; }, .target = Target::oracle};
  const Error e = refusal([&] { attention(c.q, c.k, c.v, c.o); });
  CHECK(e.code == "capture-range");
  CHECK(e.where.line == line);
  CHECK(e.where.text.substr(e.where.begin, e.where.end - e.where.begin) == "slope[kv + 5]");
}

TEST_CASE("a call that was fine does not vouch for one of other sizes", "[attention]") {
  const Call c;
  const auto bias = host.array<float>({10}, "bias");
  const Attention attention{.score = [=](Float s, At at) { return s + bias[at.kv + at.kv_len]; },
                            .target = Target::oracle};
  const auto longer = host.array<float>({1, 2, 11, 4});
  for (int repeat = 0; repeat < 2; ++repeat) {
    attention(c.q, c.k, c.v, c.o);
    CHECK(refusal([&] { attention(c.q, longer, longer, c.o); }).code == "capture-range");
  }
}

TEST_CASE("engines of the host do not read memory of a device, and nothing is written", "[attention]") {
  const Call c;
  for (float& x : c.o.values()) x = 7;
  std::array<Tensor, 4> away{c.q, c.k, c.v, c.o};
  for (Tensor& t : away) t.device = {.kind = Device::Kind::cuda};
  for (const Target target : {Target::cpu, Target::oracle})
    CHECK(refusal([&] { Attention{.target = target}(away[0], away[1], away[2], away[3]); }).code == "engine-device");
  for (const float x : c.o.values()) CHECK(x == 7);
}

TEST_CASE("f64 is for the oracle alone", "[attention]") {
  const auto q = host.array<double>({1, 2, 3, 4}), k = host.array<double>({1, 2, 5, 4}),
             v = host.array<double>({1, 2, 5, 4}), o = host.array<double>({1, 2, 3, 4});
  for (const Target target : {Target::automatic, Target::cpu}) {
    const int line = __LINE__ + 1;
    const Error e = refusal([&] { Attention{.target = target}(q, k, v, o); });
    CHECK(e.code == "engine-type");
    CHECK(e.where.line == line);
  }
  CHECK_NOTHROW(Attention{.target = Target::oracle}(q, k, v, o));
}

TEST_CASE("one Attention serves many threads, and its copies", "[attention]") {
  const Attention attention{.score = mods::softcap(3), .mask = mods::causal(), .target = Target::oracle};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        const Call c;
        const Attention copy = attention;
        attention(c.q, c.k, c.v, c.o);
        copy(c.q, c.k, c.v, c.o);
      }
    });
  for (std::thread& t : threads) t.join();
  SUCCEED("no sanitizer objected");
}

TEST_CASE("explain tells the expressions", "[attention]") {
  const Attention attention{.score = mods::softcap(30), .mask = mods::causal()};
  CHECK(attention.explain().find("kv <= q") != std::string::npos);
  CHECK(attention.explain().find("tanh") != std::string::npos);
}
