// tests/fuzz/result_file.h — results of random calls in a file, and two machines' results compared
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/numerics/agree.h"

namespace attune::tests {

/// An output of a call as a file keeps it: up to 512 of its elements, and a digest of the bits of all.
struct KeptResult {
  std::string type;
  std::size_t size = 0;
  std::uint64_t digest = 0;
  std::vector<float> sample;

  KeptResult() = default;
  KeptResult(const std::string& type, const std::vector<double>& elements);
  /// One line of a file; throws a std::runtime_error for a line that is none.
  std::string line(const std::string& name) const;
  static std::pair<std::string, KeptResult> of_line(const std::string& line);
};

/// Writes each result to one file, and compares it with that of the same call in another one. Any thread may add.
class ResultFiles {
 public:
  /// Paths; empty for no file.
  ResultFiles(const std::string& record, const std::string& against);

  bool used() const { return record_ || !against_.empty(); }
  void add(std::uint64_t seed, const Observed& result);
  /// A table: for each output and type, how many have the same bits, and how far the others are apart. Empty if there
  /// is nothing to compare with.
  std::string table() const;
  /// The results that differ by more than the allowance for one engine's error; empty if there are none.
  const std::string& apart() const { return apart_; }

 private:
  struct Row {
    std::size_t results = 0, same = 0;            ///< results, and those of which all bits are equal
    std::size_t elements = 0, same_elements = 0;  ///< of the samples
    double most_of_allowance = 0, most_of_own_error = 0;
  };
  void compare(const std::string& name, const Observed& result, const KeptResult& here, const KeptResult& there);

  mutable std::mutex mutex_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> record_{nullptr, &std::fclose};
  std::map<std::string, KeptResult> against_;
  std::map<std::string, Row> rows_;
  std::string apart_;
};

}  // namespace attune::tests
