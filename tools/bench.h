// tools/bench.h — what attune bench measures on any engine: options, attentions, data
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "runtime/attention/offline/shape.h"
#include "tools/progress.h"
#include "tools/text.h"

namespace attune::tools {

struct BenchOptions {
  std::vector<std::string> rows;
  TextOptions text;
  std::string target = "auto", dtype = "f32";
  std::int64_t batch = 1, heads = 1, d = 128, seq = 4096;
  std::optional<std::int64_t> kv_heads, dv, kv_seq;
  std::vector<std::int64_t> lengths;      ///< of packed sequences, instead of batch, seq and kv_seq; GPU only
  std::vector<std::int64_t> kv_lengths;   ///< keys of each entry, where they differ; kv_seq is the longest
  std::optional<std::int64_t> kv_random;  ///< kv_lengths are to be drawn up to this
  std::optional<std::int64_t> page_size;  ///< a paged KV cache of so many keys a page, in random order
  std::vector<int> threads{1};
  double seconds = 1;
  std::optional<std::string> kernel;  ///< GPU only, in the form that codegen::variant reads
  ExactOption exact;                  ///< GPU only
  ProgressOption progress;
  std::optional<std::string> cover;          ///< GPU only: how often tiles are listed
  std::optional<std::string> starts;         ///< of packed sequences: where they are
  std::optional<std::string> cache_dtype;    ///< of k and v, where it is not that of q
  std::optional<std::string> save, compare;  ///< results kept in files: see tools/history.h
  bool backward = false, step = false, grads = false, json = false, paced = false;
  std::optional<int> graph;  ///< GPU only: calls of a graph
  bool decode = false;       ///< queries are the last positions of their entries

  void add_to(CLI::App& verb);               ///< what is measured: rows, expressions, types, sizes
  void add_verb_options_to(CLI::App& verb);  ///< how it is measured, and where results are kept
  void check() const;
  void check_for_host() const;  ///< refuses what is for kernels of a GPU
  /// Puts in what follows from the options: sizes of packed sequences, lengths of entries. `has_seq`: seq was given.
  void settle(bool has_seq);

  enum class Direction : std::uint8_t { forward, backward, step };  ///< a step: the forward, then the backward
  Direction direction() const { return step ? Direction::step : backward ? Direction::backward : Direction::forward; }
  bool has_backward() const { return direction() != Direction::forward; }
  DType type() const { return call_type(dtype); }
  DType out_type() const { return runtime::usual_out(type()); }           ///< of o
  DType kept_type() const { return cache_dtype ? DType::e4m3 : type(); }  ///< of k and v
  std::string types_text() const { return cache_dtype ? dtype + " beside " + *cache_dtype : dtype; }
  std::int64_t of_kv_heads() const { return kv_heads.value_or(heads); }
  std::int64_t of_kv_seq() const { return kv_seq.value_or(seq); }
  bool packed() const { return !lengths.empty(); }
  /// Set if it is not the default of its type. The text is for human readers, after other words of a call.
  std::optional<bool> unusually_exact() const;
  std::string exact_text() const;
  std::int64_t of_dv() const { return dv.value_or(d); }
  std::string lengths_text() const;      ///< queries and keys, for human readers
  nlohmann::ordered_json shape() const;  ///< a call's type and sizes, as lines of JSON have them

 private:
  void check_products() const;            ///< of sizes that are in range
  void read_keys(std::string_view keys);  ///< N, N,... or random:N
};

/// The kernel that --kernel names; it is one that the options' direction has.
/// Has a backward, or a forward, the preferred kernel?
bool is_of(const codegen::Preference& preference, bool backward);
std::optional<codegen::Preference> preference_of(const BenchOptions& options);

/// Numbers that are the same in every run: normally distributed, as a model's are. On a device, a million of them,
/// repeated.
class Data {
 public:
  explicit Data(Device device = Device::cpu()) : device_(device) {}

  Owned normal(DType type, const std::vector<std::int64_t>& shape);
  Owned fill(DType type, const std::vector<std::int64_t>& shape, const std::function<double(std::int64_t)>& value);
  Owned zeros(DType type, const std::vector<std::int64_t>& shape) const;
  const Device& device() const { return device_; }

 private:
  Device device_;
  std::mt19937 dice_{7};
  std::normal_distribution<float> normal_;
};

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
std::string_view name_of(BenchOptions::Direction direction);
/// For the forward, over the pairs that the mask keeps. The captures of `one` are on the host.
double forward_flop(const Case& one, const BenchOptions& options);
/// The same for what the options ask for: two products a pair forward, five backward.
double flop_of(const Case& one, const BenchOptions& options);

/// The bytes of keys and values that some query's mask keeps, each once: what a decoder's step has to read. Where the
/// mask varies with the heads that share keys, the mean of theirs. The captures of `one` are on the host.
double kept_bytes(const Case& one, const BenchOptions& options);

/// Pairs in all tiles of `tile_q` queries by `tile_kv` keys that keep at least one pair, over all heads. The captures
/// of `one` are on the host.
double visited_pairs(const Case& one, const BenchOptions& options, int tile_q, int tile_kv);
/// The bytes of q, k, v and o, each once.
double tensor_bytes(const BenchOptions& options);

/// The tensors of a forward call, in the memory of `data`'s device; results start as zeros.
struct ForwardTensors {
  ForwardTensors(const BenchOptions& options, Data& data);
  Forward call() const;

  Owned q, k, v, o, lse;
  Owned starts;  ///< of packed sequences
  std::int64_t longest = 0;
  Owned kv_len, q_offsets, page_table;  ///< of caches whose entries have lengths or pages
  std::int32_t q_offset = 0;

 private:
  void make_cache(const BenchOptions& options, Data& data);
};

/// The tensors of a backward call besides those of its forward.
struct BackwardTensors {
  BackwardTensors() = default;
  BackwardTensors(const BenchOptions& options, Data& data);
  /// Given what the forward gave.
  Backward call(const ForwardTensors& forward) const;

  Owned grad_o, dq, dk, dv;
};

/// Memory for the gradients of the captured tensors that have one.
struct CapturedGradients {
  CapturedGradients() = default;
  CapturedGradients(const Attention& attention, const Data& data, DType type = DType::f32);

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
};

/// Runs --target cuda.
void bench_cuda(const BenchOptions& options);

}  // namespace attune::tools
