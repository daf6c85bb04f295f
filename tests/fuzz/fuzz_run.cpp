// tests/fuzz/fuzz_run.cpp — a test of random calls: environment variables set their number, seeds and time
#include "tests/fuzz/fuzz_run.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

namespace attune::tests {
namespace {

std::string text(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? value : "";
}
std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const std::string value = text(variable);
  return value.empty() ? otherwise : std::strtoull(value.c_str(), nullptr, 10);
}

/// An Observed that owns its elements.
struct Kept {
  std::string name, type;
  std::vector<double> elements, oracle;
  double granted;
};

}  // namespace

FuzzRun::FuzzRun(std::size_t count)
    : count_(number("ATTUNE_FUZZ", count)), first_(number("ATTUNE_FUZZ_FROM", *seeds_in_turn(count_).begin())),
      limit_(static_cast<double>(number("ATTUNE_FUZZ_SECONDS", 1'000'000))), says_(!text("ATTUNE_TEST_SAY").empty()),
      files_(text("ATTUNE_FUZZ_RECORD"), text("ATTUNE_FUZZ_AGAINST")) {}

double FuzzRun::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}
bool FuzzRun::is_over() const { return seconds() > limit_; }

void FuzzRun::operator()(std::size_t nth, const RandomCall& call, const Engine& engine, Compared what,
                         const std::function<std::string()>& more) {
  if (is_over()) return;
  std::vector<Kept> results;
  if (files_.used())
    what.observe = [&](const Observed& one) {
      results.push_back({one.name, one.type, one.elements, one.oracle, one.granted});
    };
  Judged judged = judge(seed(nth), call, engine, what, device_functions(call));
  if (more && !judged.wrong.empty()) judged.wrong += more() + "\n";
  // Two machines may differ arbitrarily where no result is judged.
  if (!judged.hopeless)
    for (const Kept& one : results) files_.add(seed(nth), {one.name, one.type, one.elements, one.oracle, one.granted});
  const std::lock_guard lock(mutex_);
  tally_.add(judged);
  if (!says_) return;
  // A run that is killed has said what it found.
  if (!judged.wrong.empty()) std::printf("WRONG %s\n", judged.wrong.c_str());
  constexpr double pause = 10;
  if (seconds() - said_ < pause && judged.wrong.empty() && tally_.cases < count_) return;
  said_ = seconds();
  std::printf("%llu of %zu calls in %.0f s\n", static_cast<unsigned long long>(tally_.cases), count_, said_);
  std::fflush(stdout);
}

void FuzzRun::tell() const {
  const std::lock_guard lock(mutex_);
  if (says_ || tally_.cases < count_)
    std::printf("%llu of %zu calls from seed %llu on, in %.0f s; %llu refused, %llu hopeless\n",
                static_cast<unsigned long long>(tally_.cases), count_, static_cast<unsigned long long>(first_),
                seconds(), static_cast<unsigned long long>(tally_.refused),
                static_cast<unsigned long long>(tally_.hopeless));
  std::printf("%s", files_.table().c_str());
}

std::string FuzzRun::wrong() const {
  const std::lock_guard lock(mutex_);
  return tally_.wrong + tally_.too_few() + files_.apart();
}

}  // namespace attune::tests
