// compiler/problem.cpp — refuse a call whose tensors do not fit each other, and work out its sizes
#include "compiler/problem.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "compiler/refuse.h"

namespace attune::compiler {
namespace {

/// A tensor of the call, with the user's name for it.
struct Named {
  std::string_view called;
  const Tensor* tensor;
  bool captured = false;

  std::string name() const { return captured ? fmt::format("capture `{}`", called) : std::string(called); }
  const Tensor* operator->() const { return tensor; }
  const Tensor& operator*() const { return *tensor; }
};

std::string description(const Named& t) { return fmt::format("{} is {}", t.name(), t->describe()); }

std::string place(const Device& d) {
  return d.kind == Device::Kind::cpu ? std::string("on the host") : fmt::format("on cuda:{}", d.index);
}

bool is_float(DType type) { return type_of(type) == ir::Type::F32; }

/// Checks that apply to any tensor, before its shape is looked at.
void check_alone(const Named& t) {
  if (!t->given())
    throw refuse("tensor-missing", t.name() + " is missing", "the call needs it, and it was left out",
                 "pass a tensor for " + t.name());
  if (t->rank > Tensor::max_rank)
    throw refuse("bad-rank", fmt::format("{} has {} dimensions", t.name(), t->rank),
                 fmt::format("a tensor has at most {}", Tensor::max_rank), "merge or index away some dimensions");
  try {
    // Construct it again for the constructor's checks, since a Tensor's fields are public.
    const Tensor again(t->data, t->dtype, std::span(t->shape).first(static_cast<std::size_t>(t->rank)));
  } catch (const Error& e) {
    throw refuse(e.code, t.name() + ": " + e.problem, e.why, e.fix);
  }
  if (!t->data && t->size() > 0)
    throw refuse("tensor-null", t.name() + " has no memory",
                 fmt::format("{}, and its data pointer is null", description(t)), "point it at its elements");
}

/// `device`: the device of the other tensors.
void check_one(const Named& t, const Device& device) {
  check_alone(t);
  if (t->device != device)
    throw refuse("tensor-device", fmt::format("{} is on another device than q", t.name()),
                 fmt::format("q is {} and {} is {}", place(device), t.name(), place(t->device)),
                 "move all tensors of a call, captures too, to one device");
}

void check_rank(const Named& t, int rank, std::string_view layout) {
  if (t->rank == rank) return;
  throw refuse("tensor-rank", fmt::format("{} has {} dimensions instead of {}", t.name(), t->rank, rank),
               fmt::format("{}, and it should be {}", description(t), layout),
               rank == 3
                   ? "give it these dimensions, or leave out cu_seqlens_q and cu_seqlens_kv for a dense batch"
                   : "give it these dimensions: an extent of 1 for a missing one, a permuted view for another order; "
                     "packed sequences are given with cu_seqlens_q and cu_seqlens_kv");
}

void check_float(const Named& t, bool or_e4m3 = false) {
  if (is_float(t->dtype) && (or_e4m3 || t->dtype != DType::e4m3)) return;
  const std::string_view types = or_e4m3 ? "f32, f16, bf16, f64 or e4m3" : "f32, f16, bf16 or f64";
  throw refuse("tensor-type", fmt::format("{} holds {}", t.name(), name_of(t->dtype)),
               fmt::format("{}, and it has to be {}", description(t), types), "convert it to one of these types");
}

/// `reason` makes the explanation; called only for an Error.
template <class Reason>
void check_shape(const Named& t, std::span<const std::int64_t> shape, const Reason& reason) {
  const auto have = std::span(t->shape).first(static_cast<std::size_t>(t->rank));
  if (std::equal(have.begin(), have.end(), shape.begin(), shape.end())) return;
  throw refuse("tensor-shape", fmt::format("{} has the wrong shape", t.name()),
               fmt::format("{}; {}, which makes it [{}]", description(t), reason(), fmt::join(shape, ", ")),
               fmt::format("pass {} as [{}]", t.name(), fmt::join(shape, ", ")));
}

/// Refuses an output in which two elements certainly share memory.
void check_disjoint(const Named& t) {
  double reach = 1;  // a double: strides may be anything, so their sums may overflow integers
  std::string clash;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t->rank); ++i) {
    if (t->shape[i] < 2) continue;
    reach += static_cast<double>(t->shape[i] - 1) * std::abs(static_cast<double>(t->strides[i]));
    if (t->strides[i] == 0) clash = fmt::format("the stride of dimension {} is 0", i);
    for (std::size_t j = 0; j < i; ++j)
      if (t->shape[j] > 1 && (t->strides[i] == t->strides[j] || t->strides[i] == -t->strides[j]))
        clash = fmt::format("dimensions {} and {} have the same stride {}", j, i, t->strides[i]);
  }
  if (t->size() == 0) return;
  if (clash.empty() && reach < static_cast<double>(t->size()))
    clash = fmt::format("its {} elements share the memory of {}", t->size(), reach);
  if (!clash.empty())
    throw refuse("tensor-overlap", fmt::format("{} would be written twice in one place", t.name()),
                 fmt::format("{}, and {}", description(t), clash), "write into memory with a place for each element");
}

