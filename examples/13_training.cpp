// examples/13_training.cpp — a small transformer learns on packed documents: the same losses on every engine
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace attune;

namespace {

constexpr int vocabulary = 16, width = 32, heads = 2, d = width / heads, hidden = 64, layers = 2, reach = 16;
constexpr int lag = 4;  // a document repeats itself after this many tokens

/// A matrix of weights or activations, and the gradient of the loss by it.
struct Matrix {
  int rows = 0, columns = 0;
  std::vector<float> x, dx;

  Matrix(int r, int c) : rows(r), columns(c), x(static_cast<std::size_t>(r * c)), dx(x.size()) {}
  float& at(int i, int j) { return x[static_cast<std::size_t>(i * columns + j)]; }
  float& grad(int i, int j) { return dx[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix product(Matrix& a, Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int n = 0; n < a.columns; ++n)
      for (int j = 0; j < b.columns; ++j) out.at(i, j) += a.at(i, n) * b.at(n, j);
  return out;
}
void product_backward(Matrix& a, Matrix& b, Matrix& out) {
  for (int i = 0; i < a.rows; ++i)
    for (int n = 0; n < a.columns; ++n)
      for (int j = 0; j < b.columns; ++j) {
        a.grad(i, n) += out.grad(i, j) * b.at(n, j);
        b.grad(n, j) += out.grad(i, j) * a.at(i, n);
      }
}

/// The inverse root of the mean square of row i.
float norm_of(Matrix& a, int i) {
  float sum = 1e-6f;
  for (int j = 0; j < a.columns; ++j) sum += a.at(i, j) * a.at(i, j) / static_cast<float>(a.columns);
  return 1 / std::sqrt(sum);
}
Matrix normed(Matrix& a) {
  Matrix out(a.rows, a.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.columns; ++j) out.at(i, j) = a.at(i, j) * norm_of(a, i);
  return out;
}
void normed_backward(Matrix& a, Matrix& out) {
  for (int i = 0; i < a.rows; ++i) {
    float along = 0;
    for (int j = 0; j < a.columns; ++j) along += out.at(i, j) * out.grad(i, j) / static_cast<float>(a.columns);
    for (int j = 0; j < a.columns; ++j) a.grad(i, j) += norm_of(a, i) * (out.grad(i, j) - out.at(i, j) * along);
  }
}

void add(Matrix& to, Matrix& from) {
  for (std::size_t i = 0; i < to.x.size(); ++i) to.x[i] += from.x[i];
}

/// Documents of random tokens that repeat, one after another, and where each document starts.
struct Documents {
  std::vector<int> tokens, starts{0};

  explicit Documents(std::mt19937& dice) {
    for (const int length : {23, 40, 9, 31}) {
      for (int t = 0; t < length; ++t)
        tokens.push_back(t < lag ? static_cast<int>(dice() % vocabulary) : tokens[tokens.size() - lag]);
      starts.push_back(static_cast<int>(tokens.size()));
    }
  }
  int size() const { return static_cast<int>(tokens.size()); }
};

/// One attention of the model: its device and its memory.
class Attend {
 public:
  Attend(const Device& device, Target target, int tokens)
      : tokens_(tokens), device_(device), table_(device.array<float>({heads, 2 * reach}, "table")),
        grad_table_(device.array<float>({heads, 2 * reach})), lse_(device.array<float>({heads, tokens})), q_(array()),
        k_(array()), v_(array()), o_(array()), grad_o_(array()), dq_(array()), dk_(array()), dv_(array()) {
    // [attention]
    attention_ = {.score = mods::softcap(20) | mods::relative_bias(table_, reach), .mask = mods::causal()};
    // [attention]
    attention_.target = target;
  }

  void run(Matrix& q, Matrix& k, Matrix& v, Matrix& table, Matrix& o, const Array<int>& starts) {
    to(table.x, table_), to(q.x, q_), to(k.x, k_), to(v.x, v_);
    attention_.run({.q = q_, .k = k_, .v = v_, .o = o_, .lse = lse_, .cu_seqlens_q = starts, .cu_seqlens_kv = starts});
    from(o_, o.x);
  }
  void backward(Matrix& q, Matrix& k, Matrix& v, Matrix& table, Matrix& o, const Array<int>& starts) {
    to(o.dx, grad_o_);
    // [backward]
    attention_.backward({.q = q_,
                         .k = k_,
                         .v = v_,
                         .grad_o = grad_o_,
                         .o = o_,
                         .lse = lse_,
                         .dq = dq_,
                         .dk = dk_,
                         .dv = dv_,
                         .captured = {{.of = table_, .into = grad_table_}},
                         .cu_seqlens_q = starts,
                         .cu_seqlens_kv = starts});
    // [backward]
    from(dq_, q.dx), from(dk_, k.dx), from(dv_, v.dx), from(grad_table_, table.dx);
  }

 private:
  Array<float> array() const { return device_.array<float>({tokens_, heads, d}); }
  static Tensor here(std::vector<float>& x, const Tensor& like) {
    return {x.data(), DType::f32, std::span(like.shape).first(static_cast<std::size_t>(like.rank))};
  }
  static void to(std::vector<float>& x, const Tensor& there) { copy(here(x, there), there); }
  static void from(const Tensor& there, std::vector<float>& x) { copy(there, here(x, there)); }

  int tokens_;
  Device device_;
  Array<float> table_, grad_table_, lse_, q_, k_, v_, o_, grad_o_, dq_, dk_, dv_;
  Attention attention_;
};

struct Layer {
  Matrix q{width, width}, k{width, width}, v{width, width}, o{width, width}, up{width, hidden}, down{hidden, width};
  Matrix table{heads, 2 * reach};
};

/// What a layer computed, for its backward.
struct Pass {
  Matrix in, normed_in, q, k, v, attended, projected, middle, normed_middle, up, down;
};

class Model {
 public:
  Model(const Device& device, Target target) : device_(device), target_(target), layers_(layers) {
    std::mt19937 dice(13);
    for (Matrix* w : weights())
      if (w->rows != heads)  // a table of biases starts at 0
        for (float& x : w->x) x = std::normal_distribution<float>(0, 1 / std::sqrt(static_cast<float>(w->rows)))(dice);
  }

  /// One step of Adam on these documents. Returns the loss before the step.
  double step(const Documents& documents) {
    for (Matrix* w : weights()) std::fill(w->dx.begin(), w->dx.end(), 0.0f);
    const double loss = gradients(documents);
    update();
    return loss;
  }

 private:
  std::vector<Matrix*> weights() {
    std::vector<Matrix*> all{&embedding_, &output_};
    for (Layer& l : layers_)
      for (Matrix* w : {&l.q, &l.k, &l.v, &l.o, &l.up, &l.down, &l.table}) all.push_back(w);
    return all;
  }

  double gradients(const Documents& documents) {
    const int n = documents.size();
    const auto starts = Device::cpu().array<int>({static_cast<std::int64_t>(documents.starts.size())});
    std::copy(documents.starts.begin(), documents.starts.end(), starts.data());
    while (attend_.size() < layers_.size()) attend_.emplace_back(device_, target_, n);

    Matrix x(n, width);
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < width; ++j) x.at(t, j) = embedding_.at(documents.tokens[static_cast<std::size_t>(t)], j);
    std::vector<Pass> passes;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      Layer& w = layers_[l];
      Pass p{x, normed(x), {0, 0}, {0, 0}, {0, 0}, {n, width}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}};
      p.q = product(p.normed_in, w.q), p.k = product(p.normed_in, w.k), p.v = product(p.normed_in, w.v);
      attend_[l].run(p.q, p.k, p.v, w.table, p.attended, starts);
      p.projected = product(p.attended, w.o);
      add(x, p.projected);
      p.middle = x;
      p.normed_middle = normed(x);
      p.up = product(p.normed_middle, w.up);
      for (float& y : p.up.x) y = std::max(y, 0.0f);
      p.down = product(p.up, w.down);
      add(x, p.down);
      passes.push_back(std::move(p));
    }
    Matrix last = normed(x), logits = product(last, output_);
    const double loss = cross_entropy(documents, logits);

