// runtime/attention/offline/shape.cpp — the calls that a kernel is for, as commands, manifests and records write them
#include "runtime/attention/offline/shape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/choose/card.h"

namespace attune::runtime {
namespace {

using codegen::KernelSpec;

template <class T>
bool set_number(T& into, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (text.empty() || error != std::errc{} || end != text.end() || value < least || value > most) return false;
  into = static_cast<decltype(most)>(value);
  return true;
}
bool set_flag(bool& into, std::string_view text) {
  into = text == "true";
  return into || text == "false";
}
template <class T>
bool set_flag(std::optional<T>& into, std::string_view text) {
  bool value = false;
  const bool good = set_flag(value, text);
  into = value;
  return good;
}
bool set_bytes(std::optional<int>& into, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  into = value;
  return !text.empty() && error == std::errc{} && end == text.end() &&
         (value == 0 || value == 4 || value == 8 || value == 16);
}
bool set_dtype(std::optional<DType>& into, std::string_view text) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    if (attune::name_of(type) == text) into = type;
  return into && attune::name_of(*into) == text;
}
/// `all` or `none` alone, or names of captures.
bool set_grads(std::optional<std::string>& into, std::string_view text) {
  into = text;
  if (text == "all" || text == "none") return true;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    if (name.empty() || name == "all" || name == "none") return false;
    begin = end + 1;
  }
  return true;
}
std::string flag_text(bool value) { return value ? "true" : ""; }
std::string flag_text(std::optional<bool> value) { return value ? *value ? "true" : "false" : ""; }
template <class T>
std::string number_text(std::optional<T> value) {
  return value ? std::to_string(*value) : "";
}
std::string dtype_text(std::optional<DType> value) { return value ? std::string(attune::name_of(*value)) : ""; }

constexpr std::string_view load_widths = "16, 8, 4 or 0";
using JsonForm = ShapeRow::JsonForm;

template <auto Member>
constexpr ShapeRow flag(std::string_view name, std::string_view meaning) {
  return {name,
          "true or false",
          meaning,
          [](Shape& s, std::string_view v) { return set_flag(s.*Member, v); },
          [](const Shape& s) { return flag_text(s.*Member); },
          JsonForm::flag,
          false};
}