/// Refuses an output that starts at the same address as another tensor of the call.
void check_alias(const Named& out, std::span<const Named> others) {
  for (const Named& other : others)
    if (other.tensor != out.tensor && other->given() && other->data == out->data && out->size() > 0 &&
        other->size() > 0)
      throw refuse("tensor-alias", fmt::format("{} and {} share their memory", out.name(), other.name()),
                   fmt::format("both start at the same address, and {} is written", out.name()),
                   fmt::format("give {} memory of its own", out.name()));
}

void check_scale(std::optional<double> scale) {
  if (!scale || std::isfinite(static_cast<float>(*scale))) return;
  throw refuse("bad-scale", fmt::format("the scale {} is not a finite f32", *scale),
               "s = scale * (q . k) is computed in f32, whose largest number is 3.4e38",
               "pass a finite scale, or none for 1 / sqrt(D)");
}

void check_starts(const Named& cu) {
  if (cu->dtype != DType::i32 && cu->dtype != DType::i64)
    throw refuse("cu-seqlens-type", fmt::format("{} holds {}", cu.name(), name_of(cu->dtype)),
                 fmt::format("{}, and starts of sequences are i32 or i64", description(cu)), "convert it to i32");
  if (cu->rank != 1)
    throw refuse("tensor-rank", fmt::format("{} has {} dimensions instead of 1", cu.name(), cu->rank),
                 fmt::format("{}, and it should be [B + 1]", description(cu)),
                 "pass one start per sequence and the end");
}

/// Element i of a tensor of i32 or i64 on the host.
std::int64_t whole(const Tensor& t, std::int64_t i) {
  const char* at = static_cast<const char*>(t.data) + i * t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype));
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  t.dtype == DType::i32 ? std::memcpy(&narrow, at, sizeof narrow) : std::memcpy(&wide, at, sizeof wide);
  return t.dtype == DType::i32 ? narrow : wide;
}

/// The starts of packed sequences, read on the host; the last one is the total.
std::vector<std::int64_t> starts_of(const Named& cu, const Named& packed) {
  const auto refuse_values = [&](const std::string& why) {
    return refuse("cu-seqlens", cu.name() + " does not hold the starts of sequences", why,
                  fmt::format("pass 0, the running sums of the lengths, and at last the {} rows of {}",
                              packed->shape[0], packed.name()));
  };
  if (cu->shape[0] < 1) throw refuse_values("it is empty; even without a sequence it holds one entry, 0");
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
    throw refuse("cu-seqlens-device", fmt::format("{} is neither on the host nor where q is", cu.name()),
                 fmt::format("q is {} and {} is {}", place(q->device), cu.name(), place(cu->device)),
                 "pass a copy on the host, or one where q is");
  if (cu->dtype != DType::i32)
    throw refuse("cu-seqlens-type", fmt::format("{} holds {}", cu.name(), name_of(cu->dtype)),
                 fmt::format("{}, and a device reads starts of sequences as i32", description(cu)),
                 "convert it to i32");
  if (cu->shape[0] < 1)
    throw refuse("cu-seqlens", cu.name() + " does not hold the starts of sequences",
                 "it is empty; even without a sequence it holds one entry, 0",
                 "pass one start per sequence and the end");
  if (cu->shape[0] > 1 && cu->strides[0] != 1)
    throw refuse("cu-seqlens-stride", fmt::format("the entries of {} are not contiguous", cu.name()),
                 fmt::format("{}, with a stride of {}", description(cu), cu->strides[0]),
                 "pass starts that lie next to each other");
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
          fmt::format("say how long the longest sequence may be: .{0}; or pass {1} on the host", member, cu.name()));
    return std::min(said, total);
  }
  std::int64_t most = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
  if (said && most > said)
    throw refuse("max-len", fmt::format("{} is {}, and a sequence is longer", member, said),
                 fmt::format("{} says that one has {} positions", cu.name(), most),
                 fmt::format("pass {} or more, or leave it out: starts on the host say it", most));
  return most;
}

