// playground/answer.cpp — reads a question, lowers its mod, and collects the facts about it
#include "playground/answer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/choose/call_choices.h"
#include "compiler/explain.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "playground/fill.h"
#include "playground/say.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/attention/offline/written.h"
#include "runtime/engines/picture/draw.h"
#include <attune/attention.h>

namespace attune::playground {
namespace {

using Json = nlohmann::ordered_json;
using runtime::Captures, runtime::Owned, runtime::Written;

/// Tiles along one axis, and elements of a captured tensor: what a page shows at once.
constexpr std::int64_t most_tiles = 1024, most_elements = std::int64_t{1} << 24;

[[noreturn]] void unreadable(const std::string& member, const std::string& why, const std::string& fix) {
  throw Error("bad-question", fmt::format("`{}` of the question cannot be read", member), {.name = member}, why, fix);
}

std::optional<std::string> text(const Json& of, const char* member) {
  if (!of.contains(member) || of[member].is_null()) return std::nullopt;
  if (!of[member].is_string()) unreadable(member, "a text is expected", "write it in quotes");
  std::string out = of[member];
  if (out.find_first_not_of(" \t\r\n") == std::string::npos) return std::nullopt;
  return out;
}

std::vector<std::string> texts(const Json& of, const char* member) {
  std::vector<std::string> out;
  if (!of.contains(member)) return out;
  for (const Json& one : of[member]) {
    if (!of[member].is_array() || !one.is_string())
      unreadable(member, "a list of texts is expected", "write [\"name=value\"]");
    out.push_back(one);
  }
  return out;
}

double number(const Json& of, const char* member, double otherwise) {
  if (!of.contains(member) || of[member].is_null()) return otherwise;
  if (!of[member].is_number()) unreadable(member, "a number is expected", "write it without quotes");
  return of[member];
}

std::int32_t whole(const Json& of, const char* member, std::int64_t least, std::int64_t most, std::int64_t otherwise) {
  const double value = number(of, member, static_cast<double>(otherwise));
  if (value >= static_cast<double>(least) && value <= static_cast<double>(most) && value == std::floor(value))
    return static_cast<std::int32_t>(value);
  throw Error("bad-size", fmt::format("{} cannot be {}", member, value), {.name = member},
              fmt::format("it is a whole number from {} to {}", least, most), "choose one of these");
}

/// The sizes of a question; the page shows one head.
runtime::View view_of(const Json& of) {
  runtime::View out;
  runtime::Extent& e = out.extent;
  constexpr std::int64_t most = std::int64_t{1} << 20;
  e.q_len = whole(of, "q_len", 1, most, 256);
  e.kv_len = whole(of, "kv_len", 1, most, e.q_len);
  e.q_offset = whole(of, "q_offset", 0, most, 0);
  e.batch = whole(of, "batch", 1, 4096, 1);
  e.heads = whole(of, "heads", 1, 4096, 1);
  out.b = whole(of, "b", 0, e.batch - 1, 0);
  out.h = whole(of, "h", 0, e.heads - 1, 0);
  const Json tile = of.contains("tile") ? of["tile"] : Json::array({16, 16});
  if (!tile.is_array() || tile.size() != 2) unreadable("tile", "two sizes are expected", "write [128, 64]");
  const auto side = [&](std::size_t i, std::int64_t length) {
    const Json one{{"tile", tile[i]}};
    return whole(one, "tile", std::max<std::int64_t>(1, (length + most_tiles - 1) / most_tiles), most, 16);
  };
  e.tile_q = side(0, e.q_len), e.tile_kv = side(1, e.kv_len);
  out.cells = whole(of, "cells", 0, 512, 256);
  return out;
}

/// A question's expressions, and how its captured tensors are filled.
struct Asked {
  Written written;
  std::map<std::string, Fill, std::less<>> fills;
};

Asked asked_of(const Json& of) {
  std::vector<std::string> types;
  for (int t = 0; t <= static_cast<int>(DType::boolean); ++t) types.emplace_back(name_of(static_cast<DType>(t)));
  Asked out;
  Written& w = out.written;
  for (const auto& [word, member] : runtime::written_parts) w.*member = text(of, word);
  w.lets = texts(of, "lets"), w.params = texts(of, "params");
  if (!of.contains("captures")) return out;
  for (const Json& one : of["captures"]) {
    if (!one.is_object()) unreadable("captures", "a list of objects is expected", "write [{\"name\": \"slope\"}]");
    const std::string name = text(one, "name").value_or(""), type = text(one, "type").value_or("f32");
    runtime::require_word("type", type, types);
    std::string shape;
    double elements = 1;
    for (const Json& extent : one.contains("shape") ? one["shape"] : Json::array({8})) {
      const Json size{{"shape", extent}};
      const std::int32_t n = whole(size, "shape", 0, most_elements, 0);
      elements *= n;
      shape += (shape.empty() ? "" : ", ") + std::to_string(n);
    }
    if (elements > static_cast<double>(most_elements))
      throw Error("bad-size", fmt::format("capture `{}` is too large for a page", name), {.name = "--capture"},
                  fmt::format("it would have {:.0f} elements, and the most is {}", elements, most_elements),
                  "give it smaller extents");
    w.captures.push_back(fmt::format("{}={}[{}]", name, type, shape));
    if (!one.contains("fill")) continue;
    const Json& fill = one["fill"];
    if (!fill.is_object()) unreadable("fill", "an object is expected", "write {\"how\": \"normal\"}");
    Fill& to = out.fills[name];
    to.how = text(fill, "how").value_or("");
    to.limit = number(fill, "limit", 0);
    to.seed = static_cast<std::uint64_t>(whole(fill, "seed", 0, std::int64_t{1} << 30, 1));
    if (fill.contains("list"))
      for (const Json& value : fill["list"]) {
        if (!value.is_number()) unreadable("list", "numbers are expected", "write [1, 2, 3]");
        to.numbers.push_back(value);
      }
  }
  return out;
}

/// f32 in base64: writing a map of 65 536 numbers as JSON would take longer than computing it.
std::string base64(const std::vector<double>& values) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes(values.size() * 4);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto word = std::bit_cast<std::uint32_t>(static_cast<float>(values[i]));
    for (std::size_t j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<unsigned char>(word >> 8 * j);
  }
  const std::size_t size = bytes.size();
  bytes.resize(size + 2);
  std::string out((size + 2) / 3 * 4, '=');
  for (std::size_t i = 0, to = 0; i < size; i += 3, to += 4) {
    const unsigned group = bytes[i] * 65536u + bytes[i + 1] * 256u + bytes[i + 2];
    for (std::size_t j = 0; j < 4 && j <= size - i; ++j) out[to + j] = letters[group >> (18 - 6 * j) & 63];
  }
  return out;
}

/// Replaces bytes that are not UTF-8, which a message may quote from the question.
std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

class Answer {
 public:
  explicit Answer(const Json& question)
      : question_(question), asked_(asked_of(question)), view_(view_of(question)), text_(built()),
        traced_(compiler::trace(text_.attention)) {
    lowered_ = compiler::lower(compiler::BoundMod(traced_), &steps_);
    names_ = lowered_.mod.signature();
    runtime::check_reads(lowered_, lowered_.slots.captures, view_.extent);
  }

