// tools/options/call_options.cpp — options that describe a call: which go together, and what follows from them
#include "tools/options/call_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>
#include <vector>

#include "codegen/choose/card.h"
#include "compiler/problem.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/engines/cuda/kernels/keys.h"

namespace attune::tools {
namespace {

/// Puts options under this heading of the help; an empty one leaves them where they are.
template <class... Options>
void under(const std::string& group, Options*... options) {
  if (!group.empty()) (options->group(group), ...);
}

}  // namespace

DType CallOptions::out_type() const { return runtime::usual_out(type()); }

void CallOptions::add_types_to(CLI::App& verb, const std::string& group) {
  under(group, add_call_type(verb, dtype, fmt::format("{} if left out; ", dtype)),
        verb.add_option("--d", d, fmt::format("width of a head; {} if left out", d))->type_name("N"),
        verb.add_option("--dv", dv, "width of the values; as --d if left out")->type_name("N"), &exact.add_to(verb));
}

void CallOptions::add_sizes_to(CLI::App& verb, const std::string& group, bool beside_picture) {
  if (!beside_picture)
    under(group, verb.add_option("--batch", batch, fmt::format("{} if left out", batch))->type_name("N"),
          verb.add_option("--heads", heads, fmt::format("query heads; {} if left out", heads))->type_name("N"));
  under(group, verb.add_option("--kv-heads", kv_heads, "as many as --heads if left out")->type_name("N"),
        verb.add_option(beside_picture ? "--seq" : "--seq,--q-len", seq, fmt::format("queries; {} if left out", seq))
            ->type_name("N"),
        verb.add_option_function<std::string>(
                beside_picture ? "--kv-seq" : "--kv-seq,--kv-len", [this](const std::string& keys) { read_keys(keys); },
                "keys; the number of queries if left out; with --decode of each entry, or random up to N")
            ->type_name("N|N,...|random:N"));
}

void CallOptions::add_cache_to(CLI::App& verb, const std::string& group, bool beside_picture) {
  under(group,
        verb.add_flag("--decode", decode, "decode: queries are the last positions of their keys; --seq 1 if left out"),
        verb.add_option("--page-size", page_size, "with --decode: a paged KV cache of N keys a page, in random order")
            ->type_name("N"),
        verb.add_option("--cache-dtype", cache_dtype, "of k and v in the cache; that of q if left out")
            ->type_name("e4m3"),
        verb.add_option("--v-columns", v_columns, "MLA: values are the first N columns of the keys")->type_name("N"));
  if (!beside_picture)
    under(group, verb.add_option("--q-offset", q_offset, "position of the first query; 0 if left out")->type_name("N"));
}

void CallOptions::check() const {
  exact.check();
  call_type(dtype);
  if (cache_dtype) require_word("--cache-dtype", *cache_dtype, std::array<std::string, 1>{"e4m3"});
  check_cache();
  for (const auto& [option, value] : {std::pair{"--batch", batch},
                                      {"--heads", heads},
                                      {"--kv-heads", kv_heads.value_or(1)},
                                      {"--d", d},
                                      {"--dv", dv.value_or(1)},
                                      {"--v-columns", v_columns.value_or(1)},
                                      {"--seq", seq},
                                      {decode ? "--kv-len" : "--kv-seq", kv_seq.value_or(1)},
                                      {"--kv-len", kv_random.value_or(1)},
                                      {"--page-size", page_size.value_or(1)}})
    require_size(option, value, 1, compiler::max_length);
  require_size("--q-offset", q_offset.value_or(0), 0, compiler::max_length - seq);
  for (const std::int64_t length : lengths) require_size("--lengths", length, 1, compiler::max_length);
  for (const std::int64_t length : kv_lengths) require_size("--kv-len", length, 1, compiler::max_length);
  if (v_columns && *v_columns > d)
    throw Error("v-columns", "the keys have fewer columns", {.name = fmt::format("--v-columns {}", *v_columns)},
                fmt::format("--d is {}", d), "ask for at most the columns of the keys");
  if (heads % of_kv_heads() != 0)
    throw compiler::uneven_heads(heads, of_kv_heads(),
                                 {.name = fmt::format("--heads {} --kv-heads {}", heads, of_kv_heads())}, "",
                                 "make --heads a multiple of --kv-heads");
  check_products();
}

void CallOptions::check_cache() const {
  for (const auto& [option, given] :
       {std::pair{"--page-size", page_size.has_value()}, {"--kv-len", !kv_lengths.empty() || kv_random.has_value()}})
    if (given && !decode)
      throw misused(option, "pages and lengths of each entry belong to a KV cache, which only decode reads",
                    "write one number of keys, or add --decode");
  for (const auto& [option, given] : {std::pair{"--lengths", packed()}, {"--q-offset", q_offset.has_value()}})
    if (given && decode)
      throw misused(option, "with --decode queries are the last positions of each entry", "leave one of them out");
  if (q_offset && packed())
    throw misused("--q-offset", "packed sequences begin at position 0", "leave one of them out");
  if (v_columns && dv)
    throw misused("--dv", "--v-columns already sets the width of the values: they are columns of the keys",
                  "leave one of them out");
}

void CallOptions::check_for_backward() const {
  if (decode) throw misused("--decode", "decode has no gradients", "leave it out, or ask about a forward");
  if (type() == DType::e4m3)
    throw misused("--dtype", "queries, keys and values of e4m3 have no gradients",
                  "name another type, or ask about a forward");
  if (cache_dtype)
    throw misused("--cache-dtype", "keys and values of e4m3 have no gradients", "leave it out, or ask about a forward");
}

void CallOptions::check_position(const compiler::LoweredMod& lowered) const {
  const bool asks = lowered.cover.mask && (lowered.cover.mask->uses & ir::bit(ir::Input::Q)) != 0;
  if (decode || q_offset || packed() || seq >= of_kv_seq() || !asks) return;
  throw Error("no-position",
              seq == 1 ? fmt::format("the position of the query among its {} keys is not given", of_kv_seq())
                       : fmt::format("the positions of {} queries among their {} keys are not given", seq, of_kv_seq()),
              {.name = fmt::format("--seq {} --kv-seq {}", seq, of_kv_seq())},
              "the mask reads q: which keys it keeps depends on the position",
              "add --decode for the last positions, or --q-offset N for the position of the first query");
}

void CallOptions::check_products() const {
  const std::int64_t widest = std::max(d, of_dv()), longest = std::max(seq, of_kv_seq());
  for (const auto& [what, sizes] : {std::pair{"pairs", std::array{batch, heads, seq, of_kv_seq()}},
                                    {"bytes", std::array{batch, heads, longest, widest * 8}}}) {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes)
      if (__builtin_mul_overflow(product, size, &product))
        throw Error("bad-size", fmt::format("there are too many {} to count", what),
                    {.name = fmt::format("--batch {} --heads {} --seq {} --kv-seq {} --d {} --dv {}", batch, heads, seq,
                                         of_kv_seq(), d, of_dv())},
                    "there are 2^63 or more", "make some of these smaller");
  }
}