/// What a forward and a backward call have in common.
struct Inputs {
  Named q, k, v, cu_q, cu_kv;
  std::int32_t q_offset;
  std::int64_t max_q_len = 0, max_kv_len = 0;
  const Forward* forward = nullptr;  ///< which may describe keys apart from queries; none for a backward
  bool one_type = true;              ///< must q, k and v hold the same?

  bool paged() const { return forward && forward->pages.given(); }
  /// Do packed queries read keys that are not packed?
  bool mixed() const { return forward && cu_q->given() && !cu_kv->given() && q->rank == 3 && k->rank == 4; }
};

void check_types(const Inputs& in) {
  const bool forward = in.forward;
  for (const Named& t : {in.q, in.k, in.v})
    if (!forward && t->dtype == DType::e4m3)
      throw refuse("tensor-type", fmt::format("{} holds e4m3", t.name()),
                   fmt::format("{}, and {} of e4m3 have no gradients", description(t),
                               in.q->dtype == DType::e4m3 ? "queries, keys and values" : "keys and values"),
                   in.q->dtype == DType::e4m3
                       ? "convert q, k and v to one other type before the forward, or ask for no gradients"
                       : "convert k and v to the type of q before the forward, or ask for no gradients");
  check_float(in.q, forward);
  // A cache may be narrower than what reads it.
  const bool narrow = forward && in.k->dtype == DType::e4m3;
  for (const Named& t : {in.k, in.v}) {
    check_float(t, forward);
    if (!in.one_type) continue;
    if (const Named& as = narrow ? in.k : in.q; t->dtype != as->dtype)
      throw refuse("tensor-types", fmt::format("{} and {} hold different types", as.name(), t.name()),
                   fmt::format("{} and {}", description(as), description(t)),
                   forward ? "convert q, k and v to one type, or k and v both to e4m3"
                           : "convert q, k and v to one type");
  }
}

/// Checks heads and widths, whose dimensions do not depend on the tensors being dense or packed.
void check_heads(const Inputs& in, Problem& p) {
  const std::size_t heads = 1, width = p.kv.packed() ? 2 : 3;
  p.q_heads = in.q->shape[heads];
  p.kv_heads = in.k->shape[heads];
  p.d = in.q->shape[p.q.packed() ? 2 : 3];
  p.dv = in.v->shape[width];
  if (in.k->shape[width] != p.d)
    throw refuse(
        "head-size", fmt::format("{} and k have rows of different lengths", in.q.name()),
        fmt::format("{} and {}: D is {} and {}", description(in.q), description(in.k), p.d, in.k->shape[width]),
        fmt::format("give {} and k the same last dimension", in.q.name()));
  if (p.d == 0 || p.dv == 0) {
    const Named& empty = p.d == 0 ? in.q : in.v;
    throw refuse("head-size-zero", fmt::format("{} has rows without elements", empty.name()),
                 fmt::format("{}: its last dimension is 0", description(empty)), "give each row at least one element");
  }
  if (in.v->shape[heads] != p.kv_heads)
    throw refuse("kv-heads", "k and v have different numbers of heads",
                 fmt::format("{} and {}", description(in.k), description(in.v)), "give k and v the same heads");
  if (p.kv_heads == 0 ? p.q_heads != 0 : p.q_heads % p.kv_heads != 0)
    throw refuse("head-groups", fmt::format("{} query heads cannot share {} KV heads", p.q_heads, p.kv_heads),
                 fmt::format("{} and {}: each KV head serves the same number of query heads", description(in.q),
                             description(in.k)),
                 "make the heads of q a multiple of those of k and v");
  p.group = p.kv_heads ? p.q_heads / p.kv_heads : 1;
}

void check_dense_q(const Inputs& in, Problem& p) {
  p.batch = in.q->shape[0];
  p.q.length = in.q->shape[2];
}

