// runtime/engines/cpu/even_rows.h — keys or values as runs of rows with a constant stride: in place, or gathered into
// one run
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/layout.h"

namespace attune::runtime::cpu {

/// True if neighbouring keys may be scattered in memory.
inline bool are_scattered(const compiler::Problem& problem) { return problem.kv.paged() || problem.held(); }

/// The keys of one (batch entry, head), and their values.
class EvenRows {
 public:
  /// Rows that are gathered at a time, few enough to stay in the L1 cache. A multiple of the number of values that
  /// kernels add at a time, so that sums are the same as for rows in place.
  static constexpr std::int64_t gathered = 128;

  /// `memory`: space for `gathered` rows, if keys are scattered.
  EvenRows(const compiler::Problem& problem, const KeyRows& lie, std::byte* memory)
      : lie_(lie), scattered_(are_scattered(problem)), held_(problem.held() != nullptr), memory_(memory) {}

  struct Some {
    std::int64_t first, count;
    const void* data;
    std::int64_t row;  ///< elements
    const void* next;  ///< address to prefetch; these rows again if the next rows are not known
  };
  struct Of {
    const Tensor& tensor;
    std::int64_t width;
  };

  /// The address of one key, or of its value; null if it is not in memory.
  const void* at(const Tensor& t, std::int64_t key) const {
    const KeyRows::Range one = lie_.range(t, key, key + 1);
    return one.there ? element(t, one.at.origin) : nullptr;
  }

  /// Calls body(Some) for keys [range.first, range.second), in order. Runs of too few rows are gathered into one run.
  /// `after`: the address that is read after the last row, or null.
  template <class Body>
  void each(const Of& of, std::pair<std::int64_t, std::int64_t> range, const void* after, const Body& body) const {
    const auto next_at = [&](std::int64_t key, const void* otherwise) {
      const void* const row = key < range.second ? at(of.tensor, key) : nullptr;
      return row ? row : after ? after : otherwise;
    };
    for (std::int64_t key = range.first; key < range.second;) {
      const std::int64_t first = key;
      const KeyRows::Range some = lie_.range(of.tensor, key, range.second);
      if (!scattered_ || in_place(some)) {
        key += some.count;
        const void* const data = element(of.tensor, some.at.origin);
        body(Some{first, some.count, data, some.at.row, next_at(key, data)});
      } else {
        key = gather(of, some, first, std::min(range.second, first + gathered), range.second);
        body(Some{first, key - first, memory_, of.width, next_at(key, memory_)});
      }
    }
  }

 private:
  /// True if a run of rows, e.g. of a page, is long enough to be read in place. Shorter runs are gathered first, so
  /// that kernels are called for many rows at a time. Over ranks all rows are gathered, so that sums take the same
  /// number of keys at a time as on one rank.
  bool in_place(const KeyRows::Range& some) const {
    constexpr std::int64_t least = 16;
    return some.there && some.count >= least && !held_;
  }

  /// Copies rows from `first` on, up to `last` or to the first row that is read in place. Returns the first row that
  /// was not copied.
  std::int64_t gather(const Of& of, KeyRows::Range some, std::int64_t first, std::int64_t last,
                      std::int64_t end) const {
    const auto bytes = static_cast<std::size_t>(of.width) * size_of(of.tensor.dtype);
    std::byte* into = memory_;
    std::int64_t key = first;
    do {
      some.count = std::min(some.count, last - key);
      for (std::int64_t i = 0; i < some.count; ++i, into += bytes)
        some.there ? std::memcpy(into, element(of.tensor, some.at.origin + i * some.at.row), bytes)
                   : std::memset(into, 0, bytes);
      key += some.count;
      if (key < last) some = lie_.range(of.tensor, key, end);
    } while (key < last && !in_place(some));
    return key;
  }

  KeyRows lie_;
  bool scattered_, held_;
  std::byte* memory_;
};

}  // namespace attune::runtime::cpu