    product_backward(last, output_, logits);
    normed_backward(x, last);
    for (std::size_t l = layers_.size(); l-- > 0;) {
      Layer& w = layers_[l];
      Pass& p = passes[l];
      // x.dx is the gradient of the layer's output. It flows around each half (the residual) and through it.
      p.down.dx = x.dx;
      product_backward(p.up, w.down, p.down);
      for (std::size_t i = 0; i < p.up.x.size(); ++i) p.up.dx[i] *= p.up.x[i] > 0 ? 1.0f : 0.0f;
      product_backward(p.normed_middle, w.up, p.up);
      p.middle.dx = x.dx;
      normed_backward(p.middle, p.normed_middle);
      p.projected.dx = p.middle.dx;
      product_backward(p.attended, w.o, p.projected);
      attend_[l].backward(p.q, p.k, p.v, w.table, p.attended, starts);
      product_backward(p.normed_in, w.q, p.q);
      product_backward(p.normed_in, w.k, p.k);
      product_backward(p.normed_in, w.v, p.v);
      p.in.dx = p.middle.dx;
      normed_backward(p.in, p.normed_in);
      x.dx = p.in.dx;
    }
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < width; ++j) embedding_.grad(documents.tokens[static_cast<std::size_t>(t)], j) += x.grad(t, j);
    return loss;
  }

  /// The mean loss of the tokens that repeat an earlier one, each predicted from the tokens before it.
  static double cross_entropy(const Documents& documents, Matrix& logits) {
    double loss = 0;
    int count = 0;
    for (std::size_t i = 1; i < documents.starts.size(); ++i)
      count += documents.starts[i] - documents.starts[i - 1] - lag;
    for (std::size_t i = 1; i < documents.starts.size(); ++i)
      for (int t = documents.starts[i - 1] + lag - 1; t + 1 < documents.starts[i]; ++t) {
        const int next = documents.tokens[static_cast<std::size_t>(t) + 1];
        float top = logits.at(t, 0), sum = 0;
        for (int j = 0; j < vocabulary; ++j) top = std::max(top, logits.at(t, j));
        for (int j = 0; j < vocabulary; ++j) sum += std::exp(logits.at(t, j) - top);
        loss -= static_cast<double>(logits.at(t, next) - top - std::log(sum)) / count;
        for (int j = 0; j < vocabulary; ++j)
          logits.grad(t, j) = (std::exp(logits.at(t, j) - top) / sum - (j == next ? 1.0f : 0.0f)) /
                              static_cast<float>(count);
      }
    return loss;
  }

  void update() {
    ++steps_;
    const std::vector<Matrix*> all = weights();
    mean_.resize(all.size()), square_.resize(all.size());
    for (std::size_t w = 0; w < all.size(); ++w) {
      mean_[w].resize(all[w]->x.size()), square_[w].resize(all[w]->x.size());
      for (std::size_t i = 0; i < all[w]->x.size(); ++i) {
        const float g = all[w]->dx[i];
        mean_[w][i] += 0.1f * (g - mean_[w][i]);
        square_[w][i] += 0.01f * (g * g - square_[w][i]);
        const float m = mean_[w][i] / (1 - std::pow(0.9f, steps_)), s = square_[w][i] / (1 - std::pow(0.99f, steps_));
        all[w]->x[i] -= 0.005f * m / (std::sqrt(s) + 1e-6f);
      }
    }
  }

  Device device_;
  Target target_;
  Matrix embedding_{vocabulary, width}, output_{width, vocabulary};
  std::vector<Layer> layers_;
  std::vector<Attend> attend_;  ///< of each layer; all steps have as many tokens
  std::vector<std::vector<float>> mean_, square_;
  float steps_ = 0;
};

