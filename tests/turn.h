// tests/turn.h — which share of many similar cases a run takes: over the commits, all of them
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace attune::tests {

/// The environment variable ATTUNE_TURN, a number that `./dev test` makes of the commit; 0 if it is not set. None if it
/// is `all`: such a run takes every share.
inline std::optional<std::uint64_t> turn() {
  const char* const set = std::getenv("ATTUNE_TURN");
  if (set && std::string_view(set) == "all") return std::nullopt;
  return set ? std::strtoull(set, nullptr, 10) : 0;
}

/// Whether case `number` of many similar ones is in this run's share, one of `shares`.
inline bool in_turn(std::uint64_t number, std::uint64_t shares) {
  const auto now = turn();
  return !now || number % shares == *now % shares;
}

/// Seeds that follow one another. Not std::views::iota, which clang 14 does not compile with libstdc++ 12.
class Seeds {
 public:
  struct Iterator {
    std::uint64_t seed;
    std::uint64_t operator*() const { return seed; }
    Iterator& operator++() {
      ++seed;
      return *this;
    }
    bool operator==(const Iterator&) const = default;
  };
  Seeds(std::uint64_t first, std::uint64_t count) : first_(first), count_(count) {}
  Iterator begin() const { return {first_}; }
  Iterator end() const { return {first_ + count_}; }

 private:
  std::uint64_t first_, count_;
};

/// The seeds of a run that takes `count` random cases: turns take different ones, 50 turns 50 times as many.
inline Seeds seeds_in_turn(std::uint64_t count) { return {turn().value_or(0) % 50 * count, count}; }

}  // namespace attune::tests
