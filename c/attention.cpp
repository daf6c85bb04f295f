// c/attention.cpp — attentions: declared by text, and freed when the last call that uses them is done
#include "c/attention.h"

#include <algorithm>

#include <attune/error.h>
#include <attune/text.h>
#include <fmt/format.h>

#include "c/error.h"
#include "compiler/problem.h"
#include "runtime/machine/mutex.h"

namespace attune::c {
namespace {

/// An Error about a text names the file and line where it was written, if they are known.
template <class F>
auto written_at(const attune_text& text, const std::string& called, const F& f) {
  try {
    return f(called);
  } catch (const Error& e) {
    if (!text.file || e.where.name != called) throw;
    Place place = e.where;
    place.name = text.file;
    place.line = text.line;
    throw Error(e.code, e.problem, place, e.why, e.fix);
  }
}

std::string name_of(const char* name, const char* what, std::size_t i) {
  if (name) return name;
  throw Error("null-pointer", fmt::format("attune_new: {} number {} has no name", what, i), {}, "its `name` is NULL",
              "name it");
}

char kind_of(const attune_name& name, const std::string& kinds, const char* what) {
  if (name.kind > 0 && name.kind < 128 && kinds.find(static_cast<char>(name.kind)) != std::string::npos)
    return static_cast<char>(name.kind);
  throw Error("declared-kind", fmt::format("{} `{}` is declared with kind {}", what, name.name, name.kind), {},
              kinds == "fi" ? "a parameter is read as Float ('f') or Int ('i')"
                            : "captures are read as Float ('f'), Int ('i') or Bool ('b')",
              "declare it with one of these letters");
}

DType dtype_of(char kind) { return kind == 'f' ? DType::f32 : kind == 'i' ? DType::i32 : DType::boolean; }

template <class T>
std::span<const T> listed(const T* first, std::size_t count, const char* name) {
  if (count > 0) require(first, "attune_new", name);
  return {first, count};
}

void declare(Text& text, const attune_what& what, attune_attention& out) {
  std::size_t i = 0;
  for (const attune_name& one : listed(what.captures, what.n_captures, "captures")) {
    const std::string name = name_of(one.name, "capture", i++);
    const char kind = kind_of(one, "fib", "capture");
    text.capture(name, Tensor::declared(dtype_of(kind), one.rank));
    out.captures.push_back({name, kind, one.rank});
  }
  i = 0;
  for (const attune_name& one : listed(what.params, what.n_params, "params")) {
    const std::string name = name_of(one.name, "parameter", i++);
    const char kind = kind_of(one, "fi", "parameter");
    kind == 'f' ? text.param(name, 0.0f) : text.param(name, 0);
    out.params.push_back({name, kind, 0});
  }
  i = 0;
  for (const attune_let& one : listed(what.lets, what.n_lets, "lets")) {
    const std::string name = name_of(one.name, "let", i++);
    require(one.value.text, "attune_new", name.c_str());
    written_at(one.value, "let " + name, [&](const std::string&) { return text.let(name, one.value.text); });
    out.lets.emplace_back(name, one.value.text);
  }
}

void compose(const Text& text, const attune_what& what, attune_attention& out) {
  const auto part = [&](const attune_text& from, const char* called, const auto& make, auto& into) {
    if (!from.text) return;
    into = written_at(from, called, [&](const std::string& name) { return make(from.text, name); });
    out.written.emplace_back(called, from.text);
  };
  const auto a = &out.attention;
  part(
      what.score, "score", [&](auto e, auto name) { return text.score(e, name); }, a->score);
  part(
      what.mask, "mask", [&](auto e, auto name) { return text.mask(e, name); }, a->mask);
  part(
      what.prob, "prob", [&](auto e, auto name) { return text.prob(e, name); }, a->prob);
  part(
      what.sink, "sink", [&](auto e, auto name) { return text.sink(e, name); }, a->sink);
}

/// Targets of attune_emulated: the nth has the number first_emulated + n.
constexpr std::int32_t first_emulated = 256;
struct EmulatedTargets {
  runtime::Mutex mutex;
  std::vector<Target> all;
};
EmulatedTargets& emulated_targets() {
  static constinit runtime::Once<EmulatedTargets> only;
  return only.get();
}

std::int32_t number_of(const Target& target) {
  EmulatedTargets& known = emulated_targets();
  const std::lock_guard lock(known.mutex);
  const auto at = std::ranges::find(known.all, target) - known.all.begin();
  if (at == std::ssize(known.all)) known.all.push_back(target);
  return first_emulated + static_cast<std::int32_t>(at);
}
std::optional<Target> emulated_target(std::int32_t number) {
  EmulatedTargets& known = emulated_targets();
  const std::lock_guard lock(known.mutex);
  if (number < first_emulated || number - first_emulated >= std::ssize(known.all)) return std::nullopt;
  return known.all[static_cast<std::size_t>(number - first_emulated)];
}

Target target_of(std::int32_t target) {
  if (const auto emulated = emulated_target(target)) return *emulated;
  switch (target) {
    case ATTUNE_AUTOMATIC: return Target::automatic;
    case ATTUNE_ENGINE_CPU: return Target::cpu;
    case ATTUNE_ENGINE_ORACLE: return Target::oracle;
    case ATTUNE_ENGINE_CUDA: return Target::cuda;
    default: break;
  }
  throw Error("bad-choice", fmt::format("`target` cannot be {}", target), {},
              "it is ATTUNE_AUTOMATIC (0), ATTUNE_ENGINE_CPU (1), ATTUNE_ENGINE_ORACLE (2) or ATTUNE_ENGINE_CUDA (3)",
              "set it to one of these");
}

std::optional<bool> exact_of(std::int32_t exact) {
  if (exact == 0) return std::nullopt;
  if (exact == 1 || exact == -1) return exact == 1;
  throw Error("bad-choice", fmt::format("`exact` cannot be {}", exact), {},
              "it is 1 (exact), -1 (not) or 0 (by the type of q)", "set it to one of these");
}

/// Lowers, which checks the expressions, and finds the slots of the declared names.
void number(attune_attention& out) {
  const auto find = [](std::vector<Name>& names, const std::vector<Slot>& slots, Order& order) {
    for (std::uint32_t slot = 0; slot < slots.size(); ++slot)
      for (std::uint32_t i = 0; i < names.size(); ++i)
        if (names[i].name == slots[slot].name) {
          names[i].slot = slot;
          order.push_back(i);
        }
    if (order.size() != slots.size()) throw Bug("a slot has a name that was not declared");
  };
  find(out.captures, out.attention.captures(), out.capture_of);
  find(out.params, out.attention.params(), out.param_of);
}

void check_count(std::size_t bound, const std::vector<Name>& names, const char* what) {
  if (bound == names.size()) return;
  std::string listed;
  for (const Name& one : names) listed += fmt::format("{}`{}`", listed.empty() ? ": " : ", ", one.name);
  throw Error("bind-count", fmt::format("the call binds {} {}s", bound, what), {},
              fmt::format("the attention declares {} of them{}", names.size(), listed),
              fmt::format("set n_{}s to {}, and pass one for each, in this order", what[0] == 'c' ? "capture" : "param",
                          names.size()));
}

}  // namespace

Held::Held(const attune_attention* attention, const char* function) : attention_(attention) {
  require(attention, function, "attention");
  attention->references.fetch_add(1, std::memory_order_relaxed);
}
Held::~Held() { attune_free(const_cast<attune_attention*>(attention_)); }

std::vector<Tensor> captures_of(const attune_attention& attention, const attune_tensor* const* captures,
                                std::size_t count) {
  check_count(count, attention.captures, "capture");
  if (count > 0) require(captures, "a call", "captures");
  std::vector<Tensor> out;
  out.reserve(attention.capture_of.size());
  for (const std::uint32_t i : attention.capture_of)
    out.push_back(captures[i] ? tensor_of(captures[i], {"capture `", attention.captures[i].name, "`"}) : Tensor());
  return out;
}

std::vector<double> params_of(const attune_attention& attention, const double* params, std::size_t count) {
  check_count(count, attention.params, "parameter");
  if (count > 0) require(params, "a call", "params");
  std::vector<double> out;
  out.reserve(attention.param_of.size());
  for (const std::uint32_t i : attention.param_of) out.push_back(params[i]);
  return out;
}

}  // namespace attune::c

