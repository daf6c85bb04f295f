// tests/tools/offline_calls.cpp — calls written in C++, for offline.py: each run by its name, or its kernels considered
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "compiler/lower.h"
#include "runtime/attention/offline/request.h"
#include "runtime/engines/cuda/kernels/consider.h"

using namespace attune;

namespace {

std::mt19937 dice(11);

template <class T>
Array<T> filled(std::initializer_list<std::int64_t> shape, std::string name = {}) {
  auto out = Device::cpu().array<T>(shape, std::move(name));
  for (T& x : out.values()) x = static_cast<T>(std::normal_distribution<float>()(dice));
  return out;
}

/// The tensors of a call, with rows of `row` elements in memory.
template <class T>
struct Tensors {
  std::int64_t d, row;
  int q_len;
  Array<T> q, k, v, o, exact;

  explicit Tensors(std::int64_t width, int queries = 40, std::int64_t row_width = 0)
      : d(width), row(row_width ? row_width : width), q_len(queries), q(filled<T>({2, 4, queries, row})),
        k(filled<T>({2, 2, 48, row})), v(filled<T>({2, 2, 48, row})), o(Device::cpu().array<T>({2, 4, queries, row})),
        exact(Device::cpu().array<T>({2, 4, queries, row})) {}

  Tensor view(const Tensor& t) const {
    Tensor out = t;
    out.shape[3] = d;
    return out;
  }
};

/// Is the result within this tolerance of the oracle's?
template <class T>
bool is_right(Attention attention, const Tensors<T>& t, double within) {
  Forward call{.q = t.view(t.q), .k = t.view(t.k), .v = t.view(t.v), .o = t.view(t.o)};
  attention.run(call);
  attention.target = Target::oracle;
  call.o = t.view(t.exact);
  attention.run(call);
  double worst = 0;
  for (std::size_t i = 0; i < t.o.values().size(); ++i)
    worst = std::fmax(worst, std::fabs(static_cast<double>(static_cast<float>(t.o.values()[i])) -
                                       static_cast<double>(static_cast<float>(t.exact.values()[i]))));
  return worst < within;
}

using Make = std::function<Attention()>;

/// Attentions that users write, and ones that are hard to express as text.
const std::map<std::string, Make>& attentions() {
  static const auto slope = filled<float>({4}, "slope"), bias = filled<float>({40, 48}),
                    again = filled<float>({48}, "t"), other = filled<float>({4}, "t");
  static const auto ids = Device::cpu().array<int>({48}, "it's");  // not a name in the language
  static const Param<float> cap("cap", 20.0f);
  static const Param<int> ahead("ahead", 3);
  static const std::map<std::string, Make> all{
      {"plain", [] { return Attention{}; }},
      {"captures",
       [] {
         return Attention{
             .score = [](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q) + bias(at.q, at.kv); },
             .mask = [](At at) { return ids[at.q] == ids[at.kv] && at.kv <= at.q; }};
       }},
      {"params",
       [] {
         return Attention{.score = [](Float s, At) { return cap * tanh(s / cap); },
                          .mask = [](At at) { return at.kv <= at.q + ahead; }};
       }},
      {"sinks", [] { return Attention{.sink = [](SinkAt at) { return other[at.head] - 0.5f; }}; }},
      {"same_names",
       [] { return Attention{.score = [](Float s, At at) { return s + again[at.kv] * other[at.head]; }}; }},
      {"dropped",
       [] {
         return Attention{.score =
                              [](Float s, At at) {
                                const Float unused = bias(at.q, at.kv) * Float(cap);
                                (void)unused;
                                return s * 0.5f + again[at.kv];
                              },
                          .sink = [](SinkAt at) { return other[at.head]; }};
       }},
      {"dropped_without_sink",
       [] {
         return Attention{.score = [](Float s, At at) {
           const Int unused = ids[at.q];
           (void)unused;
           return s * 0.25f;
         }};
       }},
      {"sums",
       [] {
         return Attention{.score = [](Float s, At at) {
           return s + sum(4, [&](Int i) { return slope[i] * cos(f32(i + 1) * f32(at.q - at.kv)); });
         }};
       }},
      {"probabilities",
       [] {
         return Attention{.prob = [](Float p, At at) { return where(random(7) < 0.9f, p * p, f32(at.kv % 2) * p); }};
       }},
      {"heads",
       [] {
         return Attention{.score = [](Float s, At at) { return where(at.head % 2 == 0, -s, s + 1e-3f * -1.0f); },
                          .mask = [](At at) { return !(at.kv > at.q) || at.kv < at.kv_len / 2; }};
       }},
  };
  return all;
}

bool forward_is_right(const std::string& way, const Attention& attention) {
  if (way == "f32") return is_right(attention, Tensors<float>(16), 1e-4);
  if (way == "bf16") return is_right(attention, Tensors<bf16>(16), 6e-2);
  if (way == "f16") return is_right(attention, Tensors<f16>(24), 1e-2);
  if (way == "decode") return is_right(attention, Tensors<bf16>(16, 1), 6e-2);
  if (way == "strides") return is_right(attention, Tensors<float>(13, 40, 21), 1e-4);
  return false;
}

