// runtime/attention/offline/manifest.cpp — the kernels that attune compile builds: mods x shapes x targets x passes,
// from options or a JSON file
#include "runtime/attention/offline/manifest.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "ir/parse.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/machine/files.h"

namespace attune::runtime {
namespace {

using Json = nlohmann::ordered_json;

Error bad_value(const std::string& at, const std::string& key, const std::string& value, const std::string& takes) {
  return Error("manifest-value", fmt::format("{} cannot be {}", key, value), {.name = at}, "it takes " + takes,
               "write such a value, or leave it out");
}

/// Keys of shapes of earlier versions.
constexpr std::array<std::string_view, 8> derived{"shared_heads", "decode",      "paged",     "page_rows",
                                                  "row_blocks",   "few_queries", "few_tiles", "shared_keys"};

/// Checks that each key of an object is known, in their order.
void check_keys(const Json& object, const std::vector<std::string>& known, const std::string& at,
                const std::string& what) {
  if (!object.is_object()) throw bad_value(at, what, object.dump(), "an object");
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    if (std::ranges::find(derived, key) != derived.end())
      throw Error("manifest-key", fmt::format("{} has no key `{}`", what, key), {.name = at},
                  "it follows from q_len, group and page_size", "write these instead, see docs/offline.md");
    const auto near = ir::nearest(key, known);
    throw Error("manifest-key", fmt::format("{} has no key `{}`", what, key), {.name = at},
                fmt::format("it has {}", fmt::join(known, ", ")),
                near ? fmt::format("did you mean {}?", *near) : "leave it out");
  }
}

/// A single value as a list of one, or a list of at least one.
std::vector<Json> each(const Json& value, const std::string& key, const std::string& at) {
  if (!value.is_array()) return {value};
  if (value.empty()) throw bad_value(at, key, "[]", "at least one value");
  return {value.begin(), value.end()};
}

std::string text(const Json& value, const std::string& key, const std::string& at) {
  if (!value.is_string()) throw bad_value(at, key, value.dump(), "a text in quotes");
  return value.get<std::string>();
}

std::vector<std::string> texts(const Json& object, const std::string& key, const std::string& at) {
  std::vector<std::string> out;
  if (object.contains(key))
    for (const Json& one : each(object[key], key, at)) out.push_back(text(one, key, at));
  return out;
}

/// NAME=VALUE for each member.
std::vector<std::string> assignments(const Json& object, const std::string& key, const std::string& at) {
  std::vector<std::string> out;
  if (!object.contains(key)) return out;
  if (!object[key].is_object()) throw bad_value(at, key, object[key].dump(), "an object of names");
  for (const auto& [name, value] : object[key].items()) {
    if (!value.is_string() && !value.is_number())
      throw bad_value(at, fmt::format("{} of {}", name, key), value.dump(), "a number or a text in quotes");
    out.push_back(name + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return out;
}

Written mod_of(const Json& object, const std::string& at) {
  const std::vector<std::string> known{"score", "mask", "prob", "sink", "lets", "captures", "params"};
  check_keys(object, known, at, "a mod");
  Written out;
  for (const auto& [key, member] : written_parts)
    if (object.contains(key)) out.*member = text(object[key], key, at);
  out.lets = assignments(object, "lets", at);
  out.captures = assignments(object, "captures", at);
  out.params = assignments(object, "params", at);
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> shape_of(const Json& object, const std::string& at) {
  std::vector<std::string> known;
  for (const ShapeRow& row : shape_rows()) known.emplace_back(row.name);
  check_keys(object, known, at, "a shape");
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  for (const auto& [key, value] : object.items()) {
    std::vector<std::string> values;
    for (const Json& one : each(value, key, at))
      values.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    out.emplace_back(key, std::move(values));
  }
  return out;
}

ManifestLists lists_of(const Json& object, const std::string& at) {
  check_keys(object, {"mods", "shapes", "targets", "passes"}, at, "a manifest");
  ManifestLists out;
  out.at = at;
  if (object.contains("mods"))
    for (const Json& one : each(object["mods"], "mods", at)) out.mods.push_back(mod_of(one, at));
  if (object.contains("shapes"))
    for (const Json& one : each(object["shapes"], "shapes", at)) out.shapes.push_back(shape_of(one, at));
  out.targets = texts(object, "targets", at);
  out.passes = texts(object, "passes", at);
  return out;
}

TargetName target_of(const std::string& word, const std::string& at) {
  if (word == "host") return {.isa = cpu::isa()};
  if (const auto target = target_named(word)) return *target;
  const auto known = known_targets();
  const std::vector<std::string> words(known.begin(), known.end());
  const bool lacks_an_a = std::ranges::find(words, word + "a") != words.end();
  const auto near = lacks_an_a ? std::optional(word + "a") : near_word(word, words);
  throw Error("unknown-target", fmt::format("there is no target `{}`", word), {.name = at},
              fmt::format("there are {}", fmt::join(words, ", ")),
              near ? fmt::format("did you mean {}?", *near) : "write one of these");
}

/// All combinations of one value of each field.
std::vector<Fields> combinations(const std::vector<std::pair<std::string, std::vector<std::string>>>& fields) {
  std::vector<Fields> out(1);
  for (const auto& [name, values] : fields) {
    std::vector<Fields> more;
    for (const Fields& one : out)
      for (const std::string& value : values) {
        more.push_back(one);
        more.back()[name] = value;
      }
    out = std::move(more);
  }
  return out;
}

/// The parser itself keeps the last of two values of a key.
Json parsed(const std::string& text, const std::string& at) {
  std::vector<std::set<std::string>> keys;
  const auto refuse_twice = [&](int, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Error("manifest-key", fmt::format("the key `{}` is given twice", value.get<std::string>()), {.name = at},
                  "one object has it twice", "leave one of them out");
    return true;
  };
  try {
    return Json::parse(text, refuse_twice);
  } catch (const Json::exception& e) {
    throw Error("manifest-json", "a manifest is not JSON", {.name = at}, e.what(),
                "write an object, an array of objects, or an object on each line");
  }
}

}  // namespace

void add_to(Manifest& manifest, const ManifestLists& lists) {
  // `--target ,` and `[""]` name no target either.
  if (std::ranges::all_of(lists.targets, &std::string::empty))
    throw Error("no-target", "there is no target to compile for", {.name = lists.at}, "none is named",
                fmt::format("name some of {}", fmt::join(known_targets(), ", ")));
  const bool any_gpu = std::ranges::any_of(
      lists.targets, [&](const std::string& word) { return target_of(word, lists.at).arch.has_value(); });
  std::vector<Fields> shapes;
  for (const auto& fields : lists.shapes) {
    const auto kernel = std::ranges::find(fields, "kernel", [](const auto& field) { return field.first; });
    if (kernel != fields.end() && !any_gpu)
      throw Error("bad-kernel", "a kernel is named, and no target is a GPU", {.name = kernel->second.front()},
                  "only kernels of GPUs have names", "add a GPU target such as sm_90a, or leave the kernel out");
    std::ranges::move(combinations(fields), std::back_inserter(shapes));
  }
  if (lists.shapes.empty()) shapes = combinations({});
  const std::vector<std::string> passes = lists.passes.empty() ? std::vector<std::string>{"forward"} : lists.passes;
  const std::array<std::string, 2> known{"forward", "backward"};
  for (const std::string& pass : passes) require_word(lists.at + ": a pass", pass, known);
  for (const Written& mod : lists.mods.empty() ? std::vector<Written>(1) : lists.mods)
    for (const Fields& shape : shapes)
      for (const std::string& word : lists.targets)
        for (const std::string& pass : passes) {
          Request one{.mod = mod, .target = target_of(word, lists.at), .pass = pass};
          if (const ShapeRow* const wrong = read_shape(one, shape))
            throw bad_value(lists.at, std::string(wrong->name), shape.find(wrong->name)->second,
                            std::string(wrong->takes));
          manifest.push_back(std::move(one));
        }
}

Manifest read_manifest(const std::filesystem::path& path) {
  return parse_manifest(read_text(path, "name a file of JSON"), path.string());
}

Manifest parse_manifest(const std::string& whole, const std::string& name) {
  Manifest out;
  const auto add = [&](const Json& json, const std::string& at) {
    std::size_t number = 0;
    for (const Json& one : each(json, "a manifest", at)) {
      ++number;
      add_to(out, lists_of(one, json.is_array() ? fmt::format("{}, object {}", at, number) : at));
    }
  };
  const std::size_t first_end = whole.find('\n');
  const bool lines = first_end != std::string::npos && Json::accept(whole.substr(0, first_end)) &&
                     whole.find_first_not_of(" \t\r\n", first_end) != std::string::npos;
  if (!lines) {
    add(parsed(whole, name), name);
    return out;
  }
  std::istringstream rest(whole);
  int number = 0;
  for (std::string line; std::getline(rest, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string at = fmt::format("{}:{}", name, number);
    add(parsed(line, at), at);
  }
  return out;
}

}  // namespace attune::runtime
