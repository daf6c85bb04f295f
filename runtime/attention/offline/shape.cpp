// runtime/attention/offline/shape.cpp — requests for kernels: calls as commands, manifests and records write them,
// field by field
#include "runtime/attention/offline/shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/choose/card.h"
#include "compiler/problem.h"

namespace attune::runtime {
namespace {

using codegen::KernelSpec, codegen::KvCache, codegen::Sizes, codegen::Strides;

bool set_number(std::int64_t& into, std::string_view text, std::int64_t most) {
  const auto [end, error] = std::from_chars(text.begin(), text.end(), into);
  return error == std::errc{} && end == text.end() && into >= 1 && into <= most;
}

// Fields by their types: a flag, a width, the bytes of a load or store, a type.
constexpr std::string_view flags = "true or false", widths = "a number from 1 to 576", loads = "16, 8, 4 or 0";
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(int value) { return std::to_string(value); }
std::string text_of(DType value) { return std::string(attune::name_of(value)); }
std::string text_of(const std::optional<std::string>& value) { return value.value_or(""); }

template <class T>
bool set_one_of(T& into, std::string_view text, std::initializer_list<T> values) {
  const auto found = std::ranges::find(values, text, [](T value) { return text_of(value); });
  if (found != values.end()) into = *found;
  return found != values.end();
}
bool set(bool& into, std::string_view text) { return set_one_of(into, text, {false, true}); }
bool set(std::int64_t& into, std::string_view text) { return set_number(into, text, codegen::mla_d); }
bool set(int& into, std::string_view text) { return set_one_of(into, text, {16, 8, 4, 0}); }
bool set(DType& into, std::string_view text) {
  return set_one_of(into, text, {DType::f32, DType::f16, DType::bf16, DType::e4m3});
}
/// `all` or `none` alone, or names of captures.
bool set(std::optional<std::string>& into, std::string_view text) {
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

/// The widest copy, 16, 8 or 4 bytes, that fits rows of this size; 0 if there is none.
int load_width(std::int64_t row) {
  const std::int64_t bits = row | 16, least = bits & -bits;
  return least >= 4 ? static_cast<int>(least) : 0;
}
int usual_load(const codegen::KernelSpec& spec) {
  const auto in = static_cast<std::int64_t>(size_of(spec.dtype)), kept = spec.cache.fp8 ? 1 : in;
  return load_width((spec.d * in) | (spec.d * kept) | (spec.dv * kept));
}
/// The kernels of a backward accept any strides of their results.
int usual_store(const Request& request) {
  const codegen::KernelSpec& spec = request.call.spec;
  return request.pass == "forward" ? load_width(spec.dv * static_cast<std::int64_t>(size_of(spec.out)))
                                   : Strides{}.store;
}

/// A size; empty if the kernels are the same without it.
template <std::int64_t Sizes::*Size>
std::string size_text(const Request& request) {
  Request other = request;
  other.sizes.*Size = Sizes{}.*Size;
  if (other.sizes.*Size == request.sizes.*Size) return "";
  settle(other);
  return other.call == request.call ? "" : std::to_string(request.sizes.*Size);
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// The member of a request, or of its spec, that these pointers lead to.
template <auto... Path>
constexpr auto& field(auto& request) {
  if constexpr (requires { (request.*....*Path); })
    return (request.*....*Path);
  else
    return (request.call.spec.*....*Path);
}

template <auto... Path>
constexpr ShapeRow row(std::string_view name, std::string_view takes, std::string_view meaning,
                       void (*usual)(Request&) = nullptr, bool always = false, bool of_cpu = false) {
  return {.name = name,
          .takes = takes,
          .meaning = meaning,
          .set = [](Request& r, std::string_view v) { return set(field<Path...>(r), v); },
          .text = [](const Request& r) { return text_of(field<Path...>(r)); },
          .usual = usual,
          .always = always,
          .of_cpu = of_cpu};
}
template <std::int64_t Sizes::*Size>
constexpr ShapeRow size(std::string_view name, std::string_view meaning) {
  return {.name = name,
          .takes = "a number from 1",
          .meaning = meaning,
          .set = [](Request& r, std::string_view v) { return set_number(r.sizes.*Size, v, compiler::max_length); },
          .text = size_text<Size>};
}

constexpr std::array rows{
    row<&KernelSpec::dtype>(
        "dtype", "f32, f16, bf16 or e4m3", "of q, k and v; bf16 on GPUs and f32 on CPUs if left out",
        [](Request& r) { r.call.spec.dtype = r.target.isa ? DType::f32 : DType::bf16; }, true, true),
    ShapeRow{.name = "out_dtype",
             .takes = "f32, f16 or bf16",
             .meaning = "of o; if left out dtype, or bf16 where dtype is e4m3",
             .set = [](Request& r, std::string_view v) { return v != "e4m3" && set(r.call.spec.out, v); },
             .text = [](const Request& r) { return text_of(r.call.spec.out); },
             .usual = [](Request& r) { r.call.spec.out = usual_out(r.call.spec.dtype); }},
    row<&KernelSpec::d>("d", widths, "width of a head, at most 256 except for MLA; 128 if left out", nullptr, true),
    row<&KernelSpec::dv>("dv", widths, "width of the values, at most 256 except for MLA; d if left out",
                         [](Request& r) { r.call.spec.dv = r.call.spec.d; }),
    ShapeRow{.name = "length",
             .takes = "to_80, to_128, to_224, to_1k, to_4k or longer",
             .meaning = "range of the sequences' lengths; builds for each if left out",
             .set =
                 [](Request& r, std::string_view v) {
                   const auto length = codegen::length_named(v);
                   r.call.length = length.value_or(codegen::Length::longer);
                   r.each_length = false;
                   return length.has_value();
                 },
             .text = [](const Request& r) { return std::string(r.each_length ? "" : codegen::name_of(r.call.length)); },
             .usual = [](Request& r) { r.each_length = true; }},
    row<&KernelSpec::max>("max", flags, "true if the call asks for each row's largest score"),
    row<&KernelSpec::packed>("packed", flags, "true if sequences are packed"),
    size<&Sizes::q_len>("q_len", "queries of the longest sequence; too many to matter if left out"),
    size<&Sizes::group>("group", "query heads of a key head; 1 if left out"),
    size<&Sizes::page_size>("page_size", "rows of a page of a paged KV cache; no pages if left out"),
    row<&KernelSpec::cache, &KvCache::fp8>("fp8_kv", flags, "true if the KV cache is FP8 (E4M3) and q is not"),
    row<&KernelSpec::cache, &KvCache::mla>("mla", flags, "true if values are the first columns of keys 576 wide"),
    row<&KernelSpec::cache, &KvCache::per_entry>(
        "per_entry", flags, "true if entries have their own lengths, positions or pages; for pages and MLA if left out",
        [](Request& r) { r.call.spec.cache.per_entry = r.call.spec.cache.mla || r.sizes.page_size > 0; }),
    row<&KernelSpec::before>("before", flags, "true if results over other keys are merged in"),
    row<&KernelSpec::fixed_split>("fixed_split", flags, "true if the call has a fixed split size"),
    row<&KernelSpec::strides, &Strides::load>("load", loads,
                                              "bytes of one load of q, k and v; as for contiguous tensors if left out",
                                              [](Request& r) { r.call.spec.strides.load = usual_load(r.call.spec); }),
    row<&KernelSpec::strides, &Strides::store>("store", loads,
                                               "bytes of one store of o; as for a contiguous tensor if left out",
                                               [](Request& r) { r.call.spec.strides.store = usual_store(r); }),
    row<&KernelSpec::strides, &Strides::tma>(
        "tma", flags, "true if TMA can load the tensors; true where load and store are 16 if left out",
        [](Request& r) {
          Strides& strides = r.call.spec.strides;
          strides.tma = strides.load == 16 && strides.store == 16;
        }),
    row<&KernelSpec::negative>("negative", flags, "true if the scale of q . k is negative"),
    row<&KernelSpec::exact>("exact", flags,
                            "functions within 2 ulp, f32 products as three of TF32; only for f32 if left out",
                            [](Request& r) { r.call.spec.exact = codegen::is_exact({}, r.call.spec.dtype); }),
    row<&KernelSpec::strides, &Strides::offsets64>("offsets64", flags,
                                                   "true if offsets into captured tensors need more than 32 bits"),
    row<&KernelSpec::strides, &Strides::unaligned_captures>(
        "unaligned_captures", flags,
        "true if rows of a dense bias are not aligned to 16 bytes, or have fewer columns than there are keys"),
    row<&KernelSpec::strides, &Strides::unaligned_second>("unaligned_second", flags,
                                                          "the same of a second dense bias, if both have 16 bits"),
    ShapeRow{.name = "kernel",
             .takes = "NAME:m=N,n=N,...",
             .meaning = "build this kernel too, not only the chosen ones",
             .set =
                 [](Request& r, std::string_view v) {
                   if (!v.empty()) r.call.preference = {codegen::variant(v), true, ""};
                   return !v.empty();
                 },
             .text = [](const Request& r) { return r.call.preference ? r.call.preference->variant.text() : ""; }},
    row<&Request::skeleton>("skeleton", flags,
                            "true: instead of kernels, skeletons that serve other mods too; for sm_90a"),
    row<&Request::grads>(
        "grads", "all, none, or names joined by +",
        "captured tensors whose gradients a backward computes; builds with all and with none if left out", nullptr,
        false, true),
};

constexpr std::array<std::string_view, 12> targets{"sm_80", "sm_86",    "sm_89", "sm_90a", "sm_100",     "sm_120",
                                                   "host",  "portable", "avx2",  "avx512", "avx512bf16", "amx"};

}  // namespace

std::span<const ShapeRow> shape_rows() { return rows; }

std::string option_of(const ShapeRow& row) {
  std::string out = "--" + std::string(row.name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

const ShapeRow* read_shape(Request& request, const Fields& fields) {
  if (request.target.arch) request.call.spec.arch = *request.target.arch;
  for (const ShapeRow& row : rows) {
    if (row.usual) row.usual(request);
    const auto given = fields.find(row.name);
    if (given != fields.end() && !row.set(request, given->second)) return &row;
  }
  settle(request);
  return nullptr;
}

void settle(Request& request) {
  codegen::KernelSpec& spec = request.call.spec;
  if (request.pass == "forward")
    codegen::settle(spec, request.sizes);
  else
    spec.sharing = codegen::sharing_of_backward(spec.arch, request.sizes.group);
}

DType usual_out(DType of) { return of == DType::e4m3 ? DType::bf16 : of; }

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