void CallOptions::read_keys(std::string_view keys) {
  const auto number = [&](std::string_view word) {
    std::int64_t out = 0;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), out);
    if (wrong != std::errc{} || end != word.data() + word.size())
      throw CLI::ValidationError("--kv-len", fmt::format("`{}` is not a number of keys", word));
    return out;
  };
  constexpr std::string_view random = "random:";
  if (keys.starts_with(random)) {
    kv_random = number(keys.substr(random.size()));
    return;
  }
  for (const std::string& one : split(keys, ',')) kv_lengths.push_back(number(one));
  if (kv_lengths.size() > 1) return;
  kv_seq = kv_lengths[0];
  kv_lengths.clear();
}

void CallOptions::settle(bool has_seq) {
  if (decode && !has_seq) seq = 1;
  if (packed()) {
    batch = static_cast<std::int64_t>(lengths.size());
    seq = *std::ranges::max_element(lengths);
    kv_seq.reset();
  }
  if (kv_random) {
    std::mt19937 dice(7);
    for (std::int64_t b = 0; b < batch; ++b)
      kv_lengths.push_back(std::uniform_int_distribution(std::min(seq, *kv_random), *kv_random)(dice));
  }
  if (!kv_lengths.empty()) {
    batch = static_cast<std::int64_t>(kv_lengths.size());
    kv_seq = *std::ranges::max_element(kv_lengths);
  }
  const std::int64_t least = kv_lengths.empty() ? of_kv_seq() : *std::ranges::min_element(kv_lengths);
  if (decode && least < seq)
    throw Error("bad-size", fmt::format("{} queries cannot be the last of {} keys", seq, least), {.name = "--kv-len"},
                "decode queries are the last positions of their entry", "give it more keys, or fewer queries");
  check_products();
}