void check_dense_kv(const Inputs& in, Problem& p) {
  p.kv.length = in.k->shape[2];
  if (in.v->shape[2] != p.kv.length)
    throw refuse("kv-lengths", "k and v have different lengths",
                 fmt::format("{} and {}", description(in.k), description(in.v)), "give k and v the same positions");
  if (in.k->shape[0] != in.v->shape[0])
    throw refuse("kv-batch", "k and v have different batch sizes",
                 fmt::format("{} and {}", description(in.k), description(in.v)), "give k and v the same batch entries");
  if (in.k->shape[0] != p.batch && in.k->shape[0] != 1)
    throw refuse("batch", fmt::format("{} and k have different batch sizes", in.q.name()),
                 fmt::format("{} and {}", description(in.q), description(in.k)),
                 fmt::format("give k and v {} batch entries, or 1 that all of {}'s share", p.batch, in.q.name()));
  p.kv_shared = in.k->shape[0] != p.batch;
}

void check_paged_kv(const Inputs& in, Problem& p) {
  const Named pages{"pages", &in.forward->pages};
  check_one(pages, in.q->device);
  if (pages->dtype != DType::i32)
    throw refuse("pages", fmt::format("pages holds {}", name_of(pages->dtype)),
                 fmt::format("{}, and numbers of pages are i32", description(pages)), "convert it to i32");
  if (pages->rank != 2 || pages->shape[0] != p.batch)
    throw refuse("pages", "pages has the wrong shape",
                 fmt::format("{}, and {} has {} entries", description(pages), in.q.name(), p.batch),
                 fmt::format("pass pages as [{}, n]: the pages of each entry, in the order of its keys", p.batch));
  if (in.k->shape[0] != in.v->shape[0])
    throw refuse("kv-batch", "k and v have different numbers of pages",
                 fmt::format("{} and {}", description(in.k), description(in.v)), "give k and v the same pages");
  const std::int64_t page = in.k->shape[2];
  p.tell_apart().page = page;
  if (in.v->shape[2] != page)
    throw refuse("page-size", "pages of k and of v have different sizes",
                 fmt::format("{} and {}", description(in.k), description(in.v)),
                 "give both as many rows a page: [pages, H, page, D]");
  if (page == 0)
    throw refuse("page-size", "pages have no rows", fmt::format("{}: [pages, H, page, D]", description(in.k)),
                 "give each page at least one row");
  const std::int64_t n = pages->shape[1];
  p.kv.length = n == 0 ? 0 : std::min(page, std::numeric_limits<std::int64_t>::max() / n) * n;
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
  if (in.k->shape[0] != in.v->shape[0])
    throw refuse("kv-lengths", "k and v have different lengths",
                 fmt::format("{} and {}", description(in.k), description(in.v)), "give k and v the same positions");
  p.q.total = in.q->shape[0];
  p.kv.total = in.k->shape[0];
  for (const Named& cu : {in.cu_q, in.cu_kv}) {
    check_starts(cu);
    if (cu->device.kind != Device::Kind::cpu) check_starts_there(cu, in.q);
  }
  if (in.cu_q->device != in.cu_kv->device)
    throw refuse(
        "cu-seqlens-device", "cu_seqlens_q and cu_seqlens_kv are in different places",
        fmt::format("cu_seqlens_q is {} and cu_seqlens_kv is {}", place(in.cu_q->device), place(in.cu_kv->device)),
        "pass both on the host, or both where q is");
  if (in.cu_q->device.kind == Device::Kind::cpu) {
    p.q.starts = starts_of(in.cu_q, in.q);
    p.kv.starts = starts_of(in.cu_kv, in.k);
  }
  if (in.cu_q->shape[0] != in.cu_kv->shape[0])
    throw refuse("cu-seqlens-batch", "cu_seqlens_q and cu_seqlens_kv hold different numbers of sequences",
                 fmt::format("{} and {}", description(in.cu_q), description(in.cu_kv)),
                 "give both one entry per sequence and one more; a sequence may be empty");
  p.batch = in.cu_q->shape[0] - 1;
  p.q.length = longest(in.cu_q, p.q.starts, "max_q_len", in.max_q_len, p.q.total);
  p.kv.length = longest(in.cu_kv, p.kv.starts, "max_kv_len", in.max_kv_len, p.kv.total);
}

