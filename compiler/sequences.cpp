// compiler/sequences.cpp — where sequences begin and how long they are: cu_seqlens, kv_len, q_offsets
#include "compiler/sequences.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "compiler/lower.h"
#include "compiler/requirements.h"

namespace attune::compiler {
namespace {

void check_starts(const Named& cu) {
  check_type(cu, types::starts);
  check_rank(cu, dimensions::starts);
}

/// The starts of packed sequences, read on the host; the last one is the total.
std::vector<std::int64_t> starts_of(const Named& cu, const Named& packed) {
  const auto refuse_values = [&](const std::string& why) {
    return refuse("cu-seqlens", cu.name() + " does not hold the starts of sequences", why,
                  fmt::format("pass 0 and the running sums of the lengths, which end with the {} rows of {}",
                              packed->shape[0], packed.name()));
  };
  if (cu->shape[0] < 1) throw refuse_values("it is empty; without sequences it still holds one entry, 0");
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < cu->shape[0]; ++i) {
    starts.push_back(whole(*cu, i));
    if (i == 0 && starts[0] != 0) throw refuse_values(fmt::format("its first entry is {} instead of 0", starts[0]));
    if (i > 0 && starts.back() < starts[starts.size() - 2])
      throw refuse_values(
          fmt::format("entry {} is {}, less than the {} before it", i, starts.back(), starts[starts.size() - 2]));
  }
  if (starts.back() != packed->shape[0])
    throw refuse_values(
        fmt::format("its last entry is {}, and {} has {} rows", starts.back(), packed.name(), packed->shape[0]));
  return starts;
}

/// Checks starts on a device as far as possible without reading them.
void check_starts_there(const Named& cu, const Named& q) {
  if (cu->device != q->device)
    throw refuse("cu-seqlens-device", fmt::format("{} is neither on the host nor on q's device", cu.name()),
                 fmt::format("q is {} and {} is {}", place(q->device), cu.name(), place(cu->device)),
                 "pass a copy on the host, or one on q's device");
  check_type(cu, types::starts_there);
  if (cu->shape[0] < 1)
    throw refuse("cu-seqlens", cu.name() + " does not hold the starts of sequences",
                 "it is empty; without sequences it still holds one entry, 0",
                 "pass one start per sequence and the end");
  if (cu->shape[0] > 1 && cu->strides[0] != 1)
    throw refuse("cu-seqlens-stride", fmt::format("the entries of {} are not contiguous", cu.name()),
                 fmt::format("{}, with a stride of {}", description(cu), cu->strides[0]), "pass contiguous starts");
}

/// The length of the longest sequence; if the starts are on a device, the length that the caller states.
std::int64_t longest(const Named& cu, const std::vector<std::int64_t>& starts, const char* member, std::int64_t said,
                     std::int64_t total) {
  if (said < 0)
    throw refuse("max-len", fmt::format("{} is {}", member, said), "it is the length of a sequence",
                 "pass the length of the longest one");
  if (starts.empty()) {
    if (said == 0 && total > 0)
      throw refuse(
          "max-len", fmt::format("{} is missing", member),
          fmt::format("{} is {}, and only the kernel reads it there", cu.name(), place(cu->device)),
          fmt::format("set .{0} to an upper bound on the lengths, or pass {1} on the host", member, cu.name()));
    return std::min(said, total);
  }
  std::int64_t most = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
  if (said && most > said)
    throw refuse("max-len", fmt::format("{} is {}, and a sequence is longer", member, said),
                 fmt::format("{} says that one has {} positions", cu.name(), most),
                 fmt::format("pass {} or more, or leave it out: starts on the host are enough", most));
  return most;
}

/// Checks a tensor with one number per batch entry or sequence: its shape, type and device.
void check_numbers(const Named& t, Code code, const Problem& p, const Named& q) {
  check_one(t, q->device, q.called);
  const std::int64_t shape[]{p.batch};
  if (t->rank != 1 || t->shape[0] != p.batch)
    check_shape(t, shape, fmt::format("{} has {} entries", q.name(), p.batch));
  check_type(t, types::numbers(code, t->device.kind == Device::Kind::cpu));
}

/// Reads kv_len on the host: p.kv.length is then the length of the longest entry.
void check_kv_len(const Inputs& in, Problem& p) {
  if (!in.forward->kv_len.given()) return;
  const Named kv_len{"kv_len", &in.forward->kv_len};
  check_numbers(kv_len, Code{"kv-len"}, p, in.q);
  if (kv_len->device.kind != Device::Kind::cpu) return;
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    const std::int64_t n = whole(*kv_len, b), room = p.kv.packed() ? p.kv.starts[i + 1] - p.kv.starts[i] : p.kv.length;
    if (n < 0 || n > room)
      throw refuse("kv-len", fmt::format("kv_len[{}] is {}", b, n),
                   n < 0 ? "it is a number of keys"
                         : fmt::format("{} and {}: this entry holds at most {} keys", description(in.k),
                                       description(in.v), room),
                   fmt::format("pass 0 to {}: the number of keys, new ones included", room));
    longest = std::max(longest, n);
    p.entries().kv_lens.push_back(n);
  }
  p.kv.length = longest;
}

