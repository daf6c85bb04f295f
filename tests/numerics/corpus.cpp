// tests/numerics/corpus.cpp — the mods, one or two lines each, and their data
#include "tests/numerics/corpus.h"

#include <cmath>
#include <random>

#include "runtime/machine/tensor.h"

namespace attune::tests {
namespace {

using enum DType;

std::vector<CorpusMod> mods() {
  const CorpusCapture slope{"slope", f32, {4}, Fill::slopes};
  const CorpusCapture doc{"doc", i32, {28}, Fill::documents};
  const auto table = [](std::string name, std::vector<std::int64_t> shape) {
    return CorpusCapture{std::move(name), f32, std::move(shape), Fill::normal};
  };
  const std::string causal = "kv <= q";
  std::vector<CorpusMod> m;
  // ---- scores by position -------------------------------------------------------------------------------------------
  m.push_back({.name = "plain"});
  m.push_back({.name = "relative", .score = "s + f32(q - kv)"});
  m.push_back({.name = "near_boost", .score = "abs(q - kv) <= 8 ? 2.0f * s : s"});
  m.push_back({.name = "checkerboard", .score = "(q - kv) % 2 == 0 ? 0.5f * s : s"});
  m.push_back({.name = "distance_decay", .score = "s / (1.0f + 1e-4f * f32((q - kv) * (q - kv)))"});
  m.push_back({.name = "log_distance", .score = "s - log(1.0f + f32(abs(q - kv)))"});
  m.push_back({.name = "rotary_like", .score = "s * cos(0.1f * f32(q - kv)) + sin(0.2f * f32(q + kv))"});
  m.push_back({.name = "from_the_end", .score = "s + 0.1f * f32(kv_len - 1 - kv) - 0.05f * f32(q_len - q)"});
  m.push_back({.name = "odd_keys_off", .score = "kv % 2 == 0 ? s : -inf"});
  m.push_back({.name = "halves", .score = "kv < kv_len / 2 ? s : 0.5f * s"});
  // ---- scores by head and batch -------------------------------------------------------------------------------------
  m.push_back({.name = "alibi", .score = "s + slope[h] * f32(kv - q)", .mask = causal, .captures = {slope}});
  m.push_back({.name = "alibi_closed", .score = "s + exp2(-8.0f * f32(h + 1) / 4.0f) * f32(kv - q)", .mask = causal});
  m.push_back({.name = "head_bias", .score = "s + hb[h]", .captures = {table("hb", {4})}});
  m.push_back({.name = "token_batch_head_bias",
               .score = "s + tb[q] + bb[b] + hb[h]",
               .captures = {table("tb", {24}), table("bb", {2}), table("hb", {4})}});
  m.push_back({.name = "head_temperature", .score = "s * exp(ht[h])", .captures = {table("ht", {4})}});
  m.push_back({.name = "batch_temperature", .score = "s / bt[b]", .captures = {{"bt", f32, {2}, Fill::positive}}});
  // ---- softcaps and other bounded or curved scores ------------------------------------------------------------------
  m.push_back({.name = "softcap", .score = "30.0f * tanh(s / 30.0f)"});
  m.push_back({.name = "softcap_param", .score = "c * tanh(s / c)", .params = {{"c", 2.5}}});
  m.push_back({.name = "softcap_after_alibi",
               .score = "c * tanh((s + slope[h] * f32(kv - q)) / c)",
               .mask = causal,
               .captures = {slope},
               .params = {{"c", 5}}});
  m.push_back({.name = "sigmoid_score", .score = "log(sigmoid(s) + 1.0f)"});
  m.push_back({.name = "silu", .score = "s * sigmoid(s)"});
  m.push_back({.name = "gelu", .score = "0.5f * s * (1.0f + erf(s * 0.70710678f))"});
  m.push_back({.name = "square", .score = "s * s"});
  m.push_back({.name = "twice", .score = "2 * s"});
  m.push_back({.name = "relu_power", .score = "pow(max(s, 0.0f) + 0.1f, 1.5f)"});
  m.push_back({.name = "clamped", .score = "clamp(s, -0.4f, 0.6f)"});
  m.push_back({.name = "root", .score = "s > 0.0f ? sqrt(s + 0.01f) : -rsqrt(1.0f - s)"});
  m.push_back({.name = "guarded_log", .score = "s > 0.0f ? log(s) : s"});
  m.push_back({.name = "trigonometry", .score = "tan(0.3f * s) + sin(s) * cos(s)"});
  m.push_back({.name = "powers_of_two", .score = "exp2(0.3f * s) - log2(1.5f + s * s)"});
  m.push_back({.name = "rounded", .score = "s + 0.25f * (round(s) - floor(s) + ceil(s) - trunc(s))"});
  m.push_back(
      {.name = "learned_power", .score = "pow(abs(s) + 0.1f, hp[h])", .captures = {{"hp", f32, {4}, Fill::positive}}});
  m.push_back({.name = "straight_through", .score = "custom(round(4.0f * s) / 4.0f, 1.0f)", .smooth = false});
  // ---- tables -------------------------------------------------------------------------------------------------------
  m.push_back({.name = "bias_2d", .score = "s + bias[q, kv]", .captures = {table("bias", {24, 28})}});
  m.push_back({.name = "bias_3d", .score = "s + bias[h, q, kv]", .captures = {table("bias", {4, 24, 28})}});
  m.push_back({.name = "bias_4d", .score = "s + bias[b, h, q, kv]", .captures = {table("bias", {2, 4, 24, 28})}});
  m.push_back({.name = "bias_transposed", .score = "s + bias[kv, q]", .captures = {table("bias", {28, 24})}});
  m.push_back({.name = "bias_broadcast", .score = "s + bias[0, kv]", .captures = {table("bias", {1, 28})}});
  m.push_back({.name = "relative_table", .score = "s + t[h, q - kv + 28]", .captures = {table("t", {4, 52})}});
  m.push_back({.name = "relative_table_short", .score = "s + t[h, q - kv + 8]", .captures = {table("t", {4, 16})}});
  m.push_back({.name = "t5",
               .score = "s + t[h, bucket[clamp(q - kv + 16, 0, 32)]]",
               .captures = {table("t", {4, 8}), {"bucket", i32, {33}, Fill::indices, 8}}});
  m.push_back({.name = "absolute_distance", .score = "s + t[abs(q - kv)]", .captures = {table("t", {28})}});
  m.push_back({.name = "window_table", .score = "s + t[clamp(q - kv + 4, 0, 8)]", .captures = {table("t", {9})}});
  m.push_back({.name = "sum_table", .score = "s + t[q + kv]", .captures = {table("t", {52})}});
  m.push_back({.name = "key_bias", .score = "s + kb[kv]", .captures = {table("kb", {28})}});
  m.push_back({.name = "query_gain", .score = "s * qg[q]", .captures = {table("qg", {24})}});
  m.push_back(
      {.name = "sandwich", .score = "s + t[q - kv + 28] * hs[h]", .captures = {table("t", {52}), table("hs", {4})}});
  m.push_back({.name = "table_twice", .score = "s + t[q] * t[kv]", .captures = {table("t", {28})}});
  m.push_back({.name = "quantised_cache",
               .score = "s * qs[b, h, q] * ks[b, kv]",
               .captures = {{"qs", f32, {2, 4, 24}, Fill::positive}, {"ks", f32, {2, 28}, Fill::positive}}});
  m.push_back({.name = "scalar_capture",
               .score = "s * gain[] + shift[]",
               .captures = {{"gain", f32, {}, Fill::positive}, table("shift", {})}});
  m.push_back({.name = "half_tables",
               .score = "s + a[kv] + c[h, q]",
               .captures = {{"a", bf16, {28}, Fill::normal}, {"c", f16, {4, 24}, Fill::normal}},
               .smooth = false});
  // ---- reductions ---------------------------------------------------------------------------------------------------
  m.push_back({.name = "dot_product",
               .score = "s + sum(i, 6, qf[q, i] * kf[kv, i])",
               .captures = {table("qf", {24, 6}), table("kf", {28, 6})}});
  m.push_back({.name = "distance_in_space",
               .score = "s - sqrt(0.1f + sum(i, 3, (x[q, i] - y[kv, i]) * (x[q, i] - y[kv, i])))",
               .captures = {table("x", {24, 3}), table("y", {28, 3})}});
  m.push_back({.name = "small_network",
               .score = "s + sum(i, 4, w2[i] * tanh(sum(j, 3, w1[i, j] * x[kv, j]) + 0.1f * s))",
               .captures = {table("w2", {4}), table("w1", {4, 3}), table("x", {28, 3})}});
  m.push_back({.name = "fourier",
               .score = "s + sum(i, 5, a[h, i] * cos(f32(i + 1) * 0.3f * f32(q - kv)))",
               .captures = {table("a", {4, 5})}});
  m.push_back({.name = "polynomial_in_s", .score = "sum(i, 4, a[i] * pow(s, f32(i)))", .captures = {table("a", {4})}});
  // ---- masks --------------------------------------------------------------------------------------------------------
  m.push_back({.name = "causal", .mask = causal});
  m.push_back({.name = "inverse_causal", .mask = "q <= kv"});
  m.push_back({.name = "causal_offset", .mask = "kv <= q + off", .params = {{"off", 4}}});
  m.push_back({.name = "window", .mask = "kv <= q && q - kv < 7"});
  m.push_back({.name = "two_sided_window", .mask = "abs(q - kv) <= 5"});
  m.push_back({.name = "dilated_window", .mask = "abs(q - kv) <= 9 && (q - kv) % 3 == 0"});
  m.push_back({.name = "sink_window", .mask = "kv <= q && (q - kv < 6 || kv < 4)"});
  m.push_back({.name = "prefix", .mask = "kv < P[b] || kv <= q", .captures = {{"P", i32, {2}, Fill::lengths, 20}}});
  m.push_back(
      {.name = "padding", .mask = "kv < len[b] && q < len[b]", .captures = {{"len", i32, {2}, Fill::lengths, 24}}});
  m.push_back({.name = "documents", .mask = "doc[q] == doc[kv]", .captures = {doc}});
  m.push_back({.name = "documents_causal", .mask = "doc[q] == doc[kv] && kv <= q", .captures = {doc}});
  m.push_back(
      {.name = "documents_i64", .mask = "doc[b, q] == doc[b, kv]", .captures = {{"doc", i64, {2, 28}, Fill::any_ids}}});
  m.push_back({.name = "chunked", .mask = "q / 6 == kv / 6 && kv <= q"});
  m.push_back({.name = "block_causal", .mask = "kv / 5 <= q / 5"});
  m.push_back({.name = "longformer",
               .mask = "abs(q - kv) <= 2 || g[q] || g[kv]",
               .captures = {{"g", boolean, {28}, Fill::coins}}});
  m.push_back({.name = "strided", .mask = "kv <= q && (q - kv < 5 || kv % 5 >= 3)"});
  m.push_back({.name = "big_bird",
               .mask = "abs(q - kv) <= 3 || kv < 2 || r[q / 8, kv / 8]",
               .captures = {{"r", boolean, {3, 4}, Fill::coins}}});
  m.push_back({.name = "neighbourhood",
               .mask = "abs(clamp(q % 6, 1, 4) - kv % 6) <= 1 && abs(clamp(q / 6, 1, 3) - kv / 6) <= 1"});
  m.push_back({.name = "vision_cross",
               .mask = "q >= i0[img[kv]] && q < i0[img[kv] + 1]",
               .captures = {{"i0", i32, {5}, Fill::documents}, {"img", i32, {28}, Fill::indices, 4}}});
  m.push_back({.name = "local_and_global_heads",
               .mask = "(loc[h] ? q - kv < 6 : true) && kv <= q",
               .captures = {{"loc", boolean, {4}, Fill::coins}}});
  m.push_back(
      {.name = "dense_boolean", .mask = "m[b, h, q, kv]", .captures = {{"m", boolean, {2, 4, 24, 28}, Fill::coins}}});
  m.push_back({.name = "byte_mask", .mask = "m[q, kv] != 0", .captures = {{"m", u8, {24, 28}, Fill::indices, 2}}});
  m.push_back({.name = "band_complement", .mask = "kv <= q && !(q - kv < 5)"});
  m.push_back(
      {.name = "window_by_head", .mask = "kv <= q && q - kv < w[h]", .captures = {{"w", i16, {4}, Fill::lengths, 12}}});
  m.push_back({.name = "bit_trick", .mask = "((q ^ kv) & 3) != 0 || q == kv"});
  m.push_back({.name = "powers_of_two_back", .mask = "kv <= q && ((q - kv) & (q - kv - 1)) == 0"});
  m.push_back(
      {.name = "bitmap", .mask = "(rows[q] >> (kv & 31) & 1) == 1", .captures = {{"rows", i32, {24}, Fill::any_ids}}});
  m.push_back({.name = "tree_ancestors",
               .mask = "enter[kv] <= enter[q] && leave[q] <= leave[kv]",
               .captures = {{"enter", i32, {28}, Fill::indices, 12}, {"leave", i32, {28}, Fill::indices, 12}}});
  m.push_back({.name = "run_time_stride", .mask = "(q - kv) % W == 0 || q / W == kv / W", .params = {{"W", 5}}});
  m.push_back({.name = "block_diffusion", .mask = "kv / 4 < q / 4 || (q / 4 == kv / 4 && (q ^ kv) >= 0)"});
  m.push_back({.name = "nothing", .mask = "kv < 0"});
  m.push_back({.name = "first_rows_empty", .mask = "kv <= q - 5"});
  // ---- after the softmax, and sinks ---------------------------------------------------------------------------------
  m.push_back({.name = "dropout", .prob = "dropout(0.8, 7)"});
  m.push_back({.name = "head_gate", .mask = causal, .prob = "p * g[h]", .captures = {table("g", {4})}});
  m.push_back({.name = "threshold", .prob = "p > 1e-3f ? p : 0.0f"});
  m.push_back({.name = "sharpened", .prob = "p * p + gate[q] * p", .captures = {table("gate", {24})}});
  m.push_back({.name = "sink", .mask = causal, .sink = "sl[h]", .captures = {table("sl", {4})}});
  m.push_back({.name = "sink_by_batch",
               .score = "s + hb[h]",
               .mask = "kv <= q - 2",
               .sink = "0.5f * sl[b, h] + hb[h]",
               .captures = {table("sl", {2, 4}), table("hb", {4})}});
  m.push_back(
      {.name = "everything",
       .score = "c * tanh((s + slope[h] * f32(kv - q) + kb[kv]) / c)",
       .mask = "(kv <= q || kv < P[b]) && doc[q] == doc[kv]",
       .prob = "random(3) < 0.9f ? p * g[h] / 0.9f : 0.0f",
       .sink = "sl[h]",
       .captures =
           {slope, table("kb", {28}), {"P", i32, {2}, Fill::lengths, 12}, doc, table("g", {4}), table("sl", {4})},
       .params = {{"c", 3}}});
  m.push_back({.name = "noisy", .score = "s + 0.1f * (random(1) - 0.5f) + 0.1f * random(q % 3)"});
  return m;
}

double draw(std::mt19937_64& random, Fill fill, std::int64_t i, std::int64_t n, int limit) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>()(random); };
  switch (fill) {
    case Fill::normal: return std::normal_distribution<double>()(random);
    case Fill::positive: return 0.5 + uniform();
    case Fill::slopes: return std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(n));
    // Documents of many lengths: 1, 2, 3 … positions, twice.
    case Fill::documents: return std::floor((std::sqrt(8.0 * static_cast<double>(i % 120) / 2 + 1) - 1) / 2);
    case Fill::any_ids: return std::floor(uniform() * 5) - 1;
    case Fill::indices: return std::floor(uniform() * limit);
    case Fill::lengths: return 1 + std::floor(uniform() * limit);
    case Fill::ramp: return static_cast<double>(i * limit);
    case Fill::coins: return uniform() < 0.5 ? 1 : 0;
  }
  return 0;
}

}  // namespace

