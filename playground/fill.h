// playground/fill.h — data for a captured tensor, from a few words: slopes, documents, a random table
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engines/cover/tiles.h"
#include "runtime/machine/archive.h"
#include <attune/tensor.h>

namespace attune::playground {

struct Fill {
  /// A word of fill_words(). Empty: the default of the type.
  std::string how;
  double limit = 0;             ///< its meaning depends on the word; 0: the word's default
  std::uint64_t seed = 1;       ///< random words; tensors of one seed fit each other
  std::vector<double> numbers;  ///< of `list`: the elements, repeated from the first if there are too few
};

/// WORD, WORD:LIMIT, WORD:LIMIT:SEED, or list:1 2x3 4, where 2x3 is 2 three times. Errors name `whole`, the option that
/// contains the text.
Fill fill_of(const std::string& text, const std::string& whole);

/// The text that fill_of reads.
std::string text_of(const Fill& fill);

struct FillWord {
  std::string_view word, meaning;
};
std::span<const FillWord> fill_words();

/// The default for a tensor of this type.
std::string_view usual_word(DType type);

/// Fills a contiguous tensor in host memory. Throws an Error for an unknown word.
void fill(const Tensor& tensor, const Fill& how, const std::string& name);

/// Queries or keys for a picture: normal numbers, the same for all entries and heads.
runtime::Owned random_rows(std::int64_t rows, std::int64_t d, std::uint64_t seed, const runtime::Extent& e);

/// Standard normal numbers from a seed, the same on every machine except for the last bit of a logarithm.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed) {}
  double operator()();
  /// In [0, 1).
  double unit();

 private:
  std::uint64_t state_;
};

}  // namespace attune::playground
