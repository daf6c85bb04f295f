// tools/explain/support_rows.cpp — rows of all kinds of calls, folded, and the rows of docs/results that measure them
#include "tools/explain/support_rows.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include <attune/error.h>

#include "codegen/facts/parts.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/kernels/keys.h"
#include "tools/options/call_options.h"

namespace attune::tools {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::array<std::string_view, 6> arch_values{"80", "86", "89", "90", "100", "120"};
constexpr std::array<std::string_view, 3> call_values{"forward", "decode", "backward"};
constexpr std::array<std::string_view, 6> dtype_values{"f32", "f16", "bf16", "f16/e4m3", "bf16/e4m3", "e4m3"};
constexpr std::array<std::string_view, 8> width_values{"32", "64", "96", "128", "192/128", "192", "256", "576/512"};
constexpr std::array<std::string_view, 4> layout_values{"dense", "packed", "lengths", "paged"};

/// One mod of each kind that at least one kernel treats differently.
struct ModOfKind {
  std::string_view name, meaning, score, mask, prob, sink;
  std::string_view gradient{};  ///< the captured tensor whose gradient is asked for
};
constexpr std::array<ModOfKind, 11> mod_kinds{{
    {"plain", "softmax(q k) v", "", "", "", ""},
    {"score", "s + slope[h] * f32(kv - q)", "s + slope[h] * f32(kv - q)", "", "", ""},
    {"mask", "kv <= q", "", "kv <= q", "", ""},
    {"data mask", "doc[q] == doc[kv]", "", "doc[q] == doc[kv]", "", ""},
    {"dropout", "p * where(random(7) < 0.9f, 1.0f, 0.0f), which keeps 90 %, as any multiple of p", "", "",
     "p * where(random(7) < 0.9f, 1.0f, 0.0f)", ""},
    {"p^k", "p * p, as any multiple of a power of p up to p^4", "", "", "p * p", ""},
    {"prob", "max(p - 0.01f, 0.0f), as any prob mod that is no multiple of a power of p", "", "",
     "max(p - 0.01f, 0.0f)", ""},
    {"sink", "slope[h]: a sink for each head", "", "", "", "slope[h]"},
    {"grads q-kv", "the gradient of table in s + table[q - kv + 8192], as of every sum along diagonals",
     "s + table[q - kv + 8192]", "", "", "", "table"},
    {"dS", "the gradient of dense in s + dense[h, q, kv], as of tensors with an element for each pair",
     "s + dense[h, q, kv]", "", "", "", "dense"},
    {"grads", "the gradient of bias in s + bias[kv], as of any other index", "s + bias[kv]", "", "", "", "bias"},
}};
constexpr auto mod_names = [] {
  std::array<std::string_view, mod_kinds.size()> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = mod_kinds[i].name;
  return out;
}();
constexpr std::int64_t most_heads = 32, most_positions = 8192;

/// The mod, with captured tensors of 8192 positions and 32 heads.
compiler::LoweredMod lowered(const ModOfKind& of) {
  Text text;
  text.capture("slope", Tensor::declared(DType::f32, 1));
  text.capture("table", Tensor::declared(DType::f32, 1));
  text.capture("bias", Tensor::declared(DType::f32, 1));
  text.capture("dense", Tensor::declared(DType::bf16, 3));
  text.capture("doc", Tensor::declared(DType::i32, 1));
  Attention out;
  if (!of.score.empty()) out.score = text.score(std::string(of.score));
  if (!of.mask.empty()) out.mask = text.mask(std::string(of.mask));
  if (!of.prob.empty()) out.prob = text.prob(std::string(of.prob));
  if (!of.sink.empty()) out.sink = text.sink(std::string(of.sink));
  return compiler::lower(out);
}

/// A call of this kind, in usual sizes: most sizes do not affect the choice of a kernel.
CallOptions call_of(const SupportRow& row) {
  CallOptions o;
  const std::string_view type = row.value(Axis::dtype), width = row.value(Axis::width),
                         layout = row.value(Axis::layout);
  o.dtype = type.substr(0, type.find('/'));
  if (type.find('/') != type.npos) o.cache_dtype = "e4m3";
  const auto number = [](std::string_view text) { return std::stoll(std::string(text)); };
  o.d = number(width.substr(0, width.find('/')));
  const bool mla = width == "576/512", decode = row.value(Axis::call) == "decode";
  if (mla)
    o.v_columns = 512;
  else if (width.find('/') != width.npos)
    o.dv = number(width.substr(width.find('/') + 1));
  o.batch = 2;
  o.heads = 32;
  o.kv_heads = mla ? 1 : 8;
  o.seq = decode ? 1 : layout == "lengths" || layout == "paged" ? 512 : 4096;
  o.kv_seq = decode || layout == "lengths" || layout == "paged" ? most_positions : o.seq;
  o.decode = decode || layout == "lengths" || layout == "paged";
  if (layout == "lengths") o.kv_lengths = {most_positions, 5000};
  if (layout == "paged") o.page_size = mla ? 64 : 16;
  if (layout == "packed") {
    o.decode = false;
    o.lengths = {o.seq, o.seq};
    o.kv_lengths = {*o.kv_seq, *o.kv_seq};
  }
  return o;
}

/// The captured tensors of a call. They have no memory, so one size serves all.
std::vector<Tensor> captures_of(const compiler::LoweredMod& mod, Data& data) {
  std::vector<Tensor> out;
  for (const compiler::CaptureSlot& slot : mod.mod.captures)
    out.push_back((slot.rank == 1 ? data.zeros(slot.dtype, {2 * most_positions})
                                  : data.zeros(slot.dtype, {most_heads, most_positions, most_positions}))
                      .tensor);
  return out;
}

/// True for calls that a Backward cannot express, for which there is no Error to quote.
bool has_no_members(const SupportRow& row) {
  const std::string_view layout = row.value(Axis::layout);
  return row.value(Axis::call) == "backward" && (layout == "lengths" || layout == "paged");
}
const Refusal no_members{"", "a Backward has no kv_len and no pages: keys of a cache have no gradients", "", ""};

void ask(SupportRow& row, const ModOfKind& kind, const compiler::LoweredMod& mod) {
  if (has_no_members(row)) {
    row.refused = no_members;
    return;
  }
  const CallOptions options = call_of(row);
  const bool backward = row.value(Axis::call) == "backward";
  const int arch = std::stoi(std::string(row.value(Axis::arch)));
  Data data = Data::described();
  const std::vector<Tensor> captures = captures_of(mod, data);
  const ForwardTensors tensors(options, data);
  codegen::CallSpec spec;
  if (!backward) {
    Forward call = tensors.call();
    call.captures = captures;
    spec = runtime::call_spec(mod, call, arch);
  } else {
    Backward call = BackwardTensors(options, data).call(tensors);
    call.captures = captures;
    spec = runtime::call_spec(mod, call, arch);
    for (std::size_t slot = 0; slot < mod.mod.captures.size(); ++slot)
      (*spec.backward)[slot] = mod.mod.captures[slot].name == kind.gradient;
  }
  codegen::CallChoices choices = codegen::call_choices(mod, spec);
  row.others = std::move(choices.story);
  for (const codegen::WayChoices& way : choices.ways) {
    row.kernels.emplace_back(way.choices.choices[0].plan.kernel->name);
    row.others.insert(row.others.end(), way.choices.story.begin(), way.choices.story.end());
  }
}

/// Captured gradients exist only in a backward.
bool is_a_call(const SupportRow& row) {
  const std::string_view mod = row.value(Axis::mod);
  return row.value(Axis::call) == "backward" || (!mod.starts_with("grads") && mod != "dS");
}

}  // namespace

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, axes> names{"arch", "call", "dtype", "d", "layout", "mod"};
  return names[static_cast<std::size_t>(axis)];
}

