// runtime/platform/emulated/shadow.cpp — a race detector: the last accesses to each two bytes of a block's shared
// memory, and whether the next one is ordered after them
#include "runtime/platform/emulated/shadow.h"

#include <algorithm>
#include <span>

namespace attune::runtime::emulated {
namespace {

/// True if `by` knows of the access that `of` made when its clock was `clock`.
bool is_known(std::uint32_t clock, Toucher of, Toucher by, const Known& known) {
  if (of.warp != by.warp) return clock <= known.clock[of.warp];
  return of.lane == by.lane || clock < known.clock[of.warp];
}

/// The cells of these bytes.
template <class Cells>
auto cells_at(Cells& cells, unsigned at, unsigned bytes) {
  const std::size_t first = at / 2;
  return std::span(cells).subspan(first, (at + bytes + 1) / 2 - first);
}

}  // namespace

std::uint16_t Shadow::number_of(Site site) {
  // The lanes of a warp access memory from the same line, one after another.
  if (const Site& last = sites_[last_]; last.file == site.file && last.line == site.line) return last_;
  const auto key = reinterpret_cast<std::uintptr_t>(site.file) * 4096 + static_cast<std::uint64_t>(site.line);
  const auto [found, is_new] = numbers_.try_emplace(key, static_cast<std::uint16_t>(sites_.size()));
  if (is_new) sites_.push_back(site);
  return last_ = found->second;
}

template <class Check>
Conflict Shadow::each(unsigned at, unsigned bytes, const Check& check) {
  for (Cell& cell : cells_at(cells_, at, bytes))
    if (const Conflict out = check(cell); out.what) return out;
  return {};
}

Conflict Shadow::against_write(const Cell& cell, Toucher by, const Known& known, const char* what) const {
  if (cell.written == 0 || is_known(cell.written, cell.writer, by, known)) return {};
  return {what, cell.writer, sites_[cell.write_site]};
}
Conflict Shadow::against_read(const Cell& cell, Toucher by, const Known& known, const char* what) const {
  if (cell.read == 0 || is_known(cell.read, cell.reader, by, known)) return {};
  return {what, cell.reader, sites_[cell.read_site]};
}

Conflict Shadow::read(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site) {
  const std::uint16_t number = number_of(site);
  return each(at, bytes, [&](Cell& cell) -> Conflict {
    if (cell.copies > 0)
      return {"it reads what a copy may not have brought yet, which was asked for by", cell.writer,
              sites_[cell.write_site]};
    if (const Conflict out = against_write(cell, by, known, "it reads what may not be written yet, by"); out.what)
      return out;
    cell.read = known.clock[by.warp];
    cell.reader = by;
    cell.read_site = number;
    return {};
  });
}

Conflict Shadow::write(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site) {
  const std::uint16_t number = number_of(site);
  return each(at, bytes, [&](Cell& cell) -> Conflict {
    if (cell.copies > 0)
      return {"it writes where a copy is under way, which was asked for by", cell.writer, sites_[cell.write_site]};
    if (cell.stores > 0)
      return {"it overwrites what TMA still reads, as it was told by", cell.reader, sites_[cell.read_site]};
    cell.spoiled = cell.products > 0;
    if (const Conflict out = against_write(cell, by, known, "it writes where another thread may write too,"); out.what)
      return out;
    if (const Conflict out = against_read(cell, by, known, "it overwrites what may not be read yet, by"); out.what)
      return out;
    cell.written = known.clock[by.warp];
    cell.writer = by;
    cell.write_site = number;
    cell.by_copy = false;
    return {};
  });
}

bool Shadow::unwritten(unsigned at, unsigned bytes) const {
  return std::ranges::any_of(cells_at(cells_, at, bytes), [](const Cell& cell) { return cell.written == 0; });
}

Conflict Shadow::begin_copy(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site) {
  if (const Conflict out = write(at, bytes, by, known, site); out.what) return out;
  return each(at, bytes, [&](Cell& cell) -> Conflict {
    ++cell.copies;
    cell.by_copy = true;
    return {};
  });
}

void Shadow::end_copy(unsigned at, unsigned bytes) {
  each(at, bytes, [&](Cell& cell) -> Conflict {
    if (cell.copies > 0) --cell.copies;
    return {};
  });
}

/// Ordinary writes become visible to TMA by a proxy fence of the writer, or by a proxy fence of the reader after it
/// learned of the write.
Conflict Shadow::unfenced(const Cell& cell, Toucher by) {
  if (cell.by_copy || cell.written == 0) return {};
  if (fences(cell.writer) != cell.writer.fences || fences(by) != by.fences) return {};
  return {"no proxy fence stands between its read and the write by", cell.writer, sites_[cell.write_site]};
}

Conflict Shadow::begin_store(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site) {
  if (const Conflict out = read(at, bytes, by, known, site); out.what) return out;
  return each(at, bytes, [&](Cell& cell) -> Conflict {
    if (const Conflict out = unfenced(cell, by); out.what) return out;
    ++cell.stores;
    return {};
  });
}

void Shadow::end_store(unsigned at, unsigned bytes) {
  each(at, bytes, [&](Cell& cell) -> Conflict {
    if (cell.stores > 0) --cell.stores;
    return {};
  });
}

Conflict Shadow::begin_product(unsigned at, unsigned bytes, Toucher by, const Known& known) {
  const Cell* checked = nullptr;
  const Conflict out = each(at, bytes, [&](Cell& cell) -> Conflict {
    if (checked && checked->same_write(cell)) return {};
    checked = &cell;
    if (cell.copies > 0)
      return {"it reads what a copy may not have brought yet, which was asked for by", cell.writer,
              sites_[cell.write_site]};
    if (cell.written == 0) return {"it reads where nothing was written", by, {}};
    if (const Conflict unordered = against_write(cell, by, known, "it reads what may not be written yet, by");
        unordered.what)
      return unordered;
    return unfenced(cell, by);
  });
  if (!out.what)
    each(at, bytes, [&](Cell& cell) -> Conflict {
      ++cell.products;
      return {};
    });
  return out;
}

Conflict Shadow::end_product(unsigned at, unsigned bytes) {
  Conflict out;
  each(at, bytes, [&](Cell& cell) -> Conflict {
    if (cell.spoiled)
      out = {"what it reads was overwritten before it was waited for, by", cell.writer, sites_[cell.write_site]};
    if (cell.products > 0 && --cell.products == 0) cell.spoiled = false;
    return {};
  });
  return out;
}

}  // namespace attune::runtime::emulated