/// Reads q_offsets on the host. Returns the greatest of them, or q_offset.
std::int32_t check_q_offsets(const Inputs& in, Problem& p) {
  if (!in.forward->q_offsets.given()) return in.q_offset;
  const Named q_offsets{"q_offsets", &in.forward->q_offsets};
  if (in.q_offset != 0)
    throw refuse("q-offsets", "q_offset and q_offsets are both given",
                 fmt::format("q_offset is {}, and {}", in.q_offset, description(q_offsets)),
                 "leave q_offset at 0: each entry has its own");
  check_numbers(q_offsets, Code{"q-offsets"}, p, in.q);
  if (q_offsets->device.kind != Device::Kind::cpu) return 0;
  std::int32_t greatest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t offset = whole(*q_offsets, b);
    if (offset < 0 || offset > max_length)
      throw refuse("q-offsets", fmt::format("q_offsets[{}] is {}", b, offset),
                   fmt::format("positions are 0 to {}", max_length), "pass the position of each entry's first query");
    p.entries().q_offsets.push_back(static_cast<std::int32_t>(offset));
    greatest = std::max(greatest, static_cast<std::int32_t>(offset));
  }
  return greatest;
}

}  // namespace

std::int64_t whole(const Tensor& t, std::int64_t i) {
  const char* at = static_cast<const char*>(t.data) + i * t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype));
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  t.dtype == DType::i32 ? std::memcpy(&narrow, at, sizeof narrow) : std::memcpy(&wide, at, sizeof wide);
  return t.dtype == DType::i32 ? narrow : wide;
}

void check_packed_q(const Inputs& in, Problem& p) {
  p.q.total = in.q->shape[0];
  check_starts(in.cu_q);
  if (in.cu_q->device.kind == Device::Kind::cpu)
    p.q.starts = starts_of(in.cu_q, in.q);
  else
    check_starts_there(in.cu_q, in.q);
  p.batch = in.cu_q->shape[0] - 1;
  p.q.length = longest(in.cu_q, p.q.starts, "max_q_len", in.max_q_len, p.q.total);
}

void check_packed(const Inputs& in, Problem& p) {
  check_shared(in.k, in.v, shared::kv_totals);
  p.q.total = in.q->shape[0];
  p.kv.total = in.k->shape[0];
  for (const Named& cu : {in.cu_q, in.cu_kv}) {
    check_starts(cu);
    if (cu->device.kind != Device::Kind::cpu) check_starts_there(cu, in.q);
  }
  if (in.cu_q->device != in.cu_kv->device)
    throw refuse(
        "cu-seqlens-device", "cu_seqlens_q and cu_seqlens_kv are on different devices",
        fmt::format("cu_seqlens_q is {} and cu_seqlens_kv is {}", place(in.cu_q->device), place(in.cu_kv->device)),
        "pass both on the host, or both on q's device");
  if (in.cu_q->device.kind == Device::Kind::cpu) {
    p.q.starts = starts_of(in.cu_q, in.q);
    p.kv.starts = starts_of(in.cu_kv, in.k);
  }
  check_shared(in.cu_q, in.cu_kv, shared::sequences);
  p.batch = in.cu_q->shape[0] - 1;
  p.q.length = longest(in.cu_q, p.q.starts, "max_q_len", in.max_q_len, p.q.total);
  p.kv.length = longest(in.cu_kv, p.kv.starts, "max_kv_len", in.max_kv_len, p.kv.total);
}

std::int32_t check_apart(const Inputs& in, Problem& p) {
  if (in.forward->kv_offset < 0)
    throw refuse("kv-offset", fmt::format("kv_offset is {}", in.forward->kv_offset), "positions start at 0",
                 "pass the position of the first key, 0 or more");
  p.kv_offset = in.forward->kv_offset;
  if (in.forward->fixed_split_size < 0 || in.forward->fixed_split_size % 128 != 0)
    throw refuse("fixed-split-size", fmt::format("fixed_split_size is {}", in.forward->fixed_split_size),
                 "the size is a multiple of 128", "pass a multiple such as 2048, or 0 to let attune choose");
  check_kv_len(in, p);
  return check_q_offsets(in, p);
}

}  // namespace attune::compiler