Words values_of(Axis axis) {
  switch (axis) {
    case Axis::arch: return arch_values;
    case Axis::call: return call_values;
    case Axis::dtype: return dtype_values;
    case Axis::width: return width_values;
    case Axis::layout: return layout_values;
    case Axis::mod: return mod_names;
  }
  throw Bug("calls differ in no such axis");
}

std::string_view meaning_of(Axis axis, std::size_t value) { return axis == Axis::mod ? mod_kinds[value].meaning : ""; }

std::optional<std::string_view> kind_of_mod(const compiler::LoweredMod& lowered,
                                            const codegen::GradientParts* gradient) {
  const auto facts = lowered.mod.facts();
  const auto has = [&](std::string_view name) {
    return std::ranges::find(facts, name, [](auto& one) { return std::string_view(one.first); }) != facts.end();
  };
  const bool data = has("mask") && !compiler::cover_of(lowered.cover).captures.empty();
  std::vector<std::string_view> kinds;
  if (data) kinds.emplace_back("data mask");
  if (has("prob")) {
    const double degree = codegen::degree_in_p(lowered.mod.prob);
    kinds.emplace_back(degree == 1 ? "dropout" : degree > 0 ? "p^k" : "prob");
  }
  if (has("sink")) kinds.emplace_back("sink");
  if (gradient && std::ranges::find(gradient->wanted, true) != gradient->wanted.end()) {
    for (const std::string_view kind : {"dS", "grads q-kv", "grads"}) {
      const auto is = [&](const codegen::Term& term) { return facts_of(term.whole).kind == kind; };
      if (std::ranges::any_of(gradient->terms, is) || (kind == "grads" && !gradient->of_sink.empty()))
        kinds.push_back(kind);
    }
  } else if (has("score"))
    kinds.emplace_back("score");
  if (kinds.empty()) return has("mask") ? "mask" : "plain";
  return kinds.size() == 1 ? std::optional(kinds[0]) : std::nullopt;
}

