// runtime/engines/cover/pages.cpp — finds missing pages in a page table, and asks the cover whether a query needs them

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

/// The pages of one entry of a call.
class EntryPages {
 public:
  EntryPages(const Call& call, const Sequence& seq)
      : table_(call.forward().page_table), seq_(seq), size_(call.problem.per_entry->page_size),
        pool_(call.forward().k.shape[0]), count_((seq.kv_len + size_ - 1) / size_) {}

  /// The first page from `nth` on that does not exist, of those before `end`; else `end`.
  std::int64_t missing(std::int64_t nth, std::int64_t end) const {
    while (nth < end && number(nth) >= 0 && number(nth) < pool_) ++nth;
    return nth;
  }
  std::int64_t count() const { return count_; }
  std::int64_t size() const { return size_; }

  Error refusal(std::int64_t nth) const {
    const std::int64_t first = nth * size_, last = std::min(seq_.kv_len, first + size_) - 1;
    const std::string keys = first == last ? fmt::format("key {}", first)
                                           : fmt::format("one of keys {} to {}", first, last);
    return Error("page-table", fmt::format("page_table[{}, {}] is not a page of the pool", seq_.b, nth), {},
                 fmt::format("it is {}, a query needs {} there, and the pool has {} pages", number(nth), keys, pool_),
                 "give each key that a query needs a page of the pool");
  }

 private:
  std::int32_t number(std::int64_t nth) const {
    return static_cast<const std::int32_t*>(table_.data)[offset(table_, seq_.b, nth)];
  }

  const Tensor& table_;
  const Sequence& seq_;
  std::int64_t size_, pool_, count_;
};

/// The sizes of an entry, whose tiles of keys are its pages. A tile has few pairs, so that splitting it proves whether
/// it keeps one.
Extent page_extent(const compiler::Problem& p, const Sequence& seq, std::int64_t page_size) {
  constexpr std::int64_t pairs = 4096, most_queries = 128;
  return extent_of(p, seq, std::clamp<std::int64_t>(pairs / page_size, 1, most_queries),
                   std::min(page_size, seq.kv_len));
}

}  // namespace

void refuse_missing_pages(const Call& call) {
  const compiler::Problem& p = call.problem;
  if (!p.kv.paged()) return;
  std::optional<Tiles> tiles;
  std::vector<Run> runs;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence(p, b);
    const EntryPages pages(call, seq);
    const std::int64_t first = pages.missing(0, pages.count());
    if (first == pages.count() || seq.q_len == 0) continue;
    if (!tiles) tiles.emplace(call.mod, call.args);
    const Extent extent = page_extent(p, seq, pages.size());
    const auto heads = static_cast<std::int32_t>(call.mod.cover.by_head ? p.q_heads
                                                                        : std::min<std::int64_t>(p.q_heads, 1));
    for (std::int32_t h = 0; h < heads; ++h)
      for (std::int32_t tile = 0; tile < extent.q_tiles(); ++tile) {
        runs.clear();
        tiles->row(extent, static_cast<std::int32_t>(b), h, tile, runs);
        for (const Run& run : runs)
          if (const std::int64_t nth = pages.missing(std::max<std::int64_t>(first, run.begin), run.end); nth < run.end)
            throw pages.refusal(nth);
      }
  }
}

}  // namespace attune::runtime
