// tests/fuzz/fuzz_run.h — a test of random calls: environment variables set their number, seeds and time
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "tests/fuzz/random_call.h"
#include "tests/fuzz/result_file.h"
#include "tests/turn.h"

namespace attune::tests {

/// Environment variables, all of them optional:
///   ATTUNE_FUZZ=N           how many calls
///   ATTUNE_FUZZ_FROM=N      the first one's seed; left out, the turn chooses it (tests/turn.h)
///   ATTUNE_FUZZ_SECONDS=N   no call begins later than that
///   ATTUNE_FUZZ_RECORD=FILE   results of calls that are judged are written to it
///   ATTUNE_FUZZ_AGAINST=FILE  results are compared with those in it, by another machine
///   ATTUNE_TEST_SAY=1       progress is printed
class FuzzRun {
 public:
  /// `count`: the number of calls if ATTUNE_FUZZ is not set.
  explicit FuzzRun(std::size_t count);

  std::size_t count() const { return count_; }
  /// Computes and judges the nth call, unless the time is over. Several threads may call it.
  /// `more` returns what is added to the message about a wrong call.
  void operator()(std::size_t nth, const RandomCall& call, const Engine& engine, Compared what,
                  const std::function<std::string()>& more = {});
  std::uint64_t seed(std::size_t nth) const { return first_ + nth; }
  bool is_over() const;
  /// Prints how many calls ran if that is not all, and the comparison with another machine's results.
  void tell() const;
  /// Empty if all results are right, the calls could be compared, and other machines' results are near.
  std::string wrong() const;

 private:
  double seconds() const;

  std::size_t count_;
  std::uint64_t first_;
  double limit_;
  bool says_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  ResultFiles files_;
  mutable std::mutex mutex_;
  Tally tally_;
  double said_ = 0;  ///< the time of the last progress
};

}  // namespace attune::tests
