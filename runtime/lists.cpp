// runtime/lists.cpp — hand-made covers are checked whole before anything is made of them
#include "runtime/lists.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "runtime/tensor.h"
#include <attune/error.h>

namespace attune::runtime {
namespace {

enum class Form : std::uint8_t { Blocks, Intervals };

Error wrong_type(Form form, std::string problem, std::string why, std::string fix) {
  return form == Form::Blocks ? Error("block-list-type", problem, {}, why, fix)
                              : Error("interval-type", problem, {}, why, fix);
}
Error wrong_shape(Form form, std::string problem, std::string why, std::string fix) {
  return form == Form::Blocks ? Error("block-list-shape", problem, {}, why, fix)
                              : Error("interval-shape", problem, {}, why, fix);
}

/// i32, of the extents given, but for the first two, which may be 1.
void require(const Tensor& t, const char* name, const Extent& e, std::initializer_list<std::int64_t> rest, Form form) {
  if (!t.given() || t.dtype != DType::i32)
    throw wrong_type(form, fmt::format("{} is no tensor of i32", name),
                     t.given() ? fmt::format("it is {}", t.describe()) : "it is missing", "convert it to i32");
  const auto fits = [](std::int64_t extent, std::int64_t all) { return extent == 1 || extent == all; };
  bool right = t.rank == static_cast<int>(2 + rest.size()) && fits(t.shape[0], e.batch) && fits(t.shape[1], e.heads);
  std::string wanted = fmt::format("[{} or 1, {} or 1", e.batch, e.heads);
  std::size_t d = 2;
  for (const std::int64_t extent : rest) {
    wanted += fmt::format(", {}", extent);
    right = right && t.shape[d++] == extent;
  }
  if (!right)
    throw wrong_shape(form, fmt::format("{} does not have the shape that the lengths and tiles ask for", name),
                      fmt::format("it is {}, not {}]", t.describe(), wanted),
                      "give one list for each batch entry, head and row, or 1 for all of them");
  if (t.device.kind != Device::Kind::cpu)
    throw wrong_type(form, fmt::format("{} is not in the memory of the host", name),
                     fmt::format("it is {}", t.describe()), "copy it to the host first");
}

std::int32_t element(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j = 0) {
  const std::int64_t at = (t.shape[0] == 1 ? 0 : b) * t.strides[0] + (t.shape[1] == 1 ? 0 : h) * t.strides[1] +
                          i * t.strides[2] + (t.rank > 3 ? j * t.strides[3] : 0);
  return static_cast<const std::int32_t*>(t.data)[at];
}

TileLists begun(const Extent& e, bool by_batch, bool by_head) {
  TileLists out;
  out.extent = e;
  out.by_batch = by_batch;
  out.by_head = by_head;
  out.offsets.push_back(0);
  out.total = std::int64_t{e.batch} * e.heads * e.q_tiles() * e.kv_tiles();
  return out;
}

/// A row of tiles as runs.
void append(TileLists& out, std::span<const Keep> row) {
  const std::size_t start = out.runs.size();
  const std::int64_t copies = (out.by_batch ? 1 : out.extent.batch) *
                              (out.by_head ? std::int64_t{1} : out.extent.heads);
  for (std::size_t t = 0; t < row.size(); ++t) {
    if (row[t] == Keep::None) continue;
    const auto at = static_cast<std::int32_t>(t);
    if (out.runs.size() > start && out.runs.back().end == at && out.runs.back().keep == row[t])
      ++out.runs.back().end;
    else
      out.runs.push_back({at, at + 1, row[t]});
    (row[t] == Keep::All ? out.all : out.some) += copies;
  }
  out.offsets.push_back(static_cast<std::int64_t>(out.runs.size()));
}

}  // namespace

TileLists from_blocks(const BlockLists& blocks, const Extent& e) {
  struct Part {
    const char *counts_name, *indices_name;
    const Tensor &counts, &indices;
    Keep keep;
  };
  std::vector<Part> parts{{"kv_num_blocks", "kv_indices", blocks.counts, blocks.indices, Keep::Some}};
  if (blocks.full_counts.given() || blocks.full_indices.given())
    parts.push_back({"full_kv_num_blocks", "full_kv_indices", blocks.full_counts, blocks.full_indices, Keep::All});
  bool by_batch = false, by_head = false;
  for (const Part& p : parts) {
    require(p.counts, p.counts_name, e, {e.q_tiles()}, Form::Blocks);
    require(p.indices, p.indices_name, e, {e.q_tiles(), e.kv_tiles()}, Form::Blocks);
    for (const Tensor* t : {&p.counts, &p.indices}) {
      by_batch |= t->shape[0] > 1;
      by_head |= t->shape[1] > 1;
    }
  }
  TileLists out = begun(e, by_batch, by_head);
  std::vector<Keep> row(static_cast<std::size_t>(e.kv_tiles()));
  for (std::int32_t b = 0; b < (by_batch ? e.batch : 1); ++b)
    for (std::int32_t h = 0; h < (by_head ? e.heads : 1); ++h)
      for (std::int32_t t = 0; t < e.q_tiles(); ++t) {
        std::fill(row.begin(), row.end(), Keep::None);
        for (const Part& p : parts) {
          const std::int32_t count = element(p.counts, b, h, t);
          if (count < 0 || count > e.kv_tiles())
            throw Error("block-list-count", fmt::format("{}[{}, {}, {}] is {}", p.counts_name, b, h, t, count), {},
                        fmt::format("a row has {} blocks of keys", e.kv_tiles()), "count the blocks of each row");
          for (std::int32_t i = 0; i < count; ++i) {
            const std::int32_t at = element(p.indices, b, h, t, i);
            if (at < 0 || at >= e.kv_tiles())
              throw Error("block-list-index", fmt::format("{}[{}, {}, {}, {}] is {}", p.indices_name, b, h, t, i, at),
                          {}, fmt::format("blocks of keys are numbered from 0 to {}", e.kv_tiles() - 1),
                          "give the tile sizes that the lists were made for");
            Keep& keep = row[static_cast<std::size_t>(at)];
            if (keep != Keep::None)
              throw Error("block-list-twice",
                          keep == p.keep ? fmt::format("block {} stands twice in row {} of {}", at, t, p.indices_name)
                                         : fmt::format("block {} of row {} is both partial and full", at, t),
                          {}, fmt::format("for batch entry {} and head {}", b, h), "list each block once");
            keep = p.keep;
          }
        }
        append(out, row);
      }
  return out;
}

OwnedBlocks to_blocks(const TileLists& lists) {
  const Extent& e = lists.extent;
  OwnedBlocks out{.batch = lists.by_batch ? e.batch : 1,
                  .heads = lists.by_head ? e.heads : 1,
                  .rows = lists.along_q ? e.kv_tiles() : e.q_tiles(),
                  .columns = lists.along_q ? e.q_tiles() : e.kv_tiles(),
                  .counts = {},
                  .indices = {},
                  .full_counts = {},
                  .full_indices = {}};
  const auto columns = static_cast<std::size_t>(out.columns);
  const std::size_t count = lists.offsets.size() - 1;
  for (auto* counts : {&out.counts, &out.full_counts}) counts->assign(count, 0);
  for (auto* indices : {&out.indices, &out.full_indices}) indices->assign(count * columns, 0);
  for (std::size_t row = 0; row < count; ++row)
    for (std::int64_t i = lists.offsets[row]; i < lists.offsets[row + 1]; ++i) {
      const Run& r = lists.runs[static_cast<std::size_t>(i)];
      auto& counts = r.keep == Keep::All ? out.full_counts : out.counts;
      auto& indices = r.keep == Keep::All ? out.full_indices : out.indices;
      for (std::int32_t t = r.begin; t < r.end; ++t)
        indices[row * columns + static_cast<std::size_t>(counts[row]++)] = t;
    }
  return out;
}

BlockLists OwnedBlocks::view() {
  const std::array<std::int64_t, 4> shape{batch, heads, rows, columns};
  const auto of = [&](std::vector<std::int32_t>& v, std::size_t rank) {
    return Tensor(v.data(), DType::i32, std::span(shape.data(), rank));
  };
  return {of(counts, 3), of(indices, 4), of(full_counts, 3), of(full_indices, 4)};
}

TileLists from_intervals(const RowIntervals& intervals, const Extent& e) {
  if (intervals.all.empty() || intervals.all.size() > 2)
    throw Error("interval-count", fmt::format("{} intervals are given for each query", intervals.all.size()), {},
                "a query sees the keys of one interval or of two", "give the begin and end of each");
  bool by_batch = false, by_head = false;
  for (const RowIntervals::One& one : intervals.all) {
    require(one.begin, "begin", e, {e.q_len}, Form::Intervals);
    require(one.end, "end", e, {e.q_len}, Form::Intervals);
    for (const Tensor* t : {&one.begin, &one.end}) {
      by_batch |= t->shape[0] > 1;
      by_head |= t->shape[1] > 1;
    }
  }
  TileLists out = begun(e, by_batch, by_head);
  struct Segment {
    std::int32_t begin, end;
  };
  const auto tiles = static_cast<std::size_t>(e.kv_tiles());
  std::vector<Keep> row(tiles);
  // For each tile of keys: of how many queries it keeps some, and all. As differences along the row.
  std::vector<std::int32_t> some(tiles + 1), all(tiles + 1);
  for (std::int32_t b = 0; b < (by_batch ? e.batch : 1); ++b)
    for (std::int32_t h = 0; h < (by_head ? e.heads : 1); ++h)
      for (std::int32_t t = 0; t < e.q_tiles(); ++t) {
        std::fill(some.begin(), some.end(), 0);
        std::fill(all.begin(), all.end(), 0);
        const std::int32_t first = t * e.tile_q, last = std::min(e.q_len, first + e.tile_q);
        for (std::int32_t q = first; q < last; ++q) {
          std::array<Segment, 2> segments{};
          std::size_t n = 0;
          for (const RowIntervals::One& one : intervals.all) {
            const Segment s{element(one.begin, b, h, q), element(one.end, b, h, q)};
            if (s.begin > s.end)
              throw Error("interval-order",
                          fmt::format("the interval of query {} begins at {} and ends at {}", q, s.begin, s.end), {},
                          fmt::format("for batch entry {} and head {}", b, h),
                          "give begin <= end; begin == end sees nothing");
            if (s.begin < 0 || s.end > e.kv_len)
              throw Error("interval-range", fmt::format("the interval of query {} is {} to {}", q, s.begin, s.end), {},
                          fmt::format("there are {} keys (batch entry {}, head {})", e.kv_len, b, h),
                          "keep the intervals within the keys");
            if (s.begin < s.end) segments[n++] = s;
          }
          if (n == 2) {
            if (segments[1].begin < segments[0].begin) std::swap(segments[0], segments[1]);
            if (segments[1].begin <= segments[0].end) {
              segments[0].end = std::max(segments[0].end, segments[1].end);
              n = 1;
            }
          }
          std::int32_t reached = 0;  // a tile that both intervals touch counts once
          for (std::size_t i = 0; i < n; ++i) {
            const Segment& s = segments[i];
            const std::int32_t from = std::max(reached, s.begin / e.tile_kv), to = (s.end - 1) / e.tile_kv + 1;
            if (from < to) {
              ++some[static_cast<std::size_t>(from)];
              --some[static_cast<std::size_t>(to)];
            }
            reached = to;
            const std::int32_t whole = (s.begin + e.tile_kv - 1) / e.tile_kv,
                               end = s.end == e.kv_len ? e.kv_tiles() : s.end / e.tile_kv;
            if (whole >= end) continue;
            ++all[static_cast<std::size_t>(whole)];
            --all[static_cast<std::size_t>(end)];
          }
        }
        std::int32_t seen = 0, full = 0;
        for (std::size_t k = 0; k < tiles; ++k) {
          seen += some[k];
          full += all[k];
          row[k] = full == last - first ? Keep::All : seen > 0 ? Keep::Some : Keep::None;
        }
        append(out, row);
      }
  return out;
}

}  // namespace attune::runtime