constexpr std::array rows{
    ShapeRow{"dtype", "f32, f16, bf16 or e4m3", "of q, k and v; bf16 on GPUs and f32 on CPUs if left out",
             [](Shape& s, std::string_view v) { return set_dtype(s.dtype, v); },
             [](const Shape& s) { return dtype_text(s.dtype); }, JsonForm::text, true},
    ShapeRow{"out_dtype", "f32, f16 or bf16", "of o; if left out dtype, or bf16 where dtype is e4m3",
             [](Shape& s, std::string_view v) { return set_dtype(s.out_dtype, v) && s.out_dtype != DType::e4m3; },
             [](const Shape& s) { return dtype_text(s.out_dtype); }, JsonForm::text, false},
    ShapeRow{"d", "a number from 1 to 576", "width of a head, at most 256 except for MLA; 128 if left out",
             [](Shape& s, std::string_view v) { return set_number(s.d, v, 1, codegen::mla_d); },
             [](const Shape& s) { return std::to_string(s.d); }, JsonForm::number, false},
    ShapeRow{"dv", "a number from 1 to 576", "width of the values, at most 256 except for MLA; d if left out",
             [](Shape& s, std::string_view v) { return set_number(s.dv, v, 1, codegen::mla_d); },
             [](const Shape& s) { return number_text(s.dv); }, JsonForm::number, false},
    ShapeRow{"length", "to_80, to_128, to_224, to_1k, to_4k or longer",
             "range of the sequences' lengths; builds for each if left out",
             [](Shape& s, std::string_view v) { return (s.length = codegen::length_named(v)).has_value(); },
             [](const Shape& s) { return s.length ? std::string(codegen::name_of(*s.length)) : ""; }, JsonForm::text,
             false},
    flag<&Shape::max>("max", "true if the call asks for each row's largest score"),
    flag<&Shape::packed>("packed", "true if sequences are packed"),
    ShapeRow{"shared_heads", "1, 2, 4, 8, 16, 32 or 64",
             "query heads of a key head that share a tile of queries; 1 if left out",
             [](Shape& s, std::string_view v) {
               return set_number(s.heads, v, 1, codegen::mla_rows) &&
                      std::has_single_bit(static_cast<std::uint64_t>(s.heads));
             },
             [](const Shape& s) { return s.heads == 1 ? "" : std::to_string(s.heads); }, JsonForm::number, false},
    flag<&Shape::decode>("decode", "true for decode: at most 16 rows, queries times the heads that share a tile"),
    flag<&Shape::per_entry>("per_entry", "true if entries have their own lengths, positions or pages"),
    flag<&Shape::paged>("paged", "true if the KV cache is paged"),
    flag<&Shape::fp8_kv>("fp8_kv", "true if the KV cache is FP8 (E4M3) and q is not"),
    flag<&Shape::before>("before", "true if results over other keys are merged in"),
    flag<&Shape::fixed_split>("fixed_split", "true if the call has a fixed split size"),
    flag<&Shape::mla>("mla", "true if values are the first columns of keys 576 wide"),
    ShapeRow{"page_rows", "1, 2, 4 … 64", "paged: the largest power of 2 that divides a page's rows; 64 if left out",
             [](Shape& s, std::string_view v) {
               return set_number(s.page_rows, v, 1, 64) && std::has_single_bit(static_cast<std::uint64_t>(s.page_rows));
             },
             [](const Shape& s) { return s.page_rows == 64 ? "" : std::to_string(s.page_rows); }, JsonForm::number,
             false},
    ShapeRow{"row_blocks", "1, 2 or 4",
             "MLA: blocks of a cluster, each with 64 of the rows, queries times heads, that share keys; 1 if left out",
             [](Shape& s, std::string_view v) { return set_number(s.row_blocks, v, 1, 4) && s.row_blocks != 3; },
             [](const Shape& s) { return s.row_blocks == 1 ? "" : std::to_string(s.row_blocks); }, JsonForm::number,
             false},
    flag<&Shape::few_queries>("few_queries", "f32: true if fewer than 256 rows, queries times heads, share keys"),
    flag<&Shape::few_tiles>(
        "few_tiles", "for sm_90a, per_entry: true if there are fewer tiles of queries than SMs, and so many keys "
                     "that blocks share them"),
    flag<&Shape::tma>("tma", "true if TMA can load the tensors; contiguous ones if left out"),
    ShapeRow{"load", load_widths, "bytes of one load of q, k and v; as for contiguous tensors if left out",
             [](Shape& s, std::string_view v) { return set_bytes(s.load, v); },
             [](const Shape& s) { return number_text(s.load); }, JsonForm::number, false},
    ShapeRow{"store", load_widths, "bytes of one store of o; as for a contiguous tensor if left out",
             [](Shape& s, std::string_view v) { return set_bytes(s.store, v); },
             [](const Shape& s) { return number_text(s.store); }, JsonForm::number, false},
    flag<&Shape::negative>("negative", "true if the scale of q . k is negative"),
    flag<&Shape::exact>("exact", "functions within 2 ulp, f32 products as three of TF32; only for f32 if left out"),
    flag<&Shape::offsets64>("offsets64", "true if offsets into captured tensors need more than 32 bits"),
    flag<&Shape::unaligned_captures>("unaligned_captures",
                                     "true if rows of a dense bias are not aligned to 16 bytes, or have fewer "
                                     "columns than there are keys"),
    flag<&Shape::shared_keys>("shared_keys", "for backwards on sm_90a: true if query heads share key heads (GQA, MQA)"),
    ShapeRow{"kernel", "NAME:m=N,n=N,...", "build this kernel too, not only the chosen ones",
             [](Shape& s, std::string_view v) {
               s.kernel = v;
               return !v.empty();
             },
             [](const Shape& s) { return s.kernel.value_or(""); }, JsonForm::text, false},
    flag<&Shape::skeleton>("skeleton", "true: instead of kernels, skeletons that serve other mods too; for sm_90a"),
    ShapeRow{"grads", "all, none, or names joined by +",
             "captured tensors whose gradients a backward computes; builds with all and with none if left out",
             [](Shape& s, std::string_view v) { return set_grads(s.grads, v); },
             [](const Shape& s) { return s.grads.value_or(""); }, JsonForm::text, true},
};

/// The widest copy in load_widths, 4 to 16, that fits rows of this size; 0 if there is none.
int load_width(std::int64_t row) {
  const std::int64_t bits = row | 16, least = bits & -bits;
  return least >= 4 ? static_cast<int>(least) : 0;
}

constexpr std::array<std::string_view, 12> targets{"sm_80", "sm_86",    "sm_89", "sm_90a", "sm_100",     "sm_120",
                                                   "host",  "portable", "avx2",  "avx512", "avx512bf16", "amx"};

}  // namespace

std::span<const ShapeRow> shape_rows() { return rows; }