/// A number of each batch entry or sequence: its shape, its type, its device.
void check_numbers(const Named& t, std::string_view code, const Problem& p, const Named& q) {
  check_one(t, q->device);
  const std::int64_t shape[]{p.batch};
  check_shape(t, shape, [&] { return fmt::format("{} has {} entries", q.name(), p.batch); });
  const bool on_host = t->device.kind == Device::Kind::cpu;
  if (t->dtype != DType::i32 && !(on_host && t->dtype == DType::i64))
    throw refuse(std::string(code), fmt::format("{} holds {}", t.name(), name_of(t->dtype)),
                 fmt::format("{}, and it has to be i32", description(t)), "convert it to i32");
}

/// Reads kv_len on the host: p.kv.length then is that of the longest entry.
void check_kv_len(const Inputs& in, Problem& p) {
  if (!in.forward->kv_len.given()) return;
  const Named kv_len{"kv_len", &in.forward->kv_len};
  check_numbers(kv_len, "kv-len", p, in.q);
  if (kv_len->device.kind != Device::Kind::cpu) return;
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    const std::int64_t n = whole(*kv_len, b), room = p.kv.packed() ? p.kv.starts[i + 1] - p.kv.starts[i] : p.kv.length;
    if (n < 0 || n > room)
      throw refuse(
          "kv-len", fmt::format("kv_len[{}] is {}", b, n),
          n < 0 ? "it is a number of keys"
                : fmt::format("{} and {}: this entry has room for {} keys", description(in.k), description(in.v), room),
          fmt::format("pass 0 to {}: the keys that are there, new ones too", room));
    longest = std::max(longest, n);
    p.tell_apart().kv_lens.push_back(n);
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
  check_numbers(q_offsets, "q-offsets", p, in.q);
  if (q_offsets->device.kind != Device::Kind::cpu) return 0;
  std::int32_t greatest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t offset = whole(*q_offsets, b);
    if (offset < 0 || offset > max_length)
      throw refuse("q-offsets", fmt::format("q_offsets[{}] is {}", b, offset),
                   fmt::format("positions are 0 to {}", max_length), "pass the position of each entry's first query");
    p.tell_apart().q_offsets.push_back(static_cast<std::int32_t>(offset));
    greatest = std::max(greatest, static_cast<std::int32_t>(offset));
  }
  return greatest;
}

void check_positions(const Inputs& in, const Problem& p, std::int32_t q_offset) {
  if (in.q_offset < 0)
    throw refuse("q-offset", fmt::format("q_offset is {}", in.q_offset), "positions start at 0",
                 "pass the position of the first query, 0 or more");
  const auto beyond = [](const std::string& what, std::int64_t count) {
    return refuse("too-long", fmt::format("{} is beyond what a coordinate holds", what),
                  fmt::format("{} comes to {}, and coordinates stay below {}, so that their sums are i32", what, count,
                              max_length),
                  "split the call");
  };
  if (p.batch > max_length) throw beyond("the batch", p.batch);
  if (p.q_heads > max_length) throw beyond("the number of heads", p.q_heads);
  if (p.kv.length > max_length) throw beyond("the length of k and v", p.kv.length);
  if (p.kv.length + p.kv_offset > max_length)
    throw beyond("kv_offset and the length of k and v", p.kv.length + p.kv_offset);
  if (p.q.length + q_offset > max_length)
    throw beyond(p.has_q_offsets() ? "the greatest of q_offsets and the length of q" : "q_offset and the length of q",
                 p.q.length + q_offset);
}

/// Lengths and positions that a forward tells apart. Returns the greatest position of a first query.
std::int32_t check_apart(const Inputs& in, Problem& p) {
  if (!in.forward) return in.q_offset;
  if (in.forward->kv_offset < 0)
    throw refuse("kv-offset", fmt::format("kv_offset is {}", in.forward->kv_offset), "positions start at 0",
                 "pass the position of the first key, 0 or more");
  p.kv_offset = in.forward->kv_offset;
  if (in.forward->piece < 0 || in.forward->piece % 128 != 0)
    throw refuse("piece", fmt::format("piece is {}", in.forward->piece), "keys are summed apart by multiples of 128",
                 "pass such a multiple, 2048 say, or 0 for any division");
  check_kv_len(in, p);
  return check_q_offsets(in, p);
}

