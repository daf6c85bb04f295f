// tools/options/call_options.h — options that describe a call: types, sizes, where its keys are; declared once for all
// verbs
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "compiler/lower.h"
#include "tools/options/text.h"

namespace attune::tools {

struct CallOptions {
  std::string dtype = "f32";
  std::int64_t batch = 1, heads = 1, d = 128, seq = 4096;
  std::optional<std::int64_t> kv_heads, dv, kv_seq;
  std::vector<std::int64_t> lengths;       ///< of packed sequences, instead of batch, seq and kv_seq
  std::vector<std::int64_t> kv_lengths;    ///< keys of each entry, where they differ; kv_seq is the longest
  std::optional<std::int64_t> kv_random;   ///< kv_lengths are to be drawn up to this
  std::optional<std::int64_t> page_size;   ///< keys lie in pages of this size, in random order
  std::optional<std::int64_t> q_offset;    ///< position of the first query
  std::optional<std::int64_t> v_columns;   ///< values are this many columns of the keys
  std::optional<std::string> starts;       ///< of packed sequences: where they are
  std::optional<std::string> cache_dtype;  ///< of k and v, where it is not that of q
  ExactOption exact;                       ///< GPU only
  bool decode = false;                     ///< queries are the last positions of their entries

  // `group`: the heading in the help. A picture has sizes of its own: next to one, the call's lengths are only --seq
  // and --kv-seq, and the picture's heads are the call's.
  void add_types_to(CLI::App& verb, const std::string& group = "");
  void add_sizes_to(CLI::App& verb, const std::string& group = "", bool beside_picture = false);
  /// Options of a KV cache, and of the queries' positions in it.
  void add_cache_to(CLI::App& verb, const std::string& group = "", bool beside_picture = false);
  void check() const;
  /// Refuses options that a backward does not have.
  void check_for_backward() const;
  /// Fills in what follows from the options: sizes of packed sequences, lengths of entries. `has_seq`: seq was given.
  void settle(bool has_seq);
  /// Refuses fewer queries than keys if the mask depends on the queries' positions and no option gives them.
  void check_position(const compiler::LoweredMod& lowered) const;

  DType type() const { return call_type(dtype); }
  DType out_type() const;                                                 ///< of o
  DType kept_type() const { return cache_dtype ? DType::e4m3 : type(); }  ///< of k and v
  std::string types_text() const { return cache_dtype ? dtype + " beside " + *cache_dtype : dtype; }
  std::int64_t of_kv_heads() const { return kv_heads.value_or(heads); }
  std::int64_t of_kv_seq() const { return kv_seq.value_or(seq); }
  std::int64_t of_dv() const { return v_columns ? *v_columns : dv.value_or(d); }
  /// Position of the first query, of the entry with the most keys.
  std::int64_t first_query() const { return decode ? of_kv_seq() - seq : q_offset.value_or(0); }
  bool packed() const { return !lengths.empty(); }
  std::string lengths_text() const;  ///< queries and keys, for human readers

 private:
  void check_products() const;            ///< of sizes that are in range
  void check_cache() const;               ///< what goes with --decode, and what does not
  void read_keys(std::string_view keys);  ///< N, N,... or random:N
};

/// A new contiguous tensor, zeroed.
Owned made(DType type, std::span<const std::int64_t> shape, const Device& device = Device::cpu());

/// Normally distributed numbers, as in a model, the same in every run. A million of them repeat: drawn one by
/// one, a bias for each pair of 2048 positions and 16 heads took 6 s.
class Data {
 public:
  explicit Data(Device device = Device::cpu()) : device_(device) {}
  /// Tensors of a GPU that this machine need not have: they have addresses but no memory.
  static Data described();

  Owned normal(DType type, const std::vector<std::int64_t>& shape);
  Owned fill(DType type, const std::vector<std::int64_t>& shape, const std::function<double(std::int64_t)>& value);
  Owned zeros(DType type, const std::vector<std::int64_t>& shape) const;
  /// Of the shape of another tensor.
  Owned zeros(DType type, const Tensor& like) const {
    return zeros(type, {like.shape.begin(), like.shape.begin() + like.rank});
  }
  const Device& device() const { return device_; }

 private:
  Owned at_an_address(DType type, const std::vector<std::int64_t>& shape) const;

  Device device_;
  bool described_ = false;
  mutable std::uintptr_t next_ = 1 << 20;  ///< the address of the next tensor that is described
  std::mt19937 dice_{7};
  std::normal_distribution<float> normal_;
};

/// The tensors of a forward call, in the memory of `data`'s device; results start as zeros.
struct ForwardTensors {
  ForwardTensors(const CallOptions& options, Data& data);
  Forward call() const;

  Owned q, k, v, o, lse;
  Owned starts, kv_starts;  ///< of packed sequences
  std::int64_t longest = 0, longest_kv = 0;
  Owned kv_len, q_offsets, page_table;  ///< of caches whose entries have lengths or pages
  std::int32_t q_offset = 0;

 private:
  void make_cache(const CallOptions& options, Data& data);
};

/// The tensors of a backward call besides those of its forward.
struct BackwardTensors {
  BackwardTensors() = default;
  BackwardTensors(const CallOptions& options, Data& data);
  /// Takes the forward's tensors, results included.
  Backward call(const ForwardTensors& forward) const;

  Owned grad_o, dq, dk, dv;
};

struct DeviceCall : CallOptions {
  std::optional<int> arch;
  std::optional<std::string> kernel;
  bool max = false, as_packed = false;

  DeviceCall() {
    dtype = "bf16";
    seq = 8192;
  }
  /// `beside_picture`: --q-len and --kv-len are the picture's, so the call's lengths are only --seq and --kv-seq.
  void add_to(CLI::App& verb, bool beside_picture = false);
  void check() const;
  /// The key by which kernels are chosen, from tensors of this call that have no memory. `otherwise`: the arch if none
  /// is given.
  codegen::CallSpec spec(const compiler::LoweredMod& lowered, int otherwise = 90) const;
};

}  // namespace attune::tools
