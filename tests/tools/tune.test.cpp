// tests/tools/tune.test.cpp — what a search finds where all speeds are known
#include "tools/measure/tune.h"

#include <map>

#include "tests/catch.h"

namespace attune::tools {
namespace {

using codegen::Variant;

Variant at(int n, int turns, int stages) { return {"k", {{"n", n}, {"turns", turns}, {"stages", stages}}}; }

/// Ten widths, three values of turns, two of stages. `measured` counts measurements.
struct Field {
  std::function<Trial(const Variant&)> speed;
  std::map<Variant, int> measured{};

  std::vector<Trial> searched() {
    const auto with = [](Variant v, const char* name, int value) {
      v.set(name, value);
      return v;
    };
    return search(at(4, 0, 2), {.tiles =
                                    [=](const Variant& from) {
                                      std::vector<Variant> out;
                                      for (int n = 0; n < 10; ++n) out.push_back(with(from, "n", n));
                                      return out;
                                    },
                                .ways =
                                    [=](const Variant& from) {
                                      return std::vector{with(from, "turns", 0), with(from, "turns", 1),
                                                         with(from, "turns", 2), with(from, "stages", 2),
                                                         with(from, "stages", 3)};
                                    },
                                .measure =
                                    [this](const Variant& v) {
                                      ++measured[v];
                                      return speed(v);
                                    }});
  }
};

}  // namespace

TEST_CASE("a search finds a way that pays only with another tile", "[tune]") {
  Field field{[](const Variant& v) {
    const int n = *v.of("n"), turns = *v.of("turns"), stages = *v.of("stages");
    return Trial{v, 1 + 0.01 * n + (n == 8 && turns == 2 ? 0.5 : 0) + (turns == 2 && stages == 3 ? 0.1 : 0), ""};
  }};
  const std::vector<Trial> all = field.searched();
  CHECK(all.front().variant == at(8, 2, 3));
  for (const auto& [variant, times] : field.measured) CHECK(times == 1);
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i - 1].speed >= all[i].speed);
}

TEST_CASE("what is wrong is never the first, however fast", "[tune]") {
  Field field{[](const Variant& v) { return v == at(4, 0, 2) ? Trial{v, 1, ""} : Trial{v, 0, "other results"}; }};
  const std::vector<Trial> all = field.searched();
  CHECK(all.front().variant == at(4, 0, 2));
  CHECK(all[1].wrong == "other results");
}

TEST_CASE("where all are wrong the search ends", "[tune]") {
  Field field{[](const Variant& v) { return Trial{v, 0, "no"}; }};
  CHECK(field.searched().size() == 10);
}

}  // namespace attune::tools
