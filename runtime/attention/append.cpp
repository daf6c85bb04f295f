// runtime/attention/append.cpp — implements include/attune/append.h
#include <attune/append.h>

#include <cstring>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/sequences.h"
#include "runtime/attention/on_host.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/options.h"
#include "runtime/machine/parallel.h"
#include "runtime/machine/placed.h"
#include "runtime/machine/watch/watch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attune {
namespace runtime {
namespace {

/// Keeps denormals, which tasks flush: here numbers are stored and not computed with.
class KeepDenormals {
 public:
#if defined(__x86_64__)
  KeepDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

/// Refuses rows that have no place, before any is written.
void check_places(const Append& call, const compiler::Problem& p) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence(p, b);
    if (seq.q_len > seq.kv_len)
      throw Error("kv-len", fmt::format("kv_len[{}] is {}, and {} keys are new", b, seq.kv_len, seq.q_len), {},
                  "it counts all keys of the entry, new ones included", "add the number of new keys to it");
    const KeyRows keys(p, call.page_table, seq, 0);
    for (std::int64_t at = seq.kv_len - seq.q_len; at < seq.kv_len;) {
      const KeyRows::Range some = keys.range(call.k, at, seq.kv_len);
      if (!some.there)
        throw Error("page-table",
                    fmt::format("page_table[{}, {}] is not a page of the pool", b, at / p.per_entry->page_size), {},
                    fmt::format("key {} is stored there, and the pool has {} pages", at, call.k.shape[0]),
                    "give each new key a page of the pool");
      at += some.count;
    }
  }
}

/// ATTUNE_CHECK=range on a device: refuses what the host would refuse. Only integers are copied; the checks read
/// nothing else.
void check_there(Append call, void* stream) {
  if (cuda::is_captured(stream))
    return note(watch::Notice::Of::check, "the places of an append that is captured into a graph are not checked");
  OnHost on_host(stream);
  on_host.take(call.page_table, call.kv_len, call.cu_seqlens, call.slots);
  for (Tensor* t : {&call.k_new, &call.v_new, &call.k, &call.v}) t->device = Device::cpu();
  const compiler::Problem p = compiler::check(call);
  if (!call.slots.given()) check_places(call, p);
}

/// into = from / scale, row by row.
void put(const Tensor& from, const MatrixLayout& source, const Tensor& into, const MatrixLayout& target,
         std::int64_t rows, std::int64_t width, double scale) {
  const KeepDenormals keep;
  const bool as_they_are = from.dtype == into.dtype && scale == 1 && source.column == 1 && target.column == 1;
  const auto size = static_cast<std::int64_t>(size_of(into.dtype));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t at = source.origin + i * source.row, to = target.origin + i * target.row;
    if (as_they_are)
      std::memcpy(static_cast<char*>(into.data) + to * size, static_cast<const char*>(from.data) + at * size,
                  static_cast<std::size_t>(width * size));
    else
      for (std::int64_t j = 0; j < width; ++j)
        store(into, to + j * target.column, load(from, at + j * source.column) / scale);
  }
}

void append_one(const Append& call, const compiler::Problem& p, std::int64_t b, std::int64_t h) {
  const Sequence seq = sequence(p, b);
  const KeyRows keys(p, call.page_table, seq, h);
  const std::int64_t old = seq.kv_len - seq.q_len;
  const auto all = [&](const Tensor& from, const Tensor& into, std::int64_t width, double scale) {
    MatrixLayout source = matrix(from, p.q.layout, b, h, seq.q_start);
    for (std::int64_t at = old; at < seq.kv_len;) {
      const KeyRows::Range some = keys.range(into, at, seq.kv_len);
      put(from, source, into, some.at, some.count, width, scale);
      source.origin += some.count * source.row;
      at += some.count;
    }
  };
  all(call.k_new, call.k, p.d, call.k_scale);
  all(call.v_new, call.v, p.dv, call.v_scale);
}

/// All rows of a head, in their order: of several with the same slot, the last stays.
void append_by_slot(const Append& call, const compiler::Problem& p, std::int64_t h) {
  const std::int64_t page_size = call.k.shape[2];
  const auto all = [&](const Tensor& from, const Tensor& into, std::int64_t width, double scale) {
    for (std::int64_t i = 0; i < p.q.total; ++i)
      if (const std::int64_t slot = compiler::whole(call.slots, i); slot >= 0) {
        MatrixLayout target = matrix(into, compiler::Layout::paged, slot / page_size, h, 0);
        target.origin += slot % page_size * target.row;
        put(from, matrix(from, p.q.layout, 0, h, i), into, target, 1, width, scale);
      }
  };
  all(call.k_new, call.k, p.d, call.k_scale);
  all(call.v_new, call.v, p.dv, call.v_scale);
}

}  // namespace
}  // namespace runtime

void append(const Append& call, const Resources& with, Line at) {
  runtime::placed(at, [&] {
    const compiler::Problem p = compiler::check(call);
    if (call.k_new.device.kind == Device::Kind::cuda) {
      if (runtime::options().check_range) runtime::check_there(call, with.stream);
      return runtime::cuda::append(call, p, with.stream);
    }
    if (call.slots.given())
      return runtime::run_tasks(
          p.kv_heads, [&](std::int64_t h, int) { runtime::append_by_slot(call, p, h); }, with.executor);
    runtime::check_places(call, p);
    runtime::run_tasks(
        p.batch * p.kv_heads,
        [&](std::int64_t i, int) { runtime::append_one(call, p, i / p.kv_heads, i % p.kv_heads); }, with.executor);
  });
}

}  // namespace attune