struct Curve {
  std::string name, colour;
  std::vector<double> losses;
};

/// Nothing if this machine lacks the engine.
std::optional<Curve> trained(const std::string& name, const std::string& colour, const Device& device, Target target,
                             int steps) try {
  Model model(device, target);
  std::mt19937 dice(1);
  Curve out{name, colour, {}};
  const Documents documents(dice);
  for (int i = 0; i < steps; ++i) out.losses.push_back(model.step(documents));
  return out;
} catch (const Error& e) {
  if (e.code != "no-device" && e.code != "no-engine" && e.code != "no-compiler") throw;
  std::printf("not on %s: %s\n", name.c_str(), e.why.c_str());
  return std::nullopt;
}

void write_svg(const char* path, const std::vector<Curve>& curves) {
  std::FILE* file = std::fopen(path, "w");
  if (!file) return std::perror(path);
  std::fputs("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 640 340' font-family='sans-serif' font-size='13'>\n"
             "<path d='M40 10V300H620' fill='none' stroke='#888'/>\n"
             "<text x='10' y='20'>3</text><text x='10' y='304'>0</text><text x='570' y='320'>steps</text>\n",
             file);
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const auto& [name, colour, losses] = curves[c];
    // Later curves are thinner, because matching curves cover each other.
    std::fprintf(file, "<polyline fill='none' stroke='%s' stroke-width='%zu' points='", colour.c_str(),
                 2 * (curves.size() - c) - 1);
    for (std::size_t i = 0; i < losses.size(); ++i)
      std::fprintf(file, "%.1f,%.1f ", 40 + 580.0 * static_cast<double>(i) / static_cast<double>(losses.size()),
                   300 - 290 * std::min(losses[i], 3.0) / 3);
    std::fprintf(file, "'/>\n<text x='480' y='%zu' fill='%s'>%s, at last %.3f</text>\n", 40 + 20 * c, colour.c_str(),
                 name.c_str(), losses.back());
  }
  std::fputs("</svg>\n", file);
  std::fclose(file);
}

}  // namespace

/// 13_training [STEPS [FILE.svg]]
int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 60;
  std::vector<Curve> curves;
  for (auto curve : {trained("oracle", "#b5b5b5", Device::cpu(), Target::oracle, steps),
                     trained("CPU engine", "#d9822b", Device::cpu(), Target::cpu, steps),
                     trained("GPU", "#1f6feb", Device::cuda(), Target::cuda, steps)})
    if (curve) curves.push_back(std::move(*curve));
  if (argc > 2) write_svg(argv[2], curves);
  bool right = curves.size() > 1;
  for (const Curve& curve : curves) {
    double apart = 0;
    for (std::size_t i = 0; i < curve.losses.size(); ++i)
      apart = std::max(apart, std::fabs(curve.losses[i] - curves[0].losses[i]));
    std::printf("%-10s  loss %.4f to %.4f, at most %.1e from the %s's\n", curve.name.c_str(), curve.losses.front(),
                curve.losses.back(), apart, curves[0].name.c_str());
    right &= apart < 0.01 && (steps < 60 || curve.losses.back() < curve.losses.front() / 4);
  }
  std::puts(right ? "ok" : "wrong");
}
