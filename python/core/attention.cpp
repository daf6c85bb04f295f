// python/core/attention.cpp — an attention made from texts, its calls without the GIL, and its pictures
#include "python/core/attention.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "python/core/call.h"
#include "python/core/named.h"

namespace attune::python {
namespace {

nb::object interned(const std::string& name) { return nb::steal(PyUnicode_InternFromString(name.c_str())); }

constexpr NumberOf<attune_picture> picture_rows[] = {
    {"q_offset", &attune_picture::q_offset}, {"q_len", &attune_picture::q_len}, {"kv_len", &attune_picture::kv_len},
    {"batch", &attune_picture::batch},       {"head", &attune_picture::head},   {"tile_q", &attune_picture::tile_q},
    {"tile_kv", &attune_picture::tile_kv}};

attune_picture picture(const Call& c, nb::handle where) {
  attune_picture p{};
  p.size = sizeof p;
  set_named(where, picture_rows, p);
  p.captures = c.call.captures, p.n_captures = c.call.n_captures;
  p.params = c.call.params, p.n_params = c.call.n_params;
  return p;
}

}  // namespace

Attention::Attention(const std::vector<Text>& parts, const std::vector<std::pair<nb::str, nb::str>>& lets,
                     const std::vector<std::tuple<nb::str, std::string, int>>& captured,
                     const std::vector<std::pair<nb::str, std::string>>& parameters, std::optional<double> scale,
                     int target, int exact) {
  for (const auto& [name, kind, rank] : captured) captures.push_back({utf8(name), interned(utf8(name)), kind[0], rank});
  for (const auto& [name, kind] : parameters) params.push_back({utf8(name), interned(utf8(name)), kind[0], 0});
  std::vector<attune_name> names, numbers;
  for (const Declared& c : captures) names.push_back({c.name.c_str(), c.kind, c.rank});
  for (const Declared& p : params) numbers.push_back({p.name.c_str(), p.kind, 0});
  std::vector<std::pair<std::string, std::string>> let_texts;
  for (const auto& [name, text] : lets) let_texts.emplace_back(utf8(name), utf8(text));
  std::vector<attune_let> defined;
  for (const auto& [name, text] : let_texts) defined.push_back({name.c_str(), {text.c_str(), nullptr, 0}});
  std::optional<std::string> texts[4];
  for (std::size_t i = 0; i < std::size(texts); ++i)
    if (parts[i]) texts[i] = utf8(*parts[i]);
  const auto text = [&](std::size_t i) { return attune_text{texts[i] ? texts[i]->c_str() : nullptr, nullptr, 0}; };
  attune_what what{};
  what.size = sizeof what;
  what.target = target;
  what.exact = exact;
  what.score = text(0), what.mask = text(1), what.prob = text(2), what.sink = text(3);
  what.scale = scale ? &*scale : nullptr;
  what.captures = names.data(), what.n_captures = names.size();
  what.params = numbers.data(), what.n_params = numbers.size();
  what.lets = defined.data(), what.n_lets = defined.size();
  check(released([&] { return attune_new(&what, &attention); }));
  shared = std::make_shared<SharedAttention>(attention);
}

void Attention::run(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
                    const nb::tuple& numbers) const {
  Call c(*this, pass, named, captured, grads, numbers);
  c.with.finish(released([&] { return attune_run(attention, &c.call, c.options()); }));
}

std::pair<std::size_t, std::size_t> Attention::prepare(int pass, nb::handle named, const nb::tuple& captured,
                                                       nb::handle grads, const nb::tuple& numbers) const {
  Call c(*this, pass, named, captured, grads, numbers);
  std::size_t workspace = 0, cover = 0;
  c.with.finish(released([&] { return attune_prepare(attention, &c.call, c.options(), &workspace, &cover); }));
  return {workspace, cover};
}

void Attention::prepare_async(int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
                              const nb::tuple& numbers) const {
  Call c(*this, pass, named, captured, grads, numbers);
  check(attune_prepare_async(attention, &c.call));
}

double Attention::least(int rounds, int count, nb::handle named, const nb::tuple& captured) const {
  Call c(*this, ATTUNE_FORWARD, named, captured, nb::none(), nb::tuple());
  double best = 1;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) check(attune_run(attention, &c.call, nullptr));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / count);
  }
  return best;
}

nb::object Attention::cover(nb::handle named, const nb::tuple& captured, const nb::tuple& numbers) const {
  Call c(*this, ATTUNE_FORWARD, named, captured, nb::none(), numbers);
  attune_cover* lists = nullptr;
  c.with.finish(released([&] { return attune_cover_new(attention, &c.call, c.options(), &lists); }));
  if (!lists) return nb::none();
  auto made = std::make_unique<Cover>(lists);
  made->memory = nb::borrow(PyDict_GetItemString(named.ptr(), "workspace"));
  return nb::cast(made.release(), nb::rv_policy::take_ownership);
}

std::string Attention::explain() const { return written(attune_explain, attention); }

std::string Attention::describe() const { return written(attune_describe, attention); }

std::tuple<nb::bytes, std::int64_t, std::int64_t> Attention::tiles(nb::handle where, const nb::tuple& captured,
                                                                   const nb::tuple& numbers) const {
  Call c(*this, ATTUNE_FORWARD, nb::dict(), captured, nb::none(), numbers);
  const attune_picture p = picture(c, where);
  std::int64_t rows_of = 0, cols = 0;
  check(attune_tiles(attention, &p, nullptr, 0, &rows_of, &cols));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(rows_of * cols));
  check(released([&] { return attune_tiles(attention, &p, out.data(), out.size(), &rows_of, &cols); }));
  return {nb::bytes(out.data(), out.size()), rows_of, cols};
}

std::string Attention::draw(nb::handle where, const nb::tuple& captured, const nb::tuple& numbers, nb::handle q,
                            nb::handle k, int panels) const {
  nb::dict scored;
  scored["q"] = q, scored["k"] = k;
  Call c(*this, ATTUNE_FORWARD, scored, captured, nb::none(), numbers);
  attune_drawing d{};
  d.size = sizeof d;
  d.panels = panels;
  const attune_picture p = picture(c, where);
  d.picture = &p;
  d.q = c.call.q, d.k = c.call.k;
  char* svg = nullptr;
  check(released([&] { return attune_draw(attention, &d, &svg); }));
  return taken(svg);
}

}  // namespace attune::python