  /// Inserts the maps unescaped: base64 needs no escapes, and the maps are nearly all of the text.
  std::string operator()() {
    Json out;
    out["digest"] = lowered_.digest.hex();
    out["expressions"] = expressions();
    out["sections"] = sections();
    out["cover"] = cover();
    out["tiles"] = tiles();
    const Said said = say(asked_.written, traced_, look());
    out["says"] = {{"command", said.command}, {"cpp", said.cpp}, {"python", said.python}};
    if (question_.contains("cuda")) out["cuda"] = cuda(question_["cuda"]);
    std::string text = dumped(out);
    if (view_.cells > 0) text.insert(text.size() - 1, ",\"maps\":" + maps());
    return text;
  }

 private:
  runtime::TextAttention built() const {
    return runtime::build(asked_.written, Captures::FilesOrTypes,
                          [&](const std::string& name, DType type, std::span<const std::int64_t> shape) {
                            Owned out{detail::allocate(Device::cpu(), type, shape), {}};
                            out.tensor = Tensor(out.memory.get(), type, shape);
                            const auto how = asked_.fills.find(name);
                            fill(out.tensor, how == asked_.fills.end() ? Fill{} : how->second, name);
                            return out;
                          });
  }

  /// The options of attune plot that show this picture.
  std::vector<std::string> look() const {
    std::vector<std::string> out = look_of(view_, asked_.fills);
    if (question_.contains("qk") && question_["qk"].is_object())
      out.push_back(fmt::format("--random {}", whole(question_["qk"], "d", 1, 256, 64)));
    return out;
  }

  Json expressions() const {
    Json out = Json::array();
    const Written& w = asked_.written;
    const compiler::Mod &before = traced_.mod, &after = lowered_.mod;
    const ir::Signature names = before.signature();
    for (const auto& [name, written, was, is] : {std::tuple{"score", w.score, before.score, after.score},
                                                 {"mask", w.mask, before.mask, after.mask},
                                                 {"prob", w.prob, before.prob, after.prob},
                                                 {"sink", w.sink, before.sink, after.sink}})
      if (written)
        out.push_back({{"name", name},
                       {"text", ir::print(was, names)},
                       {"simplified", ir::print(is, names_)},
                       {"digest", was->digest.hex()}});
    return out;
  }

  Json sections() const {
    // Times differ from one run to the next.
    compiler::Steps steps = steps_;
    for (auto& step : steps.steps) step.took = {};
    Json out = Json::array();
    for (const compiler::Section& s : compiler::sections(lowered_, steps))
      if (s.of != compiler::Section::Of::Times) out.push_back({{"title", s.title}, {"lines", s.lines}});
    return out;
  }