Problem check_inputs(const Inputs& in, std::optional<double> scale) {
  check_scale(scale);
  Problem p;
  p.q.layout = in.cu_q->given() ? Layout::packed : Layout::dense;
  p.kv.layout = in.paged() ? Layout::pages : in.cu_kv->given() ? Layout::packed : Layout::dense;
  if (in.paged() && in.cu_kv->given())
    throw refuse("pages", "pages and cu_seqlens_kv are both given",
                 "k and v lie in pages, or one sequence after another", "pass one of them");
  if (p.q.packed() != p.kv.packed() && !in.mixed())
    throw refuse("cu-seqlens-half",
                 fmt::format("{} is given without {}", p.q.packed() ? "cu_seqlens_q" : "cu_seqlens_kv",
                             p.q.packed() ? "cu_seqlens_kv" : "cu_seqlens_q"),
                 "packed q and packed k, v come together", "pass both for packed sequences, none for a dense batch");
  for (const Named& t : {in.q, in.k, in.v}) check_one(t, in.q->device);
  const auto check_layout = [](const Named& t, const Positions& of) {
    check_rank(t, of.packed() ? 3 : 4,
               of.packed()  ? "[T, H, D], as packed sequences are"
               : of.paged() ? "[pages, H, page, D]"
                            : "[B, H, S, D]");
  };
  check_layout(in.q, p.q);
  for (const Named& t : {in.k, in.v}) check_layout(t, p.kv);
  check_types(in);
  check_heads(in, p);
  if (p.q.packed()) check_alone(in.cu_q);
  if (p.kv.packed()) {
    check_alone(in.cu_kv);
    check_packed(in, p);
  } else {
    p.q.packed() ? check_packed_q(in, p) : check_dense_q(in, p);
    p.kv.paged() ? check_paged_kv(in, p) : check_dense_kv(in, p);
  }
  check_positions(in, p, check_apart(in, p));
  p.q_offset = in.q_offset;
  p.scale = scale.value_or(1 / std::sqrt(static_cast<double>(p.d)));
  return p;
}

std::vector<std::int64_t> shape_of_o(const Problem& p, const Tensor& q) {
  if (p.q.packed()) return {q.shape[0], p.q_heads, p.dv};
  return {p.batch, p.q_heads, p.q.length, p.dv};
}

/// lse, its gradient, and the row maximum.
void check_row_values(const Named& t, const Problem& p, const Tensor& q) {
  if (!t->given()) return;
  check_one(t, q.device);
  if (t->dtype != DType::f32 && t->dtype != DType::f64)
    throw refuse("tensor-type", fmt::format("{} holds {}", t.name(), name_of(t->dtype)),
                 fmt::format("{}, and it has to be f32 or f64", description(t)), "pass f32");
  const std::vector<std::int64_t> shape = p.q.packed() ? std::vector{p.q_heads, q.shape[0]}
                                                       : std::vector{p.batch, p.q_heads, p.q.length};
  check_shape(t, shape, [&] { return description({"q", &q}); });
}

/// o, and what is like it.
void check_o(const Named& o, const Problem& p, const Named& q, const Named& v) {
  check_one(o, q->device);
  check_float(o);
  check_shape(o, shape_of_o(p, *q), [&] { return fmt::format("{} and {}", description(q), description(v)); });
}

/// Checks the results of attention over other keys, of which at least one is given.
void check_before(const Named& o, const Named& lse, const Problem& p, const Named& q, const Named& v) {
  if (o->given() != lse->given()) {
    const auto &there = o->given() ? o : lse, &missing = o->given() ? lse : o;
    throw refuse("before-half", fmt::format("{} is given without {}", there.name(), missing.name()),
                 "results are merged by their lse", fmt::format("pass {} too, or neither of them", missing.name()));
  }
  check_o(o, p, q, v);
  check_row_values(lse, p, *q);
}

/// Checks the forward's results o and lse, given to a backward: both or neither.
void check_results(const Named& o, const Named& lse, const Problem& p, const Named& q, const Named& v) {
  if (o->given() != lse->given()) {
    const auto &there = o->given() ? o : lse, &missing = o->given() ? lse : o;
    throw refuse("forward-half", fmt::format("{} is given without {}", there.name(), missing.name()),
                 "the backward takes what the forward gave, or computes both again",
                 fmt::format("pass {} too, or neither of them", missing.name()));
  }
  if (!o->given()) return;
  check_o(o, p, q, v);
  check_row_values(lse, p, *q);
}