std::vector<SupportRow> support_rows(const Asked& asked) {
  std::vector<SupportRow> out{{}};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<SupportRow> next;
    for (const SupportRow& row : out)
      for (std::size_t value = 0; value < values_of(static_cast<Axis>(axis)).size(); ++value) {
        if (!asked[axis].empty() && std::ranges::find(asked[axis], value) == asked[axis].end()) continue;
        next.push_back(row);
        next.back().at[axis] = value;
      }
    out = std::move(next);
  }
  std::erase_if(out, [](const SupportRow& row) { return !is_a_call(row); });
  std::vector<compiler::LoweredMod> all;
  for (const ModOfKind& kind : mod_kinds) all.push_back(lowered(kind));
  for (SupportRow& row : out) {
    const std::size_t mod = row.at[static_cast<std::size_t>(Axis::mod)];
    try {
      ask(row, mod_kinds[mod], all[mod]);
    } catch (const Error& e) {
      row.refused = {e.code, e.problem, e.why, e.fix};
    }
  }
  return out;
}

std::vector<SupportBox> folded(std::span<const SupportRow> rows) {
  using Outcome = std::tuple<std::vector<std::string>, std::string, std::string>;
  std::map<Outcome, std::size_t> outcomes;
  struct Folding {
    SupportBox box;
    std::size_t outcome;
  };
  std::vector<Folding> boxes;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SupportRow& row = rows[i];
    const Outcome outcome = row.refused ? Outcome{{}, row.refused->code, row.refused->problem}
                                        : Outcome{row.kernels, "", ""};
    Folding one{{.first = i}, outcomes.emplace(outcome, outcomes.size()).first->second};
    for (std::size_t axis = 0; axis < axes; ++axis) one.box.values[axis] = 1u << row.at[axis];
    boxes.push_back(one);
  }
  // Merges two boxes that differ on only one axis.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Axis axis : {Axis::mod, Axis::width, Axis::layout, Axis::dtype, Axis::arch}) {
      const auto at = static_cast<std::size_t>(axis);
      std::map<std::pair<std::size_t, std::array<unsigned, axes>>, std::size_t> found;
      std::vector<Folding> next;
      for (const Folding& one : boxes) {
        auto others = one.box.values;
        others[at] = 0;
        const auto [place, fresh] = found.try_emplace({one.outcome, others}, next.size());
        if (fresh)
          next.push_back(one);
        else
          next[place->second].box.values[at] |= one.box.values[at];
      }
      changed |= next.size() < boxes.size();
      boxes = std::move(next);
    }
  }
  std::vector<SupportBox> out;
  for (const Folding& one : boxes) out.push_back(one.box);
  return out;
}

