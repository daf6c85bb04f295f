// ir/named.cpp — the named mods, a row for each form, as texts of the language
#include "ir/named.h"

#include <algorithm>

#include "ir/range.h"

namespace attune::ir {
namespace {

constexpr NamedArgument number(std::string_view name) { return {name, Type::F32, -1}; }
constexpr NamedArgument share(std::string_view name) { return {name, Type::F32, -1, true}; }
constexpr NamedArgument whole(std::string_view name) { return {name, Type::I32, -1}; }
constexpr NamedArgument floats(std::string_view name, int rank) { return {name, Type::F32, rank}; }
constexpr NamedArgument ints(std::string_view name, int rank) { return {name, Type::I32, rank}; }
constexpr NamedArgument bools(std::string_view name, int rank) { return {name, Type::Bool, rank}; }

constexpr std::array rows{
    // Masks.
    NamedMod{"causal", {}, "kv <= q"},
    NamedMod{"causal", {whole("offset")}, "kv <= q + offset"},
    NamedMod{"window", {whole("width")}, "kv <= q && q - kv < width"},
    NamedMod{"sliding_window", {whole("width")}, "kv <= q && q - kv < width"},
    NamedMod{"two_sided_window", {whole("reach")}, "abs(q - kv) <= reach"},
    NamedMod{"dilated_window", {whole("reach"), whole("step")}, "abs(q - kv) <= reach && (q - kv) % step == 0"},
    NamedMod{"sink_window", {whole("width"), whole("sinks")}, "kv <= q && (q - kv < width || kv < sinks)"},
    NamedMod{"prefix", {ints("length", 1)}, "kv < length[b] || kv <= q"},
    NamedMod{"prefix", {whole("length")}, "kv < length || kv <= q"},
    NamedMod{"padding", {ints("length", 1)}, "kv < length[b]"},
    NamedMod{"document", {ints("id", 1)}, "id[q] == id[kv]"},
    NamedMod{"document", {ints("id", 2)}, "id[b, q] == id[b, kv]"},
    NamedMod{"chunked", {whole("length")}, "q / length == kv / length"},
    NamedMod{"block_causal", {whole("length")}, "kv / length <= q / length"},
    NamedMod{"global_tokens", {bools("is_global", 1)}, "is_global[q] || is_global[kv]"},
    NamedMod{"neighbourhood_2d",
             {whole("width"), whole("height"), whole("reach")},
             "abs(clamp(q % width, reach, width - 1 - reach) - kv % width) <= reach && "
             "abs(clamp(q / width, reach, height - 1 - reach) - kv / width) <= reach"},
    NamedMod{"tree",
             {bools("sees", 3)},
             "kv < kv_len - q_len || sees[b, max(q - (kv_len - q_len), 0), max(kv - (kv_len - q_len), 0)]"},
    NamedMod{"dense", {bools("keep", 2)}, "keep[q, kv]"},
    NamedMod{"dense", {bools("keep", 3)}, "keep[h, q, kv]"},
    NamedMod{"dense", {bools("keep", 4)}, "keep[b, h, q, kv]"},
    // Scores.
    NamedMod{"alibi", {floats("slope", 1)}, "s + slope[h] * f32(kv - q)"},
    NamedMod{"alibi", {number("heads")}, "s + exp2(-8.0f * f32(h + 1) / heads) * f32(kv - q)"},
    NamedMod{"softcap", {number("cap")}, "cap * tanh(s / cap)"},
    NamedMod{"relative_position", {}, "s + f32(q - kv)"},
    NamedMod{"relative_bias", {floats("table", 2), whole("reach")}, "s + table[h, q - kv + reach]"},
    NamedMod{"bucketed_bias",
             {floats("table", 2), ints("bucket", 1), whole("reach")},
             "s + table[h, bucket[clamp(q - kv + reach, 0, 2 * reach)]]"},
    NamedMod{"dense_bias", {floats("bias", 2)}, "s + bias[q, kv]"},
    NamedMod{"dense_bias", {floats("bias", 3)}, "s + bias[h, q, kv]"},
    NamedMod{"dense_bias", {floats("bias", 4)}, "s + bias[b, h, q, kv]"},
    NamedMod{"head_bias", {floats("bias", 1)}, "s + bias[h]"},
    NamedMod{"key_bias", {floats("bias", 1)}, "s + bias[kv]"},
    NamedMod{"dequantise", {floats("q_scale", 3), floats("kv_scale", 2)}, "s * q_scale[b, h, q] * kv_scale[b, kv]"},
    // After the softmax.
    NamedMod{"dropout",
             {share("keep"), whole("seed")},
             "let n = max(round(keep * 65536.0f), 1.0f); where(kept(seed, i32(n)), p / (n / 65536.0f), 0.0f)"},
    NamedMod{"head_gate", {floats("gate", 1)}, "p * gate[h]"},
    // Sinks.
    NamedMod{"learned_sink", {floats("logit", 1)}, "logit[h]"},
};

}  // namespace

std::size_t NamedMod::count() const {
  return static_cast<std::size_t>(std::ranges::count_if(takes, &NamedArgument::given));
}

std::string NamedMod::shown() const {
  std::string out(name);
  out += '(';
  for (std::size_t i = 0; i < count(); ++i) out.append(i ? ", " : "").append(takes[i].name);
  return out + ')';
}

bool is_no_share(const Expr& number) {
  const Interval of = range(number);
  return !of.numbers() || of.hi <= 0 || of.lo > 1;
}

std::span<const NamedMod> named_mods() { return rows; }

bool is_named_mod(std::string_view name) { return std::ranges::find(rows, name, &NamedMod::name) != rows.end(); }

}  // namespace attune::ir
