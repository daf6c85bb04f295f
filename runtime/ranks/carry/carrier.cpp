// runtime/ranks/carry/carrier.cpp — the interface between schedules and a rank's memory, exchanges and engine
#include "runtime/ranks/carry/carrier.h"

#include <algorithm>

namespace attune::runtime::ranks {

void Carrier::start() const {
  const Moments inputs = mark(Lane::call);
  for (const Lane lane : {Lane::travel, Lane::own, Lane::launches}) wait(lane, inputs);
}

void Carrier::join() {
  wait(Lane::call, mark(Lane::launches));
  join_travel();
}

void Carrier::join_travel() {
  for (const Lane lane : {Lane::travel, Lane::own}) wait(Lane::call, mark(lane));
  ended();
}

void Carrier::report(std::string_view schedule) const {
  if (!means_.used) return;
  *means_.used = used_;
  means_.used->kernel += " by ";
  means_.used->kernel += schedule;
}

void Carrier::remember(const Used& used) {
  const std::size_t most = std::max(used.workspace, used_.workspace);
  used_ = used;
  used_.workspace = most;
}

Rect place_of(const Rank& rank, const Keys& keys, const KeyRange& range) {
  const std::int64_t head = range.head - keys.wanted.heads.first;
  switch (keys.places) {
    case Keys::Places::consecutive: return {.row = range.before, .rows = range.rows, .heads = range.heads};
    case Keys::Places::whole:
      return {.entry = range.entry,
              .head = head,
              .row = rank.ranks().kv.blocks[range.first].row,
              .rows = range.rows,
              .heads = range.heads};
    case Keys::Places::owners: break;
  }
  return {.entry = range.entry,
          .head = head,
          .row = rank.owners_row(range.first),
          .rows = range.rows,
          .heads = range.heads};
}

}  // namespace attune::runtime::ranks
