// python/core/attention.h — an attention as a Python object: its calls, its queries and its pictures
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/core/handle.h"

namespace attune::python {

using Text = std::optional<nb::str>;

struct Attention : Handle {
  /// `parts`: score, mask, prob and sink. `captured`: names, kinds and ranks; `parameters`: names and kinds.
  Attention(const std::vector<Text>& parts, const std::vector<std::pair<nb::str, nb::str>>& lets,
            const std::vector<std::tuple<nb::str, std::string, int>>& captured,
            const std::vector<std::pair<nb::str, std::string>>& parameters, std::optional<double> scale, int target,
            int exact);

  /// A call; the arguments are those of Call::take and Call::bind.
  void run(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers) const;

  /// Compiles what a call needs; the bytes of its working memory, and of its cover.
  std::pair<std::size_t, std::size_t> prepare(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
                                              const nb::tuple& numbers) const;

  /// Starts to compile what a call needs on another thread.
  void prepare_async(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
                     const nb::tuple& numbers) const;

  /// The least time of a call in C alone, in seconds, over rounds of `count` calls: for attune.bench.
  double least(int rounds, int count, nb::handle named, const nb::tuple& captured) const;

  /// The lists of a cover, or None if a call needs none.
  nb::object cover(nb::handle named, const nb::tuple& captured, const nb::tuple& numbers) const;

  std::string explain() const;
  std::string describe() const;

  /// The kind of each tile, with the counts of rows and columns. `where` has the names of attune_picture's members.
  std::tuple<nb::bytes, std::int64_t, std::int64_t> tiles(nb::handle where, const nb::tuple& captured,
                                                          const nb::tuple& numbers) const;
  /// An SVG; q and k may be None.
  std::string draw(nb::handle where, const nb::tuple& captured, const nb::tuple& numbers, nb::handle q, nb::handle k,
                   int panels) const;
};

}  // namespace attune::python