namespace {

using Json = nlohmann::ordered_json;

/// A row of the files whose names begin with `files`, which measures one kind of call. `compared`: the row without the
/// mod.
struct RowOf {
  std::string_view files, call, dtype, width, layout, mod;
  std::string group, label;
  std::string_view what{};
  std::string compared_group{}, compared_label{};
};

/// Calls that are measured without a mod and with a causal mask: {0} is the width and {1} the row.
struct PlainAndCausal {
  std::string_view files, call, dtype, layout, group, label;
  std::vector<std::string_view> widths;
};

std::vector<RowOf> rows_of() {
  std::vector<RowOf> out;
  for (const PlainAndCausal& of : std::initializer_list<PlainAndCausal>{
           {"gpu-forward", "forward", "bf16", "dense", "D={0}, {1}", "S=16384", {"128", "64", "256"}},
           {"gpu-forward", "forward", "bf16", "packed", "packed, D={0}", "{1}, starts on the host", {"128", "64"}},
           {"gpu-gradients", "backward", "bf16", "dense", "backward, D={0}, {1}", "S=16384", {"128", "64", "256"}},
           {"gpu-gradients",
            "backward",
            "bf16",
            "packed",
            "backward, packed, D={0}",
            "{1}, starts on the host",
            {"64"}},
           {"gpu-e4m3", "forward", "e4m3", "dense", "q, k and v of e4m3, D={0}, {1}", "S=16384", {"128", "64"}}})
    for (const std::string_view width : of.widths) {
      const auto row = [&](std::string_view mod, std::string_view named) {
        return RowOf{.files = of.files,
                     .call = of.call,
                     .dtype = of.dtype,
                     .width = width,
                     .layout = of.layout,
                     .mod = mod,
                     .group = fmt::format(fmt::runtime(of.group), width, named),
                     .label = fmt::format(fmt::runtime(of.label), width, named)};
      };
      out.push_back(row("plain", "full"));
      RowOf causal = row("mask", "causal");
      causal.what = "causal", causal.compared_group = out.back().group, causal.compared_label = out.back().label;
      out.push_back(std::move(causal));
    }
  const std::string mods = "mods, D=128, S=8192, B=2";
  for (const auto& [label, mod, what] :
       {std::array<std::string_view, 3>{"alibi", "score", "alibi"},
        {"softcap", "score", "softcap"},
        {"relative", "score", "relative"},
        {"relative, its table's gradient too", "grads q-kv", "relative with its table's gradient"},
        {"window", "mask", "window"},
        {"prefix", "mask", "prefix"},
        {"document", "data mask", "document"}}) {
    const std::string row(label);
    if (mod != "grads q-kv")
      out.push_back({"gpu-forward", "forward", "bf16", "128", "dense", mod, mods, row, what, mods, "causal"});
    out.push_back({"gpu-gradients", "backward", "bf16", "128", "dense", mod, "backward, " + mods, row, what,
                   "backward, D=128, causal", "S=16384"});
  }
  const auto decode = [&](std::string_view type, std::string_view layout, std::string_view mod, std::string group,
                          std::string label, std::string_view what) {
    out.push_back({"gpu-serving", "decode", type, "128", layout, mod, std::move(group), std::move(label), what,
                   what.empty() ? "" : "one query", "16x8k"});
  };
  decode("bf16", "dense", "plain", "one query", "16x8k", "");
  for (const auto& [label, mod, what] : {std::array<std::string_view, 3>{"alibi", "score", "alibi"},
                                         {"softcap", "score", "softcap"},
                                         {"table", "score", "relative"},
                                         {"window", "mask", "window"}})
    decode("bf16", "dense", mod, "mods, 16x8k", std::string(label), what);
  decode("bf16", "paged", "plain", "pages, 16x8k", "pages of 16", "with pages of 16");
  decode("bf16/e4m3", "dense", "plain", "cache of e4m3", "16x8k", "in bytes of e4m3");
  out.push_back({"gpu-serving-h100", "decode", "bf16", "576/512", "paged", "plain", "MLA",
                 "128x8k, pages of 64, 128 heads of 1"});
  return out;
}

/// A file's lines: the run, and its rows.
struct Rows {
  Json run;
  std::vector<Json> all;

  explicit Rows(std::string_view text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      Json line = Json::parse(text.substr(begin, end - begin));
      if (run.is_null())
        run = std::move(line);
      else
        all.push_back(std::move(line));
      begin = end + 1;
    }
  }
  std::optional<double> rate(std::string_view group, std::string_view label) const {
    for (const Json& row : all)
      if (row["group"] == group && row["label"] == label) return row["rates"]["attune"]["median"].get<double>();
    return std::nullopt;
  }
};

/// "H200" of "NVIDIA H200, driver 580"
std::string card_of(const Json& run) {
  const auto fact = run["runs"][0]["facts"][0].get<std::string>();
  for (const char* const card : {"H100", "H200"})
    if (fact.find(card) != fact.npos) return card;
  throw Bug("results are of a card that has no name: " + fact);
}

}  // namespace

bool Measured::is_of(const SupportRow& row) const {
  return row.value(Axis::arch) == "90" && row.value(Axis::call) == call && row.value(Axis::dtype) == dtype &&
         row.value(Axis::width) == width && row.value(Axis::layout) == layout && row.value(Axis::mod) == mod;
}

std::vector<Measured> measured() {
  std::vector<std::pair<std::string_view, Rows>> files;
  for (const ResultFile& file : result_files()) files.emplace_back(file.name, Rows(file.text));
  std::vector<Measured> out;
  for (RowOf& row : rows_of()) {
    const std::size_t before = out.size();
    for (const auto& [name, rows] : files) {
      const auto rate = rows.rate(row.group, row.label);
      if (!name.starts_with(row.files) || !rate) continue;
      Measured found{.call = row.call,
                     .dtype = row.dtype,
                     .width = row.width,
                     .layout = row.layout,
                     .mod = row.mod,
                     .card = card_of(rows.run),
                     .date = rows.run["runs"][0]["date"].get<std::string>().substr(0, 10),
                     .file = std::string(name),
                     .group = row.group,
                     .label = row.label,
                     .unit = rows.run["unit"].get<std::string>(),
                     .rate = *rate,
                     .what = row.what,
                     .compared = {},
                     .of_compared = 0};
      if (const auto other = rows.rate(row.compared_group, row.compared_label)) {
        found.compared = fmt::format("{}: {}", row.compared_group, row.compared_label);
        found.of_compared = *rate / *other;
      }
      out.push_back(std::move(found));
    }
    if (out.size() == before) throw Bug(fmt::format("no result file has the row {}: {}", row.group, row.label));
  }
  return out;
}

}  // namespace attune::tools