void check_gradient(const Named& t, const Named& of) {
  if (!t->given()) return;
  check_one(t, of->device);
  check_float(t);
  check_shape(t, std::span(of->shape).first(static_cast<std::size_t>(of->rank)), [&] { return description(of); });
}

std::vector<Named> captures_of(const BoundMod& bound, const Args& args) {
  std::vector<Named> out;
  for (std::size_t i = 0; i < args.captures.size(); ++i)
    out.push_back({bound.mod.captures[i].name, &args.captures[i], true});
  return out;
}

void check_outputs(const std::vector<Named>& outputs, const std::vector<Named>& inputs) {
  for (const Named& t : outputs) {
    if (!t->given()) continue;
    check_disjoint(t);
    check_alias(t, inputs);
    check_alias(t, outputs);
  }
}

/// The captured tensor whose gradient is asked for, with its name.
Named captured_gradient(const BoundMod& bound, const Args& args, const Backward::Captured& asked,
                        const std::vector<Named>& captures) {
  for (std::uint32_t slot = 0; slot < captures.size(); ++slot)
    if ((asked.slot >= 0 || asked.of.given()) && is_of(asked, args, slot)) return captures[slot];
  std::string known = "this attention reads no captured tensor";
  if (!captures.empty()) {
    known = "this attention reads ";
    for (std::size_t i = 0; i < captures.size(); ++i)
      known += fmt::format("{}`{}` ({})", i ? ", " : "", bound.mod.captures[i].name, captures[i]->describe());
  }
  throw refuse("grad-not-captured", "a gradient is asked for a tensor that was not captured",
               fmt::format("it is {}; {}",
                           asked.slot >= 0 ? fmt::format("capture number {}", asked.slot) : asked.of.describe(), known),
               "ask for the gradient of a tensor that the score, prob mod or sink reads, with the same data, shape and "
               "strides");
}

/// Are both gradients of one capture?
bool overlap(const Backward::Captured& a, const Backward::Captured& b, const Args& args) {
  for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
    if (is_of(a, args, slot) && is_of(b, args, slot)) return true;
  return false;
}

}  // namespace

