// examples/runtime/model.h — a Llama-like decoder on the host: norms, RoPE, linear layers, SwiGLU; attention is a
// callback
#pragma once

#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "safetensors.h"

namespace runtime {

struct Config {
  int layers, heads, kv_heads, d, width, hidden, vocabulary;
  int window;  ///< of --mod window: the keys that a query sees
  float cap;   ///< of --mod softcap
  float theta, epsilon;

  /// From the metadata of a model file.
  explicit Config(const SafeTensors& file) {
    constexpr const char* version = "1";
    if (file.word("format") != "attune-runtime")
      file.refuse("is no model of this program: examples/runtime/twin.py makes one");
    if (file.word("version") != version)
      file.refuse("is of version " + file.word("version") + ", and this program reads version " + version);
    const auto number = [&](const char* name, double most, bool is_whole = false) {
      const std::string word = file.word(name);
      double out = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
      if (error != std::errc() || end != word.data() + word.size() || !(out > 0 && out <= most) ||
          (is_whole && out != std::floor(out)))
        file.refuse("says " + std::string(name) + " is `" + word + "`; it takes " +
                    (is_whole ? "whole numbers" : "numbers") + " above 0, to " +
                    std::to_string(static_cast<long>(most)));
      return out;
    };
    // To where no product of two of them leaves an int.
    const auto whole = [&](const char* name, int most) { return static_cast<int>(number(name, most, true)); };
    layers = whole("layers", 1 << 14), heads = whole("heads", 1 << 14), kv_heads = whole("kv_heads", 1 << 14);
    d = whole("head_dim", 1 << 14), width = whole("width", 1 << 20), hidden = whole("hidden", 1 << 20);
    vocabulary = whole("vocabulary", 1 << 24), window = whole("window", 1 << 24);
    cap = static_cast<float>(number("softcap", 1e6));
    theta = static_cast<float>(number("rope_theta", 1e9)), epsilon = static_cast<float>(number("norm_epsilon", 1));
    if (heads % kv_heads != 0 || d % 2 != 0)
      file.refuse("has " + std::to_string(heads) + " heads of " + std::to_string(d) + " over " +
                  std::to_string(kv_heads) + " of keys: heads share keys evenly, and RoPE turns pairs");
  }
  int qkv() const { return (heads + 2 * kv_heads) * d; }
};

// ---- y = W x -----------------------------------------------------------------------------------------------------

/// Rows are outputs, as model files have them, so each output is a dot product of two contiguous rows.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> w{};
};

// Summed in lanes: a compiler may not reorder a plain sum of floats.
using Lanes [[gnu::vector_size(32)]] = float;

/// R outputs of T tokens at once: each element that is loaded is used R or T times.
template <int R, int T>
[[gnu::always_inline]] inline void tile(const Matrix& m, std::int64_t row, const Rows& in, std::int64_t token,
                                        const Rows& out) {
  const float* const w = m.w.data() + row * m.columns;
  Lanes sums[std::size_t{R}][std::size_t{T}] = {};
  std::int64_t i = 0;
  for (; i + 8 <= m.columns; i += 8)
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) {
        Lanes a, b;
        std::memcpy(&a, w + r * m.columns + i, sizeof a);
        std::memcpy(&b, in[token + t] + i, sizeof b);
        sums[r][t] += a * b;
      }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) {
      float sum = 0;
      for (int lane = 0; lane < 8; ++lane) sum += sums[r][t][lane];
      for (std::int64_t j = i; j < m.columns; ++j) sum += w[r * m.columns + j] * in[token + t][j];
      out[token + t][row + r] = sum;
    }
}
[[gnu::always_inline]] inline void outputs(const Matrix& m, std::int64_t first, std::int64_t last, const Rows& in,
                                           const Rows& out) {
  std::int64_t row = first;
  for (; row + 4 <= last; row += 4) {
    std::int64_t token = 0;
    for (; token + 2 <= in.count; token += 2) tile<4, 2>(m, row, in, token, out);
    if (token < in.count) tile<4, 1>(m, row, in, token, out);
  }
  for (; row < last; ++row)
    for (std::int64_t token = 0; token < in.count; ++token) tile<1, 1>(m, row, in, token, out);
}
#if defined(__x86_64__)
// The program is compiled for any x86-64, and looks for wider registers when it runs.
[[gnu::target("avx2,fma")]] inline void wide_outputs(const Matrix& m, std::int64_t first, std::int64_t last,
                                                     const Rows& in, const Rows& out) {
  outputs(m, first, last, in, out);
}
#endif

inline void linear(Pool& pool, const Matrix& m, const Rows& in, const Rows& out) {
  // Some 16 us of work each, far more than it costs to hand out a task.
  const std::int64_t rows_of_task = std::max<std::int64_t>(4, 131072 / (m.columns * in.count) / 4 * 4);
  pool.run((m.rows + rows_of_task - 1) / rows_of_task, [&](std::int64_t task, int) {
    const std::int64_t first = task * rows_of_task, last = std::min(m.rows, first + rows_of_task);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return wide_outputs(m, first, last, in, out);
#endif
    outputs(m, first, last, in, out);
  });
}

// ---- the model ---------------------------------------------------------------------------------------------------