bool backward_runs(const Attention& attention, const Tensor& by) {
  const Tensors<float> t(16);
  const auto dq = filled<float>({2, 4, 40, 16}), dk = filled<float>({2, 2, 48, 16}), dv = filled<float>({2, 2, 48, 16}),
             gradient = filled<float>({4});
  Backward call{.q = t.q, .k = t.k, .v = t.v, .grad_o = t.o, .dq = dq, .dk = dk, .dv = dv};
  if (by.given()) call.captured.push_back({by, gradient});
  for (float& x : t.o.values()) x = 1;
  attention.backward(call);
  return std::isfinite(dq.values()[5]) && std::isfinite(gradient.values()[1]);
}

/// A backward on a device, which may be a driver that launches nothing: does it find all its kernels?
bool gpu_backward_runs(const std::string& way) {
  const Device gpu = Device::cuda();
  const auto array = [&](std::int64_t heads, std::int64_t length) { return gpu.array<bf16>({2, heads, length, 16}); };
  const auto q = array(4, 40), k = array(2, 48), v = array(2, 48), o = array(4, 40), grad_o = array(4, 40),
             dq = array(4, 40), dk = array(2, 48), dv = array(2, 48);
  const auto lse = gpu.array<float>({2, 4, 40}), slope = gpu.array<float>({4}, "slope"), into = gpu.array<float>({4});
  const auto doc = gpu.array<int>({48}, "doc");
  const Attention attention{.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); },
                            .mask = [=](At at) { return doc[at.q] == doc[at.kv] && at.kv <= at.q; }};
  Backward call{.q = q, .k = k, .v = v, .grad_o = grad_o, .dq = dq, .dk = dk, .dv = dv};
  if (way != "gpu_alone") call.o = o, call.lse = lse;
  if (way == "gpu_gradients") call.captured.push_back({slope, into});
  if (way == "gpu_causal")
    Attention{.mask = mods::causal()}.backward(call);
  else
    attention.backward(call);
  return true;
}

/// Kernels for calls of many kinds on a GPU, which this machine need not have.
const std::map<std::string, codegen::CallSpec>& specs() {
  using enum codegen::Length;
  static const std::map<std::string, codegen::CallSpec> all{
      {"hopper", {{.arch = 90, .d = 64, .dv = 64}, to_1k}},
      {"odd",
       {{.arch = 86,
         .dtype = DType::f16,
         .out = DType::f32,
         .d = 20,
         .dv = 36,
         .max = true,
         .packed = true,
         .strides = {.tma = false, .load = 0, .store = 4},
         .negative = true},
        to_4k}},
      {"wide",
       {{.arch = 120,
         .dtype = DType::f32,
         .out = DType::f32,
         .d = 32,
         .dv = 32,
         .strides = {.tma = false, .load = 8, .offsets64 = true},
         .exact = true},
        longer}},
  };
  return all;
}

struct ForShape final : runtime::Purpose {
  const compiler::BoundMod& written;
  const codegen::CallSpec& asked;
  ForShape(const compiler::BoundMod& of, const codegen::CallSpec& by) : written(of), asked(by) {}
  Text describe() const override {
    runtime::Request out = runtime::request_of(written.mod, compiler::args(written));
    out.target.arch = asked.spec.arch;
    out.call = asked;
    return text_of(out);
  }
};

int consider(const std::string& attention, const std::string& name) {
  const codegen::CallSpec& asked = specs().at(name);
  const codegen::KernelSpec& spec = asked.spec;
  const compiler::BoundMod written = compiler::trace(attentions().at(attention)());
  const compiler::LoweredMod lowered = compiler::lower(written);
  const codegen::GpuParts parts = codegen::parts_of(lowered, asked, codegen::Way::forward);
  const ForShape purpose(written, asked);
  const runtime::cuda::Considered all = runtime::cuda::consider(parts, asked, codegen::kernels(),
                                                                runtime::cuda::Compiles::chosen, &purpose);
  const bool there = all.candidates[all.chosen].binary->cubin.size() > 1000;
  if (parts.facts.listed)
    runtime::cuda::binary_of(codegen::cover_source(lowered, spec.strides.offsets64, spec.arch),
                             {.mod = &lowered.mod, .kernel = "cover", .arch = spec.arch, .purpose = &purpose});
  std::printf("%s, %zu compiled\n", there ? "ok" : "wrong", runtime::cuda::compiled_kernels());
  return 0;
}

int call(const std::string& way, const std::string& attention) {
  if (way.starts_with("gpu_")) {
    std::puts(gpu_backward_runs(way) ? "ok" : "wrong");
    return 0;
  }
  const Attention made = attentions().at(attention)();
  const auto slope = filled<float>({4}, "slope");
  bool right = false;
  if (way == "backward")
    right = backward_runs(made, {});
  else if (way == "gradients")
    right = backward_runs({.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.q); }}, slope);
  else
    right = forward_is_right(way, made);
  std::puts(right ? "ok" : "wrong");
  return 0;
}

}  // namespace

/// offline_calls nvrtc | WAY ATTENTION | consider ATTENTION SPEC
int main(int argc, char** argv) try {
  if (argc == 2 && std::strcmp(argv[1], "nvrtc") == 0) {
    std::puts(runtime::cuda::nvrtc() ? "there" : "missing");
    return 0;
  }
  if (argc == 4) return consider(argv[2], argv[3]);
  return argc == 3 ? call(argv[1], argv[2]) : 1;
} catch (const Error& e) {
  std::printf("%s\n", e.what());
  return 2;
}
