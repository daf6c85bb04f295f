// tests/numerics/corpus.h — mods that people write, and harder ones: goldens, gradients and engines are tested on them
#pragma once

#include <attune/attune.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace attune::tests {

/// How to fill a captured tensor.
enum class Fill : std::uint8_t {
  normal,     ///< standard normal
  positive,   ///< between 0.5 and 1.5
  slopes,     ///< 2^(-8 (i + 1) / n)
  documents,  ///< sorted ids, a new one every few positions
  any_ids,    ///< unsorted ids
  indices,    ///< integers within [0, limit)
  lengths,    ///< integers within [1, limit]
  ramp,       ///< 0, limit, 2 * limit, …
  coins,      ///< true half of the time
};

struct CorpusCapture {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  Fill fill = Fill::normal;
  int limit = 0;
};

/// A mod as text, with sizes that fit its captures: batch 2, 4 query heads, 24 queries, 28 keys by default.
struct CorpusMod {
  std::string name, score = "s", mask = "true", prob{}, sink{};
  std::vector<CorpusCapture> captures{};
  std::vector<std::pair<std::string, double>> params{};  ///< Float, or Int if the name starts with a capital
  /// Differentiable at the random data: it never hits a kink exactly, so differences must agree.
  bool smooth = true;
};

inline constexpr int corpus_batch = 2, corpus_heads = 4, corpus_q = 24, corpus_kv = 28;

const std::vector<CorpusMod>& corpus();

/// The Attention of a mod, with its data.
struct Made {
  Attention attention;
  std::map<std::string, Tensor> captures;
  std::vector<std::shared_ptr<void>> memory;
};
/// f32 captures get the type `floats`: f64 for differences, which need small steps.
Made make(const CorpusMod& mod, std::uint64_t seed, DType floats = DType::f32);

}  // namespace attune::tests