bool values_within_keys(const Tensor& k, const Tensor& v) {
  if (v.data != k.data || v.dtype != k.dtype || v.rank != k.rank) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(k.rank); ++i)
    if (v.strides[i] != k.strides[i] && k.shape[i] > 1) return false;
  return true;
}

Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale) {
  const Named q{"q", &call.q}, k{"k", &call.k}, v{"v", &call.v}, o{"o", &call.o}, lse{"lse", &call.lse},
      max{"max", &call.max};
  const Problem p = check_inputs({q,
                                  k,
                                  v,
                                  {"cu_seqlens_q", &call.cu_seqlens_q},
                                  {"cu_seqlens_kv", &call.cu_seqlens_kv},
                                  call.q_offset,
                                  call.max_q_len,
                                  call.max_kv_len,
                                  &call},
                                 scale);
  const Args args = args_of(bound, call);
  std::vector<Named> inputs = captures_of(bound, args);
  for (const Named& t : inputs) check_one(t, call.q.device);
  inputs.insert(inputs.end(), {q, k, v});
  const auto add = [&](std::string_view called, const Tensor& t) {
    if (t.given()) inputs.push_back({called, &t});
  };
  add("kv_len", call.kv_len);
  add("q_offsets", call.q_offsets);
  add("pages", call.pages);

  check_o(o, p, q, v);
  check_row_values(lse, p, call.q);
  check_row_values(max, p, call.q);
  if (call.o_before.given() || call.lse_before.given()) {
    const Named o_before{"o_before", &call.o_before}, lse_before{"lse_before", &call.lse_before};
    check_before(o_before, lse_before, p, q, v);
    // Each row is read before it is written in the same place.
    if (*o_before != *o) inputs.push_back(o_before);
    if (*lse_before != *lse) inputs.push_back(lse_before);
  }
  check_outputs({o, lse, max}, inputs);
  return p;
}

Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale) {
  const Named q{"q", &call.q}, k{"k", &call.k}, v{"v", &call.v}, o{"o", &call.o}, lse{"lse", &call.lse},
      grad_o{"grad_o", &call.grad_o}, grad_lse{"grad_lse", &call.grad_lse}, dq{"dq", &call.dq}, dk{"dk", &call.dk},
      dv{"dv", &call.dv};
  const Problem p = check_inputs({q,
                                  k,
                                  v,
                                  {"cu_seqlens_q", &call.cu_seqlens_q},
                                  {"cu_seqlens_kv", &call.cu_seqlens_kv},
                                  call.q_offset,
                                  call.max_q_len,
                                  call.max_kv_len},
                                 scale);
  const Args args = args_of(bound, call);
  const std::vector<Named> captures = captures_of(bound, args);
  for (const Named& t : captures) check_one(t, call.q.device);

  check_results(o, lse, p, q, v);
  check_one(grad_o, call.q.device);
  check_float(grad_o);
  check_shape(grad_o, shape_of_o(p, call.q), [&] { return fmt::format("{} and {}", description(q), description(v)); });
  check_row_values(grad_lse, p, call.q);
  check_gradient(dq, q);
  check_gradient(dk, k);
  check_gradient(dv, v);

  std::vector<Named> inputs = captures, outputs{dq, dk, dv};
  inputs.insert(inputs.end(), {q, k, v, o, lse, grad_o, grad_lse});
  std::deque<std::string> names;
  for (const Backward::Captured& asked : call.captured) {
    const Named of = captured_gradient(bound, args, asked, captures);
    const Named into{names.emplace_back("the gradient of " + of.name()), &asked.into};
    if (!is_float(of->dtype))
      throw refuse("grad-not-float", fmt::format("{} has no gradient", of.name()),
                   fmt::format("{}, and only floating tensors have gradients", description(of)), "leave it out");
    for (const Backward::Captured& other : call.captured)
      if (&other < &asked && overlap(other, asked, args))
        throw refuse("grad-twice", fmt::format("the gradient of {} is asked for twice", of.name()),
                     "the gradients of all its reads come as one sum", "ask once");
    check_one(into, call.q.device);
    check_gradient(into, of);
    outputs.push_back(into);
  }
  check_outputs(outputs, inputs);
  return p;
}

Problem check(const Append& call) {
  const Named k_new{"k_new", &call.k_new}, v_new{"v_new", &call.v_new}, k{"k", &call.k}, v{"v", &call.v},
      kv_len{"kv_len", &call.kv_len}, pages{"pages", &call.pages}, cu{"cu_seqlens", &call.cu_seqlens};
  static const Tensor none;
  const Forward cache{.kv_len = call.kv_len, .pages = call.pages};
  for (const auto& [name, value] : {std::pair{"k_scale", call.k_scale}, {"v_scale", call.v_scale}})
    if (!std::isfinite(value) || value == 0)
      throw refuse("bad-scale", fmt::format("{} is {}", name, value), "what is stored is divided by it",
                   "pass a finite number that is not 0");
  check_alone(kv_len);
  const bool on_device = call.k_new.device.kind == Device::Kind::cuda;
  if (on_device && cu->given() && cu->device.kind == Device::Kind::cpu)
    throw refuse("cu-seqlens-device", "cu_seqlens is on the host, and k_new on a device",
                 "only the kernel reads where new rows start", "pass a copy of cu_seqlens where k_new is");
  Problem p = check_inputs({.q = k_new,
                            .k = k,
                            .v = v,
                            .cu_q = cu,
                            .cu_kv = {"cu_seqlens_kv", &none},
                            .q_offset = 0,
                            // Starts on a device say nothing here: no entry has more than all new rows.
                            .max_q_len = on_device ? call.k_new.shape[0] : 0,
                            .forward = &cache,
                            .one_type = false},
                           {});
  check_one(v_new, call.k_new.device);
  check_float(v_new);
  check_shape(v_new, shape_of_o(p, call.k_new),
              [&] { return fmt::format("{} and {}", description(k_new), description(v)); });
  if (p.q_heads != p.kv_heads || p.kv_shared)
    throw refuse("kv-heads", "the new keys are not those of the cache",
                 fmt::format("{} and {}", description(k_new), description(k)),
                 "give k_new and v_new a row for each head and entry of the cache");
  check_outputs({k, v}, {k_new, v_new, kv_len, pages, cu});
  return p;
}

}  // namespace attune::compiler