class Model {
 public:
  explicit Model(const SafeTensors& file) : config_(file) {
    const Config& c = config_;
    const auto matrix = [&](std::initializer_list<std::pair<std::string, int>> parts, int columns) {
      Matrix out{0, columns};
      for (const auto& [name, rows] : parts) {
        file.read(name + ".weight", {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}, out.w);
        out.rows += rows;
      }
      return out;
    };
    const auto vector = [&](const std::string& name) {
      std::vector<float> out;
      file.read(name + ".weight", {static_cast<std::uint64_t>(c.width)}, out);
      return out;
    };
    embedding_ = matrix({{"model.embed_tokens", c.vocabulary}}, c.width);
    output_ = matrix({{"lm_head", c.vocabulary}}, c.width);
    last_norm_ = vector("model.norm");
    for (int l = 0; l < c.layers; ++l) {
      const std::string of = "model.layers." + std::to_string(l) + ".", a = of + "self_attn.", m = of + "mlp.";
      // Products with the same input are one: q, k and v, and both halves of SwiGLU.
      layers_.push_back(
          {vector(of + "input_layernorm"), vector(of + "post_attention_layernorm"),
           matrix({{a + "q_proj", c.heads * c.d}, {a + "k_proj", c.kv_heads * c.d}, {a + "v_proj", c.kv_heads * c.d}},
                  c.width),
           matrix({{a + "o_proj", c.width}}, c.heads * c.d),
           matrix({{m + "gate_proj", c.hidden}, {m + "up_proj", c.hidden}}, c.width),
           matrix({{m + "down_proj", c.width}}, c.hidden)});
    }
  }
  const Config& config() const { return config_; }

  /// The likeliest next token behind each of the rows `ends`. attend(layer, qkv, o) fills o, a row of all heads for
  /// each token, from the rows of q, k and v.
  template <class Attend>
  std::vector<int> next(const std::vector<int>& tokens, const std::vector<int>& positions, const std::vector<int>& ends,
                        Arena& arena, Pool& pool, const Attend& attend) const {
    const Config& c = config_;
    const auto count = static_cast<std::int64_t>(tokens.size());
    const auto rows = [&](int width) { return Rows(arena, count, width); };
    const Rows x = rows(c.width), in = rows(c.width), qkv = rows(c.qkv()), o = rows(c.heads * c.d),
               back = rows(c.width), halves = rows(2 * c.hidden), hidden = rows(c.hidden), turns = rows(c.d);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto token = static_cast<std::size_t>(i);
      std::copy_n(embedding_.w.data() + std::int64_t{tokens[token]} * c.width, c.width, x[i]);
      for (int j = 0; j < c.d / 2; ++j) {
        const double angle = positions[token] * std::pow(double{c.theta}, -2.0 * j / c.d);
        turns[i][2 * j] = static_cast<float>(std::cos(angle)),
                     turns[i][2 * j + 1] = static_cast<float>(std::sin(angle));
      }
    }
    const auto each = [&](const auto& of_row) { pool.run(count, [&](std::int64_t i, int) { of_row(i); }); };
    for (int l = 0; l < c.layers; ++l) {
      const Layer& of = layers_[static_cast<std::size_t>(l)];
      each([&](std::int64_t i) { norm(x[i], of.before_attention, in[i]); });
      linear(pool, of.qkv, in, qkv);
      each([&](std::int64_t i) { turn(qkv[i], turns[i]); });
      attend(l, qkv, o);
      linear(pool, of.o, o, back);
      each([&](std::int64_t i) {
        for (int j = 0; j < c.width; ++j) x[i][j] += back[i][j];
        norm(x[i], of.before_mlp, in[i]);
      });
      linear(pool, of.gate_up, in, halves);
      each([&](std::int64_t i) {
        const float *gate = halves[i], *up = gate + c.hidden;
        for (int j = 0; j < c.hidden; ++j) hidden[i][j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
      });
      linear(pool, of.down, hidden, back);
      each([&](std::int64_t i) {
        for (int j = 0; j < c.width; ++j) x[i][j] += back[i][j];
      });
    }
    // Logits of the last tokens alone: of a prompt, no others are asked for.
    const Rows last(arena, static_cast<std::int64_t>(ends.size()), c.width), logits(arena, last.count, c.vocabulary);
    for (std::int64_t i = 0; i < last.count; ++i) norm(x[ends[static_cast<std::size_t>(i)]], last_norm_, last[i]);
    linear(pool, output_, last, logits);
    std::vector<int> out;
    for (std::int64_t i = 0; i < last.count; ++i)
      out.push_back(static_cast<int>(std::max_element(logits[i], logits[i] + c.vocabulary) - logits[i]));
    return out;
  }

 private:
  struct Layer {
    std::vector<float> before_attention, before_mlp;
    Matrix qkv, o, gate_up, down;
  };

  void norm(const float* x, const std::vector<float>& weight, float* out) const {
    float sum = 0;
    for (int j = 0; j < config_.width; ++j) sum += x[j] * x[j];
    const float factor = 1 / std::sqrt(sum / static_cast<float>(config_.width) + config_.epsilon);
    for (int j = 0; j < config_.width; ++j) out[j] = x[j] * factor * weight[static_cast<std::size_t>(j)];
  }
  /// RoPE on the heads of q and k: element j turns with element j + d/2.
  void turn(float* qkv, const float* turns) const {
    const int half = config_.d / 2;
    for (int h = 0; h < config_.heads + config_.kv_heads; ++h, qkv += config_.d)
      for (int j = 0; j < half; ++j) {
        const float a = qkv[j], b = qkv[j + half], cosine = turns[2 * j], sine = turns[2 * j + 1];
        qkv[j] = a * cosine - b * sine;
        qkv[j + half] = b * cosine + a * sine;
      }
  }

  Config config_;
  Matrix embedding_, output_;
  std::vector<float> last_norm_;
  std::vector<Layer> layers_;
};

}  // namespace runtime
