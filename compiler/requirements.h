// compiler/requirements.h — what a call requires of its tensors (rank, types, extents, memory that does not overlap),
// and the message for each
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <attune/error.h>
#include <attune/tensor.h>

namespace attune::compiler {

/// For an argument of a call, which has no line of text to point at.
inline Error refuse(std::string code, std::string problem, std::string why, std::string fix) {
  return Error(std::move(code), std::move(problem), {}, std::move(why), std::move(fix));
}

/// The addresses that a tensor spans; none without elements. `known` is false if they may be more than 2^60.
struct AddressRange {
  std::int64_t begin = 0, end = 0;
  bool known = true;

  bool meets(const AddressRange& other) const {
    return !known || !other.known || (begin < other.end && other.begin < end);
  }
};
inline AddressRange address_range(const Tensor& t) {
  // Without branches: every call asks for each of its tensors.
  constexpr std::int64_t most = std::int64_t{1} << 55;  // elements along a dimension
  std::int64_t below = 0, above = 1;
  bool empty = false, beyond = false;
  for (std::size_t i = 0; i < Tensor::max_rank; ++i) {
    const bool has = static_cast<std::int32_t>(i) < t.rank;
    const std::int64_t steps = has ? t.shape[i] - 1 : 0;
    std::int64_t far = 0;
    const bool wide = __builtin_mul_overflow(has ? t.strides[i] : 0, steps, &far) | (far > most) | (far < -most);
    beyond |= wide;
    far = wide ? 0 : far;
    empty |= steps < 0;
    below += far < 0 ? far : 0;
    above += far > 0 ? far : 0;
  }
  if (empty) return {};
  if (beyond) return {0, 0, false};
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data));
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return {at + below * size, at + above * size, true};
}

/// True if a byte of one tensor is at the same address as a byte of the other. Exact for any shapes and strides, unless
/// they span more than 2^60 bytes or take more than a million steps to decide: then true.
bool share_elements(const Tensor& a, const Tensor& b);

/// A tensor of the call, with the user's name for it.
struct Named {
  std::string_view called;
  const Tensor* tensor;
  bool captured = false;

  std::string name() const;
  const Tensor* operator->() const { return tensor; }
  const Tensor& operator*() const { return *tensor; }
};
std::string description(const Named& t);
/// "on the host", "on cuda:1".
std::string place(const Device& d);

/// The code of an Error.
struct Code {
  std::string_view text;
};

/// The types that a tensor may have, and the message if it has another type.
struct Types {
  std::uint32_t allowed;  ///< a bit per DType
  std::string_view why, fix;
  Code code = Code{"tensor-type"};

  static constexpr std::uint32_t of(std::initializer_list<DType> types) {
    std::uint32_t out = 0;
    for (const DType type : types) out |= 1u << static_cast<unsigned>(type);
    return out;
  }
};
namespace types {
inline constexpr std::uint32_t float_types = Types::of({DType::f32, DType::f16, DType::bf16, DType::f64});
inline constexpr Types floats{float_types, "it has to be f32, f16, bf16 or f64", "convert it to one of these types"},
    floats_or_e4m3{float_types | Types::of({DType::e4m3}), "it has to be f32, f16, bf16, f64 or e4m3",
                   "convert it to one of these types"},
    row_values{Types::of({DType::f32, DType::f64}), "it has to be f32 or f64", "pass f32"},
    starts{Types::of({DType::i32, DType::i64}), "starts of sequences are i32 or i64", "convert it to i32",
           Code{"cu-seqlens-type"}},
    starts_there{Types::of({DType::i32}), "a device reads starts of sequences as i32", "convert it to i32",
                 Code{"cu-seqlens-type"}},
    page_table{Types::of({DType::i32}), "page numbers are i32", "convert it to i32", Code{"page-table"}},
    slots{Types::of({DType::i32, DType::i64}), "slots are i32 or i64", "convert it to i64", Code{"slots"}};
/// One number per entry. Only the host reads i64.
constexpr Types numbers(Code code, bool on_host) {
  return {Types::of({DType::i32}) | (on_host ? Types::of({DType::i64}) : 0), "it has to be i32", "convert it to i32",
          code};
}
}  // namespace types
void check_type(const Named& t, const Types& types);

/// The number of dimensions of a tensor, and their meanings.
struct Dimensions {
  int rank;
  std::string_view layout, fix;
};
namespace dimensions {
inline constexpr std::string_view fix_dense =
    "give it these dimensions: an extent of 1 for a missing one, a permuted view for another order; "
    "pass packed sequences with cu_seqlens_q and cu_seqlens_kv";
inline constexpr Dimensions dense{4, "[B, H, S, D]", fix_dense}, paged{4, "[pages, H, page_size, D]", fix_dense},
    packed{3, "[T, H, D] for packed sequences",
           "give it these dimensions, or leave out cu_seqlens_q and cu_seqlens_kv for a dense batch"},
    starts{1, "[B + 1]", "pass one start per sequence and the end"},
    tokens{3, "[T, H, D] where slots are given", "give it these dimensions: slots are of packed rows"};
}  // namespace dimensions
void check_rank(const Named& t, const Dimensions& wanted);

/// An extent that two tensors share.
struct Shared {
  std::size_t dimension;
  Code code;
  std::string_view problem, fix;
};
namespace shared {
inline constexpr Shared kv_heads{1, Code{"kv-heads"}, "k and v have different numbers of heads",
                                 "give k and v the same heads"},
    kv_lengths{2, Code{"kv-lengths"}, "k and v have different lengths", "give k and v the same length"},
    kv_totals{0, Code{"kv-lengths"}, "k and v have different lengths", "give k and v the same length"},
    kv_batch{0, Code{"kv-batch"}, "k and v have different batch sizes", "give k and v the same batch entries"},
    kv_pages{0, Code{"kv-batch"}, "k and v have different numbers of pages", "give k and v the same pages"},
    page_size{2, Code{"page-size"}, "pages of k and of v have different sizes",
              "give both the same number of rows a page: [pages, H, page_size, D]"},
    sequences{0, Code{"cu-seqlens-batch"}, "cu_seqlens_q and cu_seqlens_kv hold different numbers of sequences",
              "give both one entry per sequence plus one; a sequence may be empty"};
}  // namespace shared
void check_shared(const Named& a, const Named& b, const Shared& extent);

/// Refuses shapes that a Tensor cannot have. The constructor already checks them, but the fields are public.
void check_extents(std::span<const std::int64_t> shape, DType dtype);
/// Checks that apply to any tensor, before checks of its shape.
void check_alone(const Named& t);
/// `device`: the device of the other tensors, of which q is one.
void check_one(const Named& t, const Device& device, std::string_view q = "q");
/// `from`: the tensors that the shape follows from.
void check_shape(const Named& t, std::span<const std::int64_t> shape, std::initializer_list<Named> from);
/// The same, with the reason in words.
void check_shape(const Named& t, std::span<const std::int64_t> shape, std::string_view reason);
/// Refuses outputs in which two elements certainly share memory, and outputs that share memory with another tensor of
/// the call.
void check_outputs(std::span<const Named> outputs, std::span<const Named> inputs);
/// Refuses an output that starts elsewhere than the tensor that is merged into it, but shares a part of its memory:
/// `before` is read before the output is written only if both are at the same place.
void check_in_place(const Named& out, const Named& before);

}  // namespace attune::compiler
