// tests/emulated/tile_soak.test.cpp — random tiles by name of Hopper's kernels of 16 bits, in random calls of several
// tiles, where kernels are emulated; hidden, run by tests/fuzz/soak.py --tiles
#include <attune/error.h>

#include <cstdio>

#include "tests/emulated/gpu.h"
#include "tests/fuzz/fuzz_run.h"

namespace attune::tests {
namespace {

using codegen::Variant, ir::Random;

int any(Random& random, std::initializer_list<int> from) { return random.pick(std::span(from.begin(), from.size())); }

Variant random_forward(Random& random) {
  Variant out{"forward_sm90", {}};
  const int m = any(random, {64, 128, 128, 192}), own_o = any(random, {0, 1, 2, 2});
  out.set("m", m);
  out.set("n", 16 * (2 + static_cast<int>(random.below(7))));
  out.set("stages", any(random, {2, 2, 3, 4}));
  out.set("q_stages", own_o == 0 ? 1 : any(random, {1, 1, 2}));
  out.set("own_o", own_o);
  out.set("issue_order", m == 64 ? 0 : any(random, {0, 1, 1, 2}));
  out.set("dynamic", any(random, {0, 1}));
  out.set("items", any(random, {1, 1, 2}));
  out.set("copies", any(random, {0, 0, 0, 1}));
  out.set("distances", any(random, {0, 0, 0, 1}));
  out.set("small_tanh", any(random, {0, 0, 0, 1}));
  return out;
}

Variant random_backward(Random& random, std::int64_t d) {
  Variant out{"backward_sm90", {}};
  const int m = d <= 64 ? 128 : any(random, {64, 64, 80}), alone = any(random, {0, 0, 1}),
            completes = m == 80 || alone ? 0 : any(random, {0, 1, 1});
  out.set("m", m);
  out.set("order", any(random, {0, 1, 2, 3, 3}));
  out.set("alone", alone);
  out.set("completes", completes);
  out.set("path", any(random, {0, 1, 1, 2}));
  out.set("copies", completes ? 0 : any(random, {0, 0, 1, 2}));
  return out;
}

/// The tiles that a call tries, and the one that it runs with.
struct Tried {
  std::vector<Variant> all;
  std::string taken;

  bool is_named() const { return taken.find(':') != std::string::npos; }
};

/// Calls run(means) with the first tile that the call may have.
template <class Run>
void with_first(Tried& tried, const Run& run) {
  for (const Variant& one : tried.all) {
    const codegen::Preference preference{one, true, ""};
    try {
      tried.taken = one.text();
      return run(runtime::Means{.preference = &preference});
    } catch (const Error& e) {
      if (e.code != "bad-kernel") throw;
    }
  }
  tried.taken = "no tile by name";
  run(runtime::Means{});
}

}  // namespace

TEST_CASE("random tiles on an emulated GPU are what the oracle says, forward and backward", "[.soak]") {
  if (skipped_without_compiler()) return;
  FuzzRun run(50);
  int forwards = 0, backwards = 0;
  for (std::size_t i = 0; i < run.count() && !run.is_over(); ++i) {
    const std::uint64_t seed = run.seed(i);
    const RandomCall call = RandomCall::of_tiles(seed);
    Random random(seed ^ 0x711e);
    Tried forward, backward;
    for (int n = 0; n < 20; ++n) {
      forward.all.push_back(random_forward(random));
      backward.all.push_back(random_backward(random, call.shape.d));
    }
    const runtime::emulated::Gpu gpu{.arch = 90, .sms = any(random, {1, 1, 2, 3, 5, 7, 24}), .seed = seed};
    Engine engine = emulated_engine(gpu);
    engine.forward = [&](const auto&... of) {
      runtime::emulated::emulate(gpu);
      with_first(forward, [&](const runtime::Means& means) { on_device(of..., means); });
    };
    engine.backward = [&, ds_bytes = any(random, {1, 300'000, 1 << 30})](const auto&... of) {
      runtime::emulated::emulate(gpu);
      with_first(backward, [&](runtime::Means means) {
        means.ds_bytes = ds_bytes;
        on_device(of..., means);
      });
    };
    run(i, call, engine, {.max = seed % 3 == 0, .captured = random.chance(0.5)},
        [&] { return forward.taken + "; " + backward.taken; });
    forwards += forward.is_named();
    backwards += backward.is_named();
  }
  std::printf("by name: %d forwards, %d backwards\n", forwards, backwards);
  run.tell();
  CHECK(run.wrong() == "");
}

}  // namespace attune::tests
