// runtime/engines/cover/tiles.h — a cover at real sizes: which tiles are empty, full or partial, on demand or as lists
#pragma once

#include <functional>
#include <memory>

#include "compiler/bind.h"
#include "compiler/cover.h"
#include "compiler/lower.h"
#include "ir/eval.h"
#include "runtime/engines/call.h"
#include "runtime/engines/layout.h"

namespace attune::runtime {

/// Throws an Error if the mask may keep a key whose page does not exist: engines would take zeros for it. Reads only
/// the page table, on the host, and, if a page is missing, captured tensors.
void refuse_missing_pages(const Call& call);

/// Reads for a cover's expressions: captures in the first slots, their summaries after them. Least and Greatest are
/// exact for any box of elements, from blocks at several scales along the last two dimensions: O(log^2) of the box's
/// size. A tensor of plain i32 is not copied: its data must outlive this object.
class Summaries {
 public:
  Summaries(std::span<const Tensor> captures, std::span<const compiler::Summary> wanted);
  ~Summaries();
  Summaries(Summaries&&) noexcept;

  const ir::ReadCapture& read() const { return read_; }

 private:
  struct Data;
  std::vector<std::shared_ptr<const Data>> data_;  ///< by capture; null where no summary is wanted
  ir::ReadCapture read_;
};

enum class Keep : std::uint8_t { None, Some, All };

/// The sizes to evaluate a cover at: numbers of queries and keys, and the positions of the first ones. The end of an
/// axis may cut its last tile short.
struct Extent {
  std::int32_t batch = 1, heads = 1, q_len = 0, kv_len = 0, q_offset = 0, kv_offset = 0;
  std::int32_t kv_after = 0;  ///< keys after these that expressions see: at.kv_len includes them
  std::int32_t tile_q = 128, tile_kv = 128;

  std::int32_t q_tiles() const { return (q_len + tile_q - 1) / tile_q; }
  std::int32_t kv_tiles() const { return (kv_len + tile_kv - 1) / tile_kv; }
};
/// The pairs of one batch entry of a call, for expressions that see its own lengths and positions.
Extent extent_of(const compiler::Problem& problem, const Sequence& seq, std::int64_t tile_q, std::int64_t tile_kv);

/// A run of neighbouring tiles of one kind: [begin, end) in tiles.
struct Run {
  std::int32_t begin, end;
  Keep keep;  ///< Some or All
  bool operator==(const Run&) const = default;
};

/// Runs for every row of tiles, in the order (batch, head, tile). Where the mask does not depend on the batch entry or
/// the head, all of them share one.
struct TileLists {
  Extent extent;
  bool by_batch = false, by_head = false, along_q = false;
  std::vector<std::int64_t> offsets;  ///< has rows + 1 elements
  std::vector<Run> runs;
  std::int64_t some = 0, all = 0, total = 0;  ///< tiles, counted for every batch and head
  std::int64_t asked = 0;                     ///< evaluations of bands, verdicts and the mask that this took
  std::size_t bytes() const { return offsets.size() * sizeof offsets[0] + runs.size() * sizeof runs[0]; }
};

/// The number of evaluations that take about 0.1 s; `cost`: operations per evaluation.
std::int64_t pause_of(double cost);

class Tiles {
 public:
  /// Keeps a reference to the Mod: it and the data of the captures must outlive this object. Computes summaries here,
  /// once.
  Tiles(const compiler::LoweredMod& lowered, const compiler::Args& args);
  explicit Tiles(const compiler::LoweredMod& lowered) : Tiles(lowered, compiler::args(lowered)) {}

  /// Which pairs of one tile the mask keeps. None and All are always proven; Some is returned only after splitting the
  /// tile.
  Keep keep(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_q, std::int32_t tile_kv) const;

  /// The tiles to visit: along kv for a tile of queries, along q for a tile of keys. Other tiles cost no work.
  void row(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_q, std::vector<Run>& into) const;
  void column(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_kv, std::vector<Run>& into) const;

  /// `row` for the tiles of queries [begin, end), if the cover's bands are exact there: one evaluation per tile,
  /// whatever its size. `ends` gets the size of `into` after each tile. Otherwise returns false, and what was added is
  /// meaningless.
  bool rows_by_bands(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t begin, std::int32_t end,
                     std::vector<Run>& into, std::vector<std::int32_t>& ends) const;

  /// Called with the fraction of a long task that is done, about ten times a second, or after each evaluation that
  /// takes longer. An exception ends the task.
  using Progress = std::function<void(double share)>;

  /// `progress` is for one thread.
  TileLists lists(const Extent& e, bool along_q = false, int threads = 1, const Progress& progress = {}) const;

  /// Pairs kept over all batch entries and heads; nothing if the bands are not exact. O(batches heads queries).
  std::optional<std::int64_t> live(const Extent& e) const;

  /// The number of operations of the most expensive evaluation: of a pair, a tile or a row of tiles.
  double cost() const;

 private:
  struct Rectangle {
    std::int32_t q0 = 0, q1 = 0, kv0 = 0, kv1 = 0;
  };
  class Asker;
  /// For conditions that do not vary within a tile. Kernels evaluate the same conditions in f32.
  ir::Precision precision() const { return rounds_ ? ir::Precision::f32 : ir::Precision::f64; }
  const compiler::Cover& cover_;
  Summaries summaries_;
  std::vector<double> params_;
  const ir::Program &verdict_, &mask_, &along_kv_, &along_q_;
  const std::vector<std::int32_t>&q_periods_, &kv_periods_;
  bool rounds_;  ///< true if the mask may differ between f64 and f32
};

}  // namespace attune::runtime