std::string option_of(const ShapeRow& row) {
  std::string out = "--" + std::string(row.name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

DType usual_out(DType of) { return of == DType::e4m3 ? DType::bf16 : of; }

KernelSpec spec_of(const Shape& shape, int arch) {
  KernelSpec out{
      .arch = arch, .dtype = shape.dtype.value_or(DType::bf16), .d = shape.d, .dv = shape.dv.value_or(shape.d)};
  out.out = shape.out_dtype.value_or(usual_out(out.dtype));
  out.max = shape.max;
  out.packed = shape.packed;
  out.heads = static_cast<int>(shape.heads);
  out.decode = shape.decode;
  out.per_entry = shape.per_entry || shape.paged || shape.mla;
  out.paged = shape.paged;
  out.fp8_kv = shape.fp8_kv;
  out.before = shape.before;
  out.fixed_split = shape.fixed_split;
  out.mla = shape.mla;
  out.row_blocks = static_cast<int>(shape.row_blocks);
  out.few_queries = shape.few_queries;
  out.few_tiles = shape.few_tiles;
  const auto in = static_cast<std::int64_t>(size_of(out.dtype)), written = static_cast<std::int64_t>(size_of(out.out)),
             kept = out.fp8_kv ? 1 : in;
  const std::int64_t rows_of_in = (out.d * in) | (out.d * kept) | (out.dv * kept);
  out.load = shape.load.value_or(load_width(rows_of_in));
  out.store = shape.store.value_or(load_width(out.dv * written));
  out.tma = shape.tma.value_or(out.load == 16 && out.store == 16);
  out.page_rows = codegen::box_rows(out, shape.page_rows);
  out.scale_positive = !shape.negative;
  out.exact = codegen::is_exact(shape.exact, out.dtype);
  out.offsets64 = shape.offsets64;
  out.unaligned_captures = shape.unaligned_captures;
  out.shared_keys = shape.shared_keys;
  return out;
}

Shape shape_of(const KernelSpec& spec, codegen::Length length) {
  Shape out{.dtype = spec.dtype, .d = spec.d, .length = length};
  if (spec.out != usual_out(spec.dtype)) out.out_dtype = spec.out;
  if (spec.dv != spec.d) out.dv = spec.dv;
  out.max = spec.max;
  out.packed = spec.packed;
  out.heads = spec.heads;
  out.decode = spec.decode;
  out.per_entry = spec.per_entry;
  out.paged = spec.paged;
  out.fp8_kv = spec.fp8_kv;
  out.before = spec.before;
  out.fixed_split = spec.fixed_split;
  out.mla = spec.mla;
  if (spec.page_rows) out.page_rows = spec.page_rows;
  out.row_blocks = spec.row_blocks;
  out.few_queries = spec.few_queries;
  out.few_tiles = spec.few_tiles;
  out.negative = !spec.scale_positive;
  out.offsets64 = spec.offsets64;
  out.unaligned_captures = spec.unaligned_captures;
  out.shared_keys = spec.shared_keys;
  const KernelSpec usual = spec_of(out, spec.arch);
  if (usual.load != spec.load) out.load = spec.load;
  if (usual.store != spec.store) out.store = spec.store;
  if (usual.exact != spec.exact) out.exact = spec.exact;
  if (spec_of(out, spec.arch).tma != spec.tma) out.tma = spec.tma;
  return out;
}

bool is_known_arch(int arch) {
  return std::ranges::find(codegen::multiprocessors(), arch, &codegen::Multiprocessor::arch) !=
         codegen::multiprocessors().end();
}

std::optional<TargetName> target_named(std::string_view name) {
  if (const auto isa = codegen::isa_named(name)) return TargetName{.isa = isa};
  constexpr std::string_view prefix = "sm_";
  if (!name.starts_with(prefix)) return std::nullopt;
  int arch = 0;
  const auto [end, error] = std::from_chars(name.begin() + prefix.size(), name.end(), arch);
  // Kernels for Hopper use instructions that no later GPU has, so the target's name ends in an a: sm_90a.
  const std::string_view suffix(end, static_cast<std::size_t>(name.end() - end));
  if (error != std::errc{} || !is_known_arch(arch) || suffix != (arch == 90 ? "a" : "")) return std::nullopt;
  return TargetName{.arch = arch};
}

std::string name_of(const TargetName& target) {
  if (target.isa) return std::string(codegen::name_of(*target.isa));
  return fmt::format("sm_{}{}", target.arch.value_or(0), target.arch == 90 ? "a" : "");
}

std::span<const std::string_view> known_targets() { return targets; }

}  // namespace attune::runtime
