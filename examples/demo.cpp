// examples/demo.cpp — what attune is for: your own score, explained, run, checked against plain loops, and timed
#include <attune/attune.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace attune;

namespace {

constexpr int heads = 4, kv_heads = 2, n = 96, d = 32, window = 24;

/// softmax(score) v by plain loops, without attune: ALiBi, a softcap of 20 and a window written by hand.
double plain(const float* q, const float* k, const float* v, double slope, int h, int i, int x) {
  const int kv_head = h / (heads / kv_heads);
  double sum = 0, weighted = 0;
  for (int j = 0; j < n; ++j) {
    if (j > i || i - j >= window) continue;
    double s = 0;
    for (int c = 0; c < d; ++c) s += double{q[(h * n + i) * d + c]} * double{k[(kv_head * n + j) * d + c]};
    s = s / std::sqrt(d) + slope * (j - i);
    const double p = std::exp(20 * std::tanh(s / 20));
    sum += p;
    weighted += p * double{v[(kv_head * n + j) * d + x]};
  }
  return weighted / sum;
}

/// The same attention as a user of attune writes it.
Attention softened(const Array<float>& slope) {
  return {.score = [=](Float s, At at) { return 20.0f * tanh((s + slope[at.head] * (at.kv - at.q)) / 20.0f); },
          .mask = mods::sliding_window(window)};
}

Array<float> normal(std::initializer_list<std::int64_t> shape) {
  static std::mt19937 dice(7);
  std::normal_distribution<float> of;
  const auto out = Device::cpu().array<float>(shape);
  for (float& x : out.values()) x = of(dice);
  return out;
}

/// Slopes that halve from head to head.
Array<float> slopes() {
  const auto out = Device::cpu().array<float>({heads}, "slope");
  for (int h = 0; h < heads; ++h) out.data()[h] = std::exp2(-2.0f * static_cast<float>(h + 1));
  return out;
}

/// A GPU if this machine has one, else its CPU.
Device fastest() {
  try {
    Device::cuda().array<float>({1});
    return Device::cuda();
  } catch (const Error&) {
    return Device::cpu();
  }
}

const char* told(bool right) { return right ? "ok" : "wrong"; }

/// Compares outputs, and the derived gradient of the slopes, with the plain loops.
bool is_right(const Device& device) {
  const auto q = normal({1, heads, n, d}), k = normal({1, kv_heads, n, d}), v = normal({1, kv_heads, n, d});
  const auto slope = slopes(), on_device = slope.on(device);
  const Attention attention = softened(on_device);
  const auto qd = q.on(device), kd = k.on(device), vd = v.on(device), o = device.array<float>({1, heads, n, d}),
             grad = device.array<float>({heads}), ones = normal({1, heads, n, d});
  std::fill(ones.values().begin(), ones.values().end(), 1.0f);
  attention(qd, kd, vd, o);
  attention.backward(
      {.q = qd, .k = kd, .v = vd, .grad_o = ones.on(device), .captured = {{.of = on_device, .into = grad}}});
  const auto results = o.on(Device::cpu()), gradient = grad.on(Device::cpu());

  // The loss is the sum of all outputs.
  double worst = 0, worst_gradient = 0;
  for (int h = 0; h < heads; ++h) {
    const double at = double{slope.data()[h]}, step = 1e-4;
    double difference = 0;
    for (int i = 0; i < n; ++i)
      for (int x = 0; x < d; ++x) {
        const auto with = [&](double value) { return plain(q.data(), k.data(), v.data(), value, h, i, x); };
        worst = std::fmax(worst, std::fabs(with(at) - double{results.data()[(h * n + i) * d + x]}));
        difference += (with(at + step) - with(at - step)) / (2 * step);
      }
    worst_gradient = std::fmax(worst_gradient,
                               std::fabs(difference - double{gradient.data()[h]}) / std::fabs(difference));
  }
  const bool right = worst < 1e-5, gradient_right = worst_gradient < 1e-3;
  std::printf("%s: %d outputs, within %.1e of plain loops written by hand\n", told(right), heads * n * d, worst);
  std::printf("%s: the gradient of each slope, derived by attune, within %.1e of differences of those loops\n",
              told(gradient_right), worst_gradient);
  return right && gradient_right;
}

void time(const Device& device) {
  constexpr int positions = 4096, width = 64, calls = 5;
  const auto q = normal({1, heads, positions, width}).on(device),
             k = normal({1, kv_heads, positions, width}).on(device),
             v = normal({1, kv_heads, positions, width}).on(device),
             o = device.array<float>({1, heads, positions, width});
  const Attention attention = softened(slopes().on(device));
  const auto call = [&](int times) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) attention(q, k, v, o);
    o.on(Device::cpu());  // which waits for a device
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / times;
  };
  const double first = call(1), later = call(calls);
  std::printf("%s, %d heads of %d, %d positions, window of %d: %.0f ms with compiling, then %.2f ms a call\n",
              device.kind == Device::Kind::cuda ? "GPU" : "CPU", heads, width, positions, window, first, later);
}

}  // namespace

int main() {
  const Device device = fastest();
  std::puts(softened(slopes()).explain().c_str());
  const bool right = is_right(device);
  time(device);
  return right ? 0 : 1;
}
