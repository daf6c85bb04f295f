// include/attune/mods.h — named mods, each one line of the language: use them, or read them to learn the language
#pragma once

#include <concepts>
#include <functional>
#include <string_view>

#include <attune/attention.h>

namespace attune::mods {

/// A mod's argument, a number or a Param: it becomes a Value inside the kernel.
template <class T>
class Scalar {
 public:
  template <class N>
  requires(!std::same_as<N, Scalar> && std::convertible_to<const N&, Value<T>>) Scalar(N number)
      : value_([number] { return Value<T>(number); }) {}
  operator Value<T>() const { return value_(); }

 private:
  std::function<Value<T>()> value_;
};

// ---- masks ----------------------------------------------------------------------------------------------------------

inline Mask causal() {
  return [](At at) { return at.kv <= at.q; };
}
/// Causal with the queries shifted by `offset` positions, e.g. with the end of q aligned to the end of kv.
inline Mask causal(Scalar<int> offset) {
  return [=](At at) { return at.kv <= at.q + offset; };
}
/// The last `width` positions, the query's own included.
inline Mask sliding_window(Scalar<int> width) {
  return [=](At at) { return at.kv <= at.q && at.q - at.kv < width; };
}
inline Mask two_sided_window(Scalar<int> reach) {
  return [=](At at) { return abs(at.q - at.kv) <= reach; };
}
/// Every `step`-th position within reach.
inline Mask dilated_window(Scalar<int> reach, Scalar<int> step) {
  return [=](At at) { return abs(at.q - at.kv) <= reach && (at.q - at.kv) % step == 0; };
}
/// The first `sinks` positions and a sliding window.
inline Mask sink_window(Scalar<int> width, Scalar<int> sinks) {
  return [=](At at) { return at.kv <= at.q && (at.q - at.kv < width || at.kv < sinks); };
}
/// Every position sees the prefix, whose length is given per batch entry; after the prefix, causal.
inline Mask prefix(Capture<int> length) {
  return [=](At at) { return at.kv < length[at.batch] || at.kv <= at.q; };
}
inline Mask prefix(Scalar<int> length) {
  return [=](At at) { return at.kv < length || at.kv <= at.q; };
}
/// Keys at or beyond a batch entry's length are padding.
inline Mask padding(Capture<int> length) {
  return [=](At at) { return at.kv < length[at.batch]; };
}
/// A position sees its own document. `id` is [position] or [batch, position].
inline Mask document(Capture<int> id) {
  return
      [=](At at) { return id.tensor().rank == 2 ? id(at.batch, at.q) == id(at.batch, at.kv) : id[at.q] == id[at.kv]; };
}
/// A position sees its own chunk.
inline Mask chunked(Scalar<int> length) {
  return [=](At at) { return at.q / length == at.kv / length; };
}
/// Causal between blocks, free within one.
inline Mask block_causal(Scalar<int> length) {
  return [=](At at) { return at.kv / length <= at.q / length; };
}
/// Global tokens see every token, and every token sees them.
inline Mask global_tokens(Capture<bool> is_global) {
  return [=](At at) { return is_global[at.q] || is_global[at.kv]; };
}
/// A window of (2 * reach + 1)^2 over an image of width x height, shifted inside at the image's edges.
inline Mask neighbourhood_2d(Scalar<int> width, Scalar<int> height, Scalar<int> reach) {
  return [=](At at) {
    const Int x = clamp(at.q % width, reach, width - 1 - reach), y = clamp(at.q / width, reach, height - 1 - reach);
    return abs(x - at.kv % width) <= reach && abs(y - at.kv / width) <= reach;
  };
}
/// A tree of draft tokens, which are the last q_len positions of their entry. Each draft sees every key before the
/// drafts, and the drafts for which `sees` [batch, draft, draft] is true: usually its ancestors and itself.
inline Mask tree(Capture<bool> sees) {
  return [=](At at) {
    const Int known = at.kv_len - at.q_len;
    return at.kv < known || sees(at.batch, max(at.q - known, 0), max(at.kv - known, 0));
  };
}
/// A precomputed mask: [q, kv], [head, q, kv] or [batch, head, q, kv].
inline Mask dense(Capture<bool> keep) {
  return [=](At at) {
    if (keep.tensor().rank == 4) return keep(at.batch, at.head, at.q, at.kv);
    if (keep.tensor().rank == 3) return keep(at.head, at.q, at.kv);
    return keep(at.q, at.kv);
  };
}

// ---- scores ---------------------------------------------------------------------------------------------------------

/// A slope per head.
inline Score alibi(Capture<float> slope) {
  return [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); };
}
/// The usual slopes 2^(-8 (h + 1) / heads), computed in the kernel.
inline Score alibi(int heads) {
  return [=](Float s, At at) {
    return s + exp2(-8.0f * f32(at.head + 1) / static_cast<float>(heads)) * f32(at.kv - at.q);
  };
}
/// A smooth bound: |score| stays below `cap`.
inline Score softcap(Scalar<float> cap) {
  return [=](Float s, At) { return cap * tanh(s / cap); };
}
inline Score relative_position() {
  return [](Float s, At at) { return s + f32(at.q - at.kv); };
}
/// table[head, q - kv + reach]: [heads, 2 * reach]; positions further apart use the table's end entries.
inline Score relative_bias(Capture<float> table, Scalar<int> reach) {
  return [=](Float s, At at) { return s + table(at.head, at.q - at.kv + reach); };
}
/// T5: table is [heads, buckets]; bucket maps each clamped distance to a column, [2 * reach + 1].
inline Score bucketed_bias(Capture<float> table, Capture<int> bucket, Scalar<int> reach) {
  return [=](Float s, At at) { return s + table(at.head, bucket[clamp(at.q - at.kv + reach, 0, 2 * reach)]); };
}
/// A precomputed bias: [q, kv], [head, q, kv] or [batch, head, q, kv].
inline Score dense_bias(Capture<float> bias) {
  return [=](Float s, At at) {
    if (bias.tensor().rank == 4) return s + bias(at.batch, at.head, at.q, at.kv);
    if (bias.tensor().rank == 3) return s + bias(at.head, at.q, at.kv);
    return s + bias(at.q, at.kv);
  };
}
inline Score head_bias(Capture<float> bias) {
  return [=](Float s, At at) { return s + bias[at.head]; };
}
inline Score key_bias(Capture<float> bias) {
  return [=](Float s, At at) { return s + bias[at.kv]; };
}
/// The scales of a quantised cache: q_scale [batch, head, q], kv_scale [batch, kv].
inline Score dequantise(Capture<float> q_scale, Capture<float> kv_scale) {
  return [=](Float s, At at) { return s * q_scale(at.batch, at.head, at.q) * kv_scale(at.batch, at.kv); };
}

// ---- after the softmax ----------------------------------------------------------------------------------------------

namespace detail {
/// Refuses a number that is certainly not above 0 and up to 1, such as the literal 2.
void check_share(std::string_view name, const Float& number, Line at);
}  // namespace detail

/// Keeps each probability with probability `keep`, above 0 and up to 1, scaled by 1 / keep; drops the others. `keep` is
/// the share that is kept: 1 - dropout_p of torch. It counts as the nearest multiple of 1/65536, but not as 0.
inline Prob dropout(Scalar<float> keep, Scalar<int> seed, Line at = Line::here()) {
  return [=](Float p, At) {
    const Float share = keep;
    detail::check_share("keep", share, at);
    const Float n = max(round(share * 65536.0f), 1.0f);
    return where(kept(seed, i32(n)), p / (n / 65536.0f), 0.0f);
  };
}
inline Prob head_gate(Capture<float> gate) {
  return [=](Float p, At at) { return p * gate[at.head]; };
}

// ---- sinks ----------------------------------------------------------------------------------------------------------

/// One logit per head.
inline Sink learned_sink(Capture<float> logit) {
  return [=](SinkAt at) { return logit[at.head]; };
}

}  // namespace attune::mods