const std::vector<CorpusMod>& corpus() {
  static const std::vector<CorpusMod> all = mods();
  return all;
}

Made make(const CorpusMod& mod, std::uint64_t seed, DType floats) {
  Made made;
  Text text;
  std::mt19937_64 random(seed);
  for (const CorpusCapture& c : mod.captures) {
    const DType dtype = c.dtype == DType::f32 ? floats : c.dtype;
    std::shared_ptr<void> memory = detail::allocate({}, dtype, c.shape);
    const Tensor tensor(memory.get(), dtype, c.shape);
    const std::int64_t n = tensor.size();
    for (std::int64_t i = 0; i < n; ++i) runtime::store(tensor, i, draw(random, c.fill, i, n, c.limit));
    text.capture(c.name, tensor);
    made.captures.emplace(c.name, tensor);
    made.memory.push_back(std::move(memory));
  }
  for (const auto& [name, value] : mod.params) {
    if (name == "W" || name == "off")
      text.param(name, static_cast<int>(value));
    else
      text.param(name, static_cast<float>(value));
  }
  made.attention.score = text.score(mod.score);
  made.attention.mask = text.mask(mod.mask);
  if (!mod.prob.empty()) made.attention.prob = text.prob(mod.prob);
  if (!mod.sink.empty()) made.attention.sink = text.sink(mod.sink);
  made.attention.target = Target::oracle;
  return made;
}

}  // namespace attune::tests
