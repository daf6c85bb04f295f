// examples/runtime/cache.h — attention over a paged KV cache: the one place where the decoder meets attune
#pragma once

#include <attune/attune.h>

#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "model.h"
#include "pool.h"

namespace runtime {

/// --mod NAME: what is special about the attention, each a line of attune's language.
struct Mod {
  std::string name, says;
  attune::Attention attention;
};
inline std::vector<Mod> mods(const Config& c) {
  using namespace attune;
  return {{"causal", "each token sees itself and those before it", {.mask = mods::causal()}},
          {"window", "the model's window: its last tokens alone", {.mask = mods::sliding_window(c.window)}},
          {"softcap", "causal, scores bounded smoothly", {.score = mods::softcap(c.cap), .mask = mods::causal()}},
          {"alibi", "causal, scores fall with the distance", {.score = mods::alibi(c.heads), .mask = mods::causal()}}};
}

/// The tokens that a step feeds, one sequence after another, and where they belong.
struct Batch {
  std::vector<int> tokens, positions, ends;  ///< ends: the row of each sequence's last token
  std::vector<int> starts{0}, first, lengths, pages;
  int longest = 0;
};

/// The keys and values of all layers, in pages that any sequence may take. They are f32, so that tokens are those of
/// the twin; on a GPU, a server would keep 16 bits, for which attune has its decode kernels.
class Cache {
 public:
  struct Sizes {
    int pages, page_size, most_pages;  ///< in all, positions of one, of a sequence
  };
  Cache(attune::Device device, void* stream, const Config& config, Sizes sizes, Pool& pool)
      : config_(config), sizes_(sizes), pool_(pool), stream_(stream), kept_(device), step_(device) {
    for (int l = 0; l < config.layers; ++l) {
      // A page holds positions, then heads, as servers have them; attune reads heads, then positions.
      const auto made = [&] {
        return kept_.tensor(attune::DType::f32, {sizes.pages, sizes.page_size, config.kv_heads, config.d})
            .permuted({0, 2, 1, 3});
      };
      layers_.push_back({made(), made()});
    }
    for (int p = 0; p < sizes.pages; ++p) free_.push_back(p);
  }

  /// Makes room for a sequence of this length. False if all pages are taken.
  bool grow(std::vector<int>& pages, int length) {
    while (static_cast<int>(pages.size()) * sizes_.page_size < length) {
      if (free_.empty()) return false;
      pages.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void release(std::vector<int>& pages) {
    free_.insert(free_.end(), pages.begin(), pages.end());
    pages.clear();
  }

  /// Once a step, before its layers.
  void begin(const Batch& batch) {
    step_.clear();
    const auto sequences = static_cast<std::int64_t>(batch.lengths.size());
    longest_ = batch.longest;
    starts_ = sent(batch.starts, {sequences + 1});
    first_ = sent(batch.first, {sequences});
    lengths_ = sent(batch.lengths, {sequences});
    table_ = sent(batch.pages, {sequences, sizes_.most_pages});
    work_ = {};
    moved_ = {};
  }

  void attend(const attune::Attention& attention, int layer, const Rows& qkv, const Rows& o) {
    using namespace attune;
    const Config& c = config_;
    const bool here = step_.device() == Device::cpu();
    if (!here && !moved_.given()) {
      moved_ = step_.tensor(DType::f32, {qkv.count, qkv.width});
      answers_ = step_.tensor(DType::f32, {o.count, o.width});
    }
    if (!here) copy(qkv.tensor(), moved_, stream_);
    // q, k and v are columns of the rows that one product made: views, nothing is moved.
    auto* const rows = static_cast<float*>(here ? qkv.x : moved_.data);
    const auto heads = [&](int from, int count) {
      return Tensor(rows + from * c.d, DType::f32, {qkv.count, count, c.d}, {qkv.width, c.d, 1}, step_.device());
    };
    const auto& [k, v] = layers_[static_cast<std::size_t>(layer)];
    Resources with{.executor = pool_.executor(), .stream = stream_};
    append({.k_new = heads(c.heads, c.kv_heads),
            .v_new = heads(c.heads + c.kv_heads, c.kv_heads),
            .k = k,
            .v = v,
            .page_table = table_,
            .kv_len = lengths_,
            .cu_seqlens = starts_},
           with);
    const Forward call{.q = heads(0, c.heads),
                       .k = k,
                       .v = v,
                       .o = Tensor(here ? o.x : answers_.data, DType::f32, {o.count, c.heads, c.d}, {}, step_.device()),
                       .cu_seqlens_q = starts_,
                       .kv_len = lengths_,
                       .page_table = table_,
                       .q_offsets = first_,
                       .max_q_len = longest_};
    if (work_.empty()) work_ = step_.bytes(attention.workspace(call, with));  // every layer's call has the same sizes
    with.workspace = work_;
    attention.run(call, with);
    if (!here) copy(answers_, o.tensor(), stream_);  // waits for the stream
  }

 private:
  attune::Tensor sent(const std::vector<int>& values, std::initializer_list<std::int64_t> shape) {
    const attune::Tensor here(values.data(), attune::DType::i32, shape);
    if (step_.device() == attune::Device::cpu()) return here;
    const attune::Tensor there = step_.tensor(attune::DType::i32, shape);
    copy(here, there, stream_);
    return there;
  }

  Config config_;
  Sizes sizes_;
  int longest_ = 0;
  Pool& pool_;
  void* stream_;
  Arena kept_, step_;
  std::vector<std::pair<attune::Tensor, attune::Tensor>> layers_;
  std::vector<int> free_;
  attune::Tensor starts_, first_, lengths_, table_, moved_, answers_;
  std::span<std::byte> work_;
};

}  // namespace runtime