using namespace attune;

const attune_attention::Story& attune_attention::story() const {
  const std::lock_guard lock(mutex_);
  if (!story_) {
    Story made;
    made.steps.keep_text = true;
    made.lowered = compiler::lower(attention, &made.steps);
    story_ = std::move(made);
  }
  return *story_;
}

attune_error* attune_emulated(const char* gpu, std::int32_t* target) {
  return c::guarded([&] {
    c::require(gpu, "attune_emulated", "gpu");
    c::require(target, "attune_emulated", "target");
    *target = c::number_of(Target::emulated(gpu, Line{}));
  });
}

attune_error* attune_new(const attune_what* given, attune_attention** attention) {
  return c::guarded([&] {
    const auto what = c::given(given, "attune_new", "what");
    c::require(attention, "attune_new", "attention");
    auto out = std::make_unique<attune_attention>();
    out->attention.target = c::target_of(what.target);
    out->attention.exact = c::exact_of(what.exact);
    if (what.scale) out->attention.scale = *what.scale;
    compiler::check_scale(out->attention.scale);
    Text text;
    c::declare(text, what, *out);
    c::compose(text, what, *out);
    c::number(*out);
    *attention = out.release();
  });
}

void attune_free(attune_attention* attention) {
  if (attention && attention->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete attention;
}
