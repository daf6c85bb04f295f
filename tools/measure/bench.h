// tools/measure/bench.h — the parts of attune bench that all engines share: options, attentions, data
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codegen/choose/choose.h"
#include "tools/options/call_options.h"
#include "tools/options/text.h"
#include "tools/output/progress.h"

namespace attune::tools {

struct BenchOptions : CallOptions {
  std::vector<std::string> rows;
  TextOptions text;
  std::string target = "auto";
  std::vector<int> threads{1};
  double seconds = 1;
  std::optional<std::string> kernel;  ///< GPU only, in the form that codegen::variant reads
  ProgressOption progress;
  std::optional<std::string> cover;          ///< GPU only: how often tiles are listed
  std::optional<std::string> save, compare;  ///< results kept in files: see History
  bool backward = false, step = false, grads = false, json = false, paced = false;
  std::optional<int> graph;  ///< GPU only: calls of a graph

  void add_to(CLI::App& verb);               ///< what is measured: rows, expressions, types, sizes, a cache
  void add_verb_options_to(CLI::App& verb);  ///< how it is measured, and where results are kept
  void check() const;
  void check_for_host() const;  ///< refuses what is for kernels of a GPU

  enum class Direction : std::uint8_t { forward, backward, step };  ///< a step: the forward, then the backward
  Direction direction() const { return step ? Direction::step : backward ? Direction::backward : Direction::forward; }
  bool has_backward() const { return direction() != Direction::forward; }
  /// Set if it is not the default of its type. The text is for human readers, after other words of a call.
  std::optional<bool> unusually_exact() const;
  std::string exact_text() const;
  nlohmann::ordered_json shape() const;  ///< a call's type and sizes, as lines of JSON have them
};

/// True if the preferred kernel belongs to a backward (or, with `backward` false, to a forward).
bool is_of(const codegen::Preference& preference, bool backward);
/// The kernel that --kernel names, which must belong to the options' direction.
std::optional<codegen::Preference> preference_of(const BenchOptions& options);

struct Case {
  std::string name;
  Attention attention;
  std::vector<Owned> captures;
};

/// The mod's digest: results with the same digest are comparable.
std::string mod_digest(const Case& one);

/// The names of the known rows.
std::vector<std::string> bench_rows();
/// What to measure: the user's expressions, else known rows.
std::vector<Case> bench_cases(const BenchOptions& options, Data& data);
/// Refuses cases whose masks depend on positions that the options leave open.
void check_positions(const std::vector<Case>& cases, const CallOptions& options);
std::string_view name_of(BenchOptions::Direction direction);
/// Flop of the forward, over the pairs that the mask keeps. The captures of `one` are on the host.
double forward_flop(const Case& one, const BenchOptions& options);
/// Flop of the direction that the options ask for: two products a pair forward, five backward.
double flop_of(const Case& one, const BenchOptions& options);

/// The bytes of keys and values that at least one query keeps, each counted once: the reads of a decode step. If the
/// mask differs among heads that share keys, their mean. The captures of `one` are on the host.
double kept_bytes(const Case& one, const BenchOptions& options);

/// Pairs in all tiles of `tile_q` queries by `tile_kv` keys that keep at least one pair, over all heads. The captures
/// of `one` are on the host.
double visited_pairs(const Case& one, const BenchOptions& options, int tile_q, int tile_kv);
/// The bytes of q, k, v and o, each once.
double tensor_bytes(const BenchOptions& options);

/// Memory for the gradients of the captured tensors that have one.
struct CapturedGradients {
  CapturedGradients() = default;
  /// `type`: none: as their tensors, except that those of f64 have gradients of f32.
  CapturedGradients(const Attention& attention, const Data& data, std::optional<DType> type = std::nullopt);

  std::vector<Owned> memory;
  std::vector<std::string> names;
  std::vector<Backward::Captured> captured;
};

/// Seconds, sorted.
struct Times {
  std::vector<double> all;
  double best() const { return all.front(); }
  double median() const { return all[all.size() / 2]; }
  double p10() const { return all[all.size() / 10]; }
  double p90() const { return all[all.size() * 9 / 10]; }
  nlohmann::ordered_json json() const;
};

/// Runs --target cuda.
void bench_cuda(const BenchOptions& options);

/// Lines of JSON in a file. Each is a result with its date, machine and version of attune.
class History {
 public:
  /// The file to add to and the file to compare with, each as NAME or FILE. They may be the same, because the second is
  /// read at once. Throws an Error if the second is missing or has lines that attune bench does not write.
  History(const std::optional<std::string>& save, const std::optional<std::string>& compare);

  /// Stores a result, which is a line of attune bench --json, and prints it: as this line, or by `print`. Then comes
  /// its comparison with earlier ones, if asked for.
  void tell(nlohmann::ordered_json line, bool as_json, const std::function<void()>& print) const;

 private:
  std::optional<nlohmann::ordered_json> note(const nlohmann::ordered_json& line) const;

  std::filesystem::path save_;
  std::vector<nlohmann::ordered_json> earlier_;
  std::string against_;
};

/// A NAME, which has no / and does not end in .jsonl, means a file below the user's state folder.
std::filesystem::path history_file(const std::string& name_or_file);

}  // namespace attune::tools