  Json cover() const {
    const ir::Signature names = lowered_.cover.signature(names_);
    return {{"mask", ir::print(lowered_.cover.mask, names_)},
            {"along_kv", compiler::form(lowered_.cover.along_kv, ir::Input::KV, names)},
            {"along_q", compiler::form(lowered_.cover.along_q, ir::Input::Q, names)},
            {"closed", lowered_.cover.along_kv.exact()},
            {"lines", compiler::explain(lowered_.cover, names_)}};
  }

  Json tiles() const {
    const runtime::Kept kept = runtime::kept(lowered_, args(), view_);
    const runtime::Grid g = runtime::grid(kept.lists, 0, 0, most_tiles);
    std::string cells;
    for (const runtime::Keep keep : g.cells) cells += static_cast<char>('0' + static_cast<int>(keep));
    const std::int64_t empty = kept.lists.total - kept.lists.some - kept.lists.all;
    return {{"rows", g.rows},
            {"columns", g.columns},
            {"cells", cells},
            {"total", kept.lists.total},
            {"full", kept.lists.all},
            {"partial", kept.lists.some},
            {"empty", empty},
            {"skipped", static_cast<double>(empty) / static_cast<double>(kept.lists.total)},
            {"pairs", std::int64_t{view_.extent.q_len} * view_.extent.kv_len},
            {"kept", kept.live ? Json(*kept.live) : Json(nullptr)}};
  }

  std::string maps() const {
    runtime::View view = view_;
    Owned q, k;
    if (question_.contains("qk") && !question_["qk"].is_null()) {
      const std::int64_t d = whole(question_["qk"], "d", 1, 256, 64);
      const auto seed = static_cast<std::uint64_t>(whole(question_["qk"], "seed", 0, 1 << 30, 1));
      q = random_rows(view.extent.q_len, d, 2 * seed, view.extent);
      k = random_rows(view.extent.kv_len, d, 2 * seed + 1, view.extent);
      view.q = q.tensor, view.k = k.tensor;
    }
    const runtime::Numbers n = runtime::numbers(lowered_, args(), view);
    return fmt::format(R"({{"rows":{},"columns":{},"score":"{}","prob":"{}","grad":"{}"}})", n.score.rows,
                       n.score.columns, base64(n.score.values), base64(n.prob.values), base64(n.grad.values));
  }

  Json cuda(const Json& of) const {
    const std::string dtype = text(of, "dtype").value_or("bf16");
    runtime::require_word("dtype", dtype, std::array<std::string, 3>{"f32", "f16", "bf16"});
    runtime::Request request{.target = {.arch = whole(of, "arch", 80, 999, 90)}};
    runtime::read_shape(request, {{"dtype", dtype}, {"d", std::to_string(whole(of, "d", 1, 256, 128))}});
    codegen::SourcesOf what{request.call};
    what.call.length = codegen::length_of(view_.extent.q_len, view_.extent.kv_len);
    if (of.contains("backward") && of["backward"] == true) {
      what.call.backward.emplace();
      for (const compiler::CaptureSlot& c : lowered_.mod.captures)
        what.call.backward->push_back(compiler::type_of(c.dtype) == ir::Type::F32);
    }
    Json out = Json::array();
    const auto add = [&](const std::vector<codegen::CallSource>& sources) {
      for (const codegen::CallSource& one : sources)
        out.push_back({{"of", one.of}, {"kernel", one.source.name}, {"text", one.source.text}});
    };
    add(codegen::call_sources(lowered_, what));
    what.lists = true;
    add(codegen::call_sources(lowered_, what));
    return out;
  }

  compiler::Args args() const { return compiler::args(lowered_); }

  const Json& question_;
  Asked asked_;
  runtime::View view_;
  runtime::TextAttention text_;
  compiler::BoundMod traced_;
  compiler::Steps steps_;
  compiler::LoweredMod lowered_;
  ir::Signature names_;
};

Json error(const std::string& code, const std::string& what, const std::string& message) {
  return {{"code", code}, {"what", what}, {"why", ""}, {"fix", ""}, {"message", message}};
}

Json trouble_in(std::string_view text, std::string& answer) {
  try {
    const Json question = Json::parse(text);
    if (!question.is_object()) unreadable("question", "an object is expected", "write {\"mask\": \"kv <= q\"}");
    answer = Answer(question)();
    return nullptr;
  } catch (const Error& e) {
    return {{"error",
             {{"code", e.code},
              {"what", e.problem},
              {"why", e.why},
              {"fix", e.fix},
              {"where",
               {{"name", e.where.name},
                {"line", e.where.line},
                {"text", e.where.text},
                {"begin", e.where.begin},
                {"end", e.where.end}}},
              {"message", e.what()}}}};
  } catch (const Json::exception& e) {
    return {{"error", error("bad-question", "the question is no JSON", e.what())}};
  } catch (const std::bad_alloc&) {
    return {{"error", error("out-of-memory", "there is too little memory for this", "make the sizes smaller")}};
  } catch (const std::exception& e) {
    return {{"error", error("bug", "this is a bug in attune", e.what())}};
  }
}

}  // namespace

std::string answer(std::string_view question) {
  std::string out;
  const Json trouble = trouble_in(question, out);
  return trouble.is_null() ? out : dumped(trouble);
}

}  // namespace attune::playground
