// tests/numerics/differences.cpp — central differences of a scalar loss
#include "tests/numerics/differences.h"

#include <cmath>
#include <functional>
#include <random>

#include "compiler/mod.h"
#include "runtime/machine/tensor.h"

namespace attune::tests {
namespace {

using Vector = std::vector<double>;

Vector read(const Tensor& t) {
  Vector out;
  for (std::int64_t i = 0; i < t.size(); ++i) out.push_back(runtime::load(t, i));
  return out;
}
void write(const Tensor& t, const Vector& values) {
  for (std::size_t i = 0; i < values.size(); ++i) runtime::store(t, static_cast<std::int64_t>(i), values[i]);
}
double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::map<std::string, double> gradient_errors(const Attention& attention, const std::map<std::string, Tensor>& captures,
                                              const DifferenceCase& at) {
  std::mt19937_64 random(at.seed);
  std::normal_distribution<double> normal;
  const Device cpu = Device::cpu();
  std::vector<Array<double>> memory;
  const auto array = [&](std::initializer_list<std::int64_t> shape, bool filled) {
    memory.push_back(cpu.array<double>(shape));
    if (filled)
      for (double& x : memory.back().values()) x = normal(random);
    return memory.back().tensor();
  };
  const Tensor q = array({at.batch, at.q_heads, at.q_len, at.d}, true);
  const Tensor k = array({at.batch, at.kv_heads, at.kv_len, at.d}, true);
  const Tensor v = array({at.batch, at.kv_heads, at.kv_len, at.dv}, true);
  const Tensor o = array({at.batch, at.q_heads, at.q_len, at.dv}, false);
  const Tensor lse = array({at.batch, at.q_heads, at.q_len}, false);
  const Tensor grad_o = array({at.batch, at.q_heads, at.q_len, at.dv}, true);
  const Tensor grad_lse = array({at.batch, at.q_heads, at.q_len}, at.with_lse);

  const auto loss = [&] {
    attention.run({.q = q, .k = k, .v = v, .o = o, .lse = lse, .q_offset = at.q_offset});
    double sum = dot(read(o), read(grad_o));
    const Vector l = read(lse), w = read(grad_lse);
    for (std::size_t i = 0; i < l.size(); ++i)
      if (std::isfinite(l[i])) sum += l[i] * w[i];
    return sum;
  };

  struct Wanted {
    std::string name;
    Tensor of, gradient;
  };
  std::vector<Wanted> wanted{{"q", q, {}}, {"k", k, {}}, {"v", v, {}}};
  for (const auto& [name, tensor] : captures)
    if (compiler::type_of(tensor.dtype) == ir::Type::F32) wanted.push_back({name, tensor, {}});
  Backward backward{.q = q, .k = k, .v = v, .grad_o = grad_o, .q_offset = at.q_offset};
  if (at.with_lse) backward.grad_lse = grad_lse;
  for (Wanted& w : wanted) {
    const std::span shape(w.of.shape.data(), static_cast<std::size_t>(w.of.rank));
    memory.emplace_back(cpu, shape);
    w.gradient = memory.back().tensor();
    for (std::int64_t i = 0; i < w.gradient.size(); ++i) runtime::store(w.gradient, i, 7);  // overwritten, not added to
    (w.name == "q" ? backward.dq : w.name == "k" ? backward.dk : backward.dv) = w.gradient;
    if (w.name != "q" && w.name != "k" && w.name != "v") {
      backward.dv = wanted[2].gradient;
      backward.captured.push_back({w.of, w.gradient});
    }
  }
  attention.backward(backward);

  std::map<std::string, double> errors;
  for (const Wanted& w : wanted) {
    const Vector start = read(w.of), gradient = read(w.gradient);
    double& worst = errors[w.name];
    const auto along = [&](const Vector& direction) {
      const auto moved = [&](double by) {
        Vector x = start;
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += by * direction[i];
        write(w.of, x);
        return loss();
      };
      const double difference = (moved(at.step) - moved(-at.step)) / (2 * at.step);
      const double error = std::abs(difference - dot(gradient, direction)) / std::max(1.0, std::abs(difference));
      worst = std::isnan(error) ? error : std::max(worst, error);
    };
    for (int n = 0; n < at.directions && !start.empty(); ++n) {
      Vector direction(start.size());
      for (double& x : direction) x = normal(random);
      along(direction);
    }
    for (int n = 0; n < at.coordinates && !start.empty(); ++n) {
      Vector direction(start.size());
      direction[std::uniform_int_distribution<std::size_t>(0, start.size() - 1)(random)] = 1;
      along(direction);
    }
    write(w.of, start);
  }
  return errors;
}

}  // namespace attune::tests
