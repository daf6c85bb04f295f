// runtime/ranks/schedule/keys.cpp — moves keys from their owners to a rank, one step of a schedule after another
#include "runtime/ranks/schedule/keys.h"

#include <algorithm>
#include <utility>

namespace attune::runtime::ranks {
namespace {

/// Rows of memory for each head, and the number of heads.
struct Extent {
  std::int64_t entries = 1, heads = 1, rows = 0;
};

Extent extent_of(const Rank& rank, Keys::Places places, const KeyHeads& heads, std::span<const KeyRange> ranges) {
  if (places == Keys::Places::whole) return {rank.key_entries(), heads.count(), rank.ranks().kv.rows};
  if (ranges.empty()) return {};
  return {1, ranges.front().heads, ranges.back().before + ranges.back().rows};
}

}  // namespace

Sendable::Sendable(const Carrier& carrier, const Rows& of, WorkspaceLayout& space) : rows_(of) {
  const Tensor& t = of.tensor;
  if (t.given() && t.size() > 0 && !carrier.sends(of))
    region_ = space.take<std::byte>(t.size() * static_cast<std::int64_t>(size_of(t.dtype)));
}

void Sendable::place(const Rank& rank, std::byte* memory) {
  if (!is_copy()) return;
  Tensor& t = rows_.tensor;
  t = rows_.numbers
          ? rank.placed_numbers(region_.in(memory), t.dtype, rows_.heads(), rows_.count())
          : rank.placed(region_.in(memory), t.dtype, rows_.entries(), rows_.heads(), rows_.count(), rows_.width());
}

KeyTraffic::KeyTraffic(const Rank& rank, Carrier& carrier, const Rows& k, const Rows& v, std::vector<Wanted> steps)
    : rank_(rank), carrier_(carrier), one_(carrier.values_within_keys()), steps_(std::move(steps)), k_(k), v_(v) {}

std::size_t KeyTraffic::buffers() const { return carrier_.is_ahead() ? std::min<std::size_t>(steps_.size(), 2) : 1; }

void KeyTraffic::lay_out(WorkspaceLayout& space) {
  for (const Wanted& wanted : steps_) {
    const bool whole = carrier_.places() == Keys::Places::whole;
    const Extent e = extent_of(rank_, carrier_.places(), wanted.heads,
                               whole ? std::vector<KeyRange>() : rank_.key_ranges(rank_.me(), wanted));
    most_rows_ = std::max(most_rows_, e.entries * e.heads * e.rows);
  }
  const auto size = static_cast<std::int64_t>(size_of(k_.tensor.dtype));
  for (std::size_t i = 0; i < buffers(); ++i) {
    buffers_[i].k = space.take<std::byte>(most_rows_ * k_.width() * size);
    if (!one_) buffers_[i].v = space.take<std::byte>(most_rows_ * v_.width() * size);
  }
  own_k_ = Sendable(carrier_, k_, space);
  if (!one_) own_v_ = Sendable(carrier_, v_, space);
}

void KeyTraffic::place(std::byte* memory) {
  memory_ = memory;
  for (const auto& [own, from] : {std::pair{&own_k_, &k_}, {&own_v_, &v_}}) {
    own->place(rank_, memory);
    if (own->is_copy()) carrier_.copy(from->tensor, own->rows().tensor);
  }
}

void KeyTraffic::start() {
  if (carrier_.is_ahead()) here_ = bring(0);
}

Keys& KeyTraffic::next(std::size_t step) {
  Moments ready;
  if (!carrier_.is_ahead())
    ready = bring(step);
  else {
    ready = std::move(here_);
    // Exchanges are enqueued before the launches that they overlap with: the launches occupy all SMs.
    if (step + 1 < steps_.size()) here_ = bring(step + 1);
  }
  carrier_.wait(Lane::launches, ready);
  return buffers_[step % buffers()].keys;
}

void KeyTraffic::place(Buffer& buffer) const {
  Keys& keys = buffer.keys;
  const Extent e = extent_of(rank_, keys.places, keys.wanted.heads, keys.ranges);
  const auto tensor = [&](const Region<std::byte>& region, const Rows& like) {
    std::byte* const at = region.in(memory_);
    if (keys.places == Keys::Places::whole)
      return rank_.placed(at, like.tensor.dtype, e.entries, e.heads, e.rows, like.width());
    return Tensor(at, like.tensor.dtype, {1, e.heads, e.rows, like.width()}, {}, like.tensor.device);
  };
  keys.k = tensor(buffer.k, k_);
  keys.v = one_ ? keys.k : tensor(buffer.v, v_);
  if (one_) keys.v.shape[as_size(keys.v.rank) - 1] = v_.width();
}

/// Keys of other ranks travel on one lane, the rank's own on another. Both have arrived when the moments have passed.
Moments KeyTraffic::bring(std::size_t step) {
  Buffer& buffer = buffers_[step % buffers()];
  Keys& keys = buffer.keys;
  const Moments used = std::exchange(keys.used, {});
  for (std::size_t i = 0; i < used.size(); ++i)
    for (const Lane lane : {Lane::travel, Lane::own}) carrier_.wait(lane, {used[i]});
  keys = {.wanted = steps_[step], .places = carrier_.places(), .ranges = rank_.key_ranges(rank_.me(), steps_[step])};
  place(buffer);
  if (carrier_.clears()) {
    for (const Tensor* t : {&keys.k, &keys.v})
      if (t == &keys.k || !one_) carrier_.clear(t->data, as_size(t->size()) * size_of(t->dtype), Lane::travel);
    carrier_.wait(Lane::own, carrier_.mark(Lane::travel));
  }
  carrier_.exchange(exchange_of(keys));
  Moments out = carrier_.mark(Lane::travel);
  for (auto& moment : carrier_.mark(Lane::own)) out.push_back(std::move(moment));
  return out;
}

/// The exchange for these keys. Copies the keys that the rank holds itself.
Exchange KeyTraffic::exchange_of(const Keys& keys) const {
  const bool whole = keys.places == Keys::Places::whole;
  const auto into = [&](const Tensor& t) { return Rows{t, whole ? k_.layout : compiler::Layout::dense}; };
  std::vector<std::pair<Rows, Rows>> both{{own_k_.rows(), into(keys.k)}};
  if (!one_) both.emplace_back(own_v_.rows(), into(keys.v));
  const auto at_owner = [&](const KeyRange& range) {
    return Rect{.entry = range.entry,
                .head = range.head,
                .row = rank_.owners_row(range.first),
                .rows = range.rows,
                .heads = range.heads};
  };
  Exchange out;
  for (int peer = 0; peer < rank_.count(); ++peer) {
    if (peer == rank_.me()) continue;
    for (const KeyRange& range : rank_.key_ranges(peer, keys.wanted))
      if (range.owner == rank_.me())
        for (const auto& [own, here] : both) out.send.push_back({peer, own, at_owner(range)});
  }
  for (const KeyRange& range : keys.ranges)
    for (const auto& [own, here] : both) {
      const Chunk there{range.owner, here, place_of(rank_, keys, range)};
      if (range.owner != rank_.me())
        out.receive.push_back(there);
      else
        carrier_.copy({rank_.me(), own, at_owner(range)}, there, Lane::own);
    }
  return out;
}

std::vector<Wanted> by_groups(const Rank& rank, std::int64_t groups) {
  std::vector<Wanted> out;
  for (std::int64_t g = 0; g < groups; ++g) out.push_back({.heads = rank.group_of_heads(g, groups)});
  return out;
}

}  // namespace attune::runtime::ranks
