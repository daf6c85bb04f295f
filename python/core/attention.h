// python/core/attention.h — an attention as an object of Python, and what can be asked of it
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
  bool recording = false;  // its caller records gradients, and may pass tensors that do

  /// `parts`: score, mask, prob and sink. `captured`: names, kinds and ranks; `parameters`: names and kinds.
  Attention(const std::vector<Text>& parts, const std::vector<std::pair<nb::str, nb::str>>& lets,
            const std::vector<std::tuple<nb::str, std::string, int>>& captured,
            const std::vector<std::pair<nb::str, std::string>>& parameters, std::optional<double> scale, int target,
            int exact);

  /// A call, as Call::take and Call::bind have it.
  void run(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers) const;

  /// Compiles what a call needs; the bytes of its working memory, and of its cover.
  std::pair<std::size_t, std::size_t> prepare(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
                                              const nb::tuple& numbers) const;

  /// The least time of a call in C alone, in seconds, over rounds of `count` calls: for attune.bench.
  double least(int rounds, int count, nb::handle named, const nb::tuple& captured) const;

  /// The lists of a cover, or None where a call needs none.
  nb::object cover(nb::handle named, const nb::tuple& captured, const nb::tuple& numbers) const;

  std::string explain() const;
  std::string describe() const;

  /// What is left of each tile, with the count of rows and columns. `where` is by the names of attune_picture.
  std::tuple<nb::bytes, std::int64_t, std::int64_t> tiles(nb::handle where, const nb::tuple& captured,
                                                          const nb::tuple& numbers) const;
  /// An SVG; q and k may be None.
  std::string draw(nb::handle where, const nb::tuple& captured, const nb::tuple& numbers, nb::handle q, nb::handle k,
                   int panels) const;
};

}  // namespace attune::python
