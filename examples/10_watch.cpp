// examples/10_watch.cpp — callbacks that tell your program what attune builds and runs
#include <attune/attune.h>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace attune;

int main() {
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 4, 32, 8}), k = cpu.array<float>({1, 4, 32, 8}),
             v = cpu.array<float>({1, 4, 32, 8}), o = cpu.array<float>({1, 4, 32, 8});
  const Attention attention{.mask = mods::causal()};

  // [watch]
  std::vector<watch::Built> built;
  double seconds = 0;
  auto watching = watch::on({.built = [&](const watch::Built& fact) { built.push_back(fact); },
                             .called = [&](const watch::Called& fact) { seconds += fact.seconds; }});
  attention(q, k, v, o);
  watching.stop();  // or let it go out of scope
  // [watch]

  // Kernels that do not depend on expressions are reported without a mod.
  const auto ours = std::ranges::count_if(built, [](const watch::Built& fact) { return !fact.mod.empty(); });
  const std::size_t told = built.size();
  attention(q, k, v, o);
  std::puts(ours == 1 && seconds > 0 && built.size() == told ? "ok" : "wrong");
}