std::string CallOptions::lengths_text() const {
  if (packed()) return fmt::format("S={} packed", fmt::join(lengths, "+"));
  const auto [least, most] = std::ranges::minmax(kv_lengths.empty() ? std::vector{of_kv_seq()} : kv_lengths);
  return fmt::format("S={}x{}{}", seq, least == most ? fmt::to_string(most) : fmt::format("{}…{}", least, most),
                     page_size ? fmt::format(", pages of {},", *page_size) : "");
}

void DeviceCall::add_to(CLI::App& verb, bool beside_picture) {
  const std::string group = "The call";
  add_types_to(verb, group);
  add_sizes_to(verb, group, beside_picture);
  add_cache_to(verb, group, beside_picture);
  verb.add_option("--arch", arch, "compute capability times ten")->type_name("N")->group(group);
  verb.add_option("--kernel", kernel, "this kernel, with these tile parameters")
      ->type_name("NAME[:m=N,n=N,...]")
      ->group(group);
  verb.add_flag("--max", max, "with the largest score of each row")->group(group);
  verb.add_flag("--packed", as_packed, "for packed sequences")->group(group);
}

void DeviceCall::check() const {
  CallOptions::check();
  if (as_packed && (decode || q_offset))
    throw misused("--packed", "packed sequences begin at position 0, and have no cache", "leave one of them out");
  // The choice of a kernel refuses architectures that are too old for any.
  if (arch && *arch >= codegen::multiprocessors().front().arch && !runtime::is_known_arch(*arch)) {
    std::vector<int> known;
    for (const codegen::Multiprocessor& one : codegen::multiprocessors()) known.push_back(one.arch);
    throw Error("unknown-target", fmt::format("there is no GPU of compute capability {}.{}", *arch / 10, *arch % 10),
                {.name = "--arch"}, fmt::format("kernels are compiled for {}", fmt::join(known, ", ")),
                "write one of these");
  }
}

codegen::CallSpec DeviceCall::spec(const compiler::LoweredMod& lowered, int otherwise) const {
  CallOptions of = *this;
  if (as_packed) {
    of.lengths.assign(static_cast<std::size_t>(batch), seq);
    of.kv_lengths.assign(static_cast<std::size_t>(batch), of_kv_seq());
  }
  Data data = Data::described();
  const ForwardTensors tensors(of, data);
  Forward call = tensors.call();
  Owned maxima;
  if (max) {
    maxima = data.zeros(DType::f32, tensors.lse.tensor);
    call.max = maxima.tensor;
  }
  std::vector<Tensor> captures;
  for (const Tensor& t : lowered.slots.captures) captures.push_back(data.zeros(t.dtype, t).tensor);
  call.captures = captures;
  codegen::CallSpec out = runtime::call_spec(lowered, call, arch.value_or(otherwise), exact.asked());
  if (kernel) out.preference = {codegen::variant(*kernel), true, ""};
  return out;
}

}  // namespace attune::tools
