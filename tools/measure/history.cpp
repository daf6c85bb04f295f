// tools/measure/history.cpp — stored results of attune bench, and comparisons with new ones
#include "tools/measure/bench.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include <attune/error.h>

#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that must agree for two results to be comparable.
constexpr const char* same_in_both[] = {"row",      "mod",    "direction",  "dtype",     "batch",      "heads",
                                        "kv_heads", "seq",    "kv_seq",     "d",         "dv",         "isa",
                                        "threads",  "device", "cover",      "lengths",   "exact",      "starts",
                                        "grads",    "decode", "kv_lengths", "page_size", "cache_dtype"};

bool comparable(const Json& a, const Json& b) {
  return std::ranges::all_of(same_in_both, [&](const char* key) {
    const auto in_a = a.find(key), in_b = b.find(key);
    return in_a == a.end() || in_b == b.end() ? (in_a == a.end()) == (in_b == b.end()) : *in_a == *in_b;
  });
}

Json machine() { return {{"processor", processor()}, {"cpus", std::thread::hardware_concurrency()}}; }

void append(const std::filesystem::path& path, const std::string& line) {
  std::error_code failed;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failed);
  const std::string why = runtime::append_file(path, line);
  if (!why.empty())
    throw Error("file-unwritable", "the result cannot be saved", {.name = "--save"},
                fmt::format("{}: {}", path.string(), why), "name a file that can be written to");
}

std::vector<Json> read(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw Error("file-missing", "there is nothing to compare with", {.name = "--compare"},
                fmt::format("{} cannot be read", path.string()), "save results first, with --save");
  std::vector<Json> out;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (text.empty()) continue;
    Json line = Json::parse(text, nullptr, false);
    const auto has_times = [](const Json& of) {
      const auto seconds = of.find("seconds");
      return seconds != of.end() && seconds->is_object() &&
             std::ranges::all_of(std::array{"p10", "median", "p90"}, [&](const char* key) {
               const auto time = seconds->find(key);
               return time != seconds->end() && time->is_number() && time->get<double>() > 0;
             });
    };
    const auto has_text = [](const Json& of, const char* key) {
      const auto value = of.find(key);
      return value == of.end() || value->is_string();
    };
    if (!line.is_object() || !has_times(line) || !has_text(line, "date") || !has_text(line, "commit"))
      throw Error("bad-history", "saved results cannot be read", {.name = path.string(), .line = number},
                  "each line is a result as attune bench --save writes it", "delete the line, or name another file");
    out.push_back(std::move(line));
  }
  return out;
}

double seconds_of(const Json& line, const char* key) { return line.at("seconds").at(key).get<double>(); }

}  // namespace

std::filesystem::path history_file(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".jsonl")) return name;
  const std::string& state = runtime::options().state;
  if (state.empty())
    throw Error("no-state", "there is no folder for results by a name", {.text = name, .begin = 0, .end = name.size()},
                "neither XDG_STATE_HOME nor HOME is an absolute path", "name a file, such as ./results.jsonl");
  return std::filesystem::path(state) / "bench" / (name + ".jsonl");
}

History::History(const std::optional<std::string>& save, const std::optional<std::string>& compare) {
  if (save) save_ = history_file(*save);
  if (!compare) return;
  earlier_ = read(history_file(*compare));
  against_ = *compare;
}

std::optional<Json> History::note(const Json& line) const {
  std::optional<Json> out;
  if (!against_.empty()) {
    std::vector<const Json*> same;
    for (const Json& one : earlier_)
      if (comparable(one, line)) same.push_back(&one);
    // Results of another processor count only if this processor has none.
    const Json here = machine();
    const auto is_here = [&](const Json* one) {
      const auto where = one->find("machine");
      return where != one->end() && *where == here;
    };
    const bool any_here = std::ranges::any_of(same, is_here);
    if (any_here) std::erase_if(same, [&](const Json* one) { return !is_here(one); });
    out = Json{{"against", against_}, {"results", same.size()}};
    if (!same.empty()) {
      std::vector<double> medians;
      double least = seconds_of(*same[0], "p10"), most = 0;
      for (const Json* one : same) {
        medians.push_back(seconds_of(*one, "median"));
        least = std::min(least, seconds_of(*one, "p10"));
        most = std::max(most, seconds_of(*one, "p90"));
      }
      std::ranges::sort(medians);
      const double low = least / seconds_of(line, "p90"), high = most / seconds_of(line, "p10");
      out->update({{"since", same.front()->value("date", "")},
                   {"commit", same.back()->value("commit", "")},
                   {"same_machine", any_here},
                   {"ratio", medians[medians.size() / 2] / seconds_of(line, "median")},
                   {"least", low},
                   {"most", high},
                   {"verdict", low > 1    ? "faster"
                               : high < 1 ? "slower"
                                          : "noise"}});
    }
  }
  if (!save_.empty()) {
    Json kept = line;
    kept.update({{"date", timestamp()},
                 {"machine", machine()},
                 {"command", command_line()},
                 {"version", std::string(version())},
                 {"commit", std::string(commit())}});
    append(save_, json_text(kept) + "\n");
  }
  return out;
}

namespace {

/// A comparison as a line of text.
std::string in_words(const Json& c) {
  const auto n = c.at("results").get<std::size_t>();
  const std::string against = c.at("against").get<std::string>();
  if (n == 0) return fmt::format("{} has no such result", against);
  const std::string verdict = c.at("verdict").get<std::string>();
  return fmt::format("{:.3f} times as fast as {} ({} result{}), spread {:.3f} to {:.3f}: {}{}",
                     c.at("ratio").get<double>(), against, n, n == 1 ? "" : "s", c.at("least").get<double>(),
                     c.at("most").get<double>(), verdict == "noise" ? "within the noise" : verdict,
                     c.at("same_machine").get<bool>() ? "" : ", on another machine");
}

}  // namespace

void History::tell(Json line, bool as_json, const std::function<void()>& print) const {
  const std::optional<Json> compared = note(line);
  if (compared && as_json) line["compared"] = *compared;
  as_json ? write_json(line) : print();
  if (compared && !as_json) print_out("           {}\n", in_words(*compared));
  flush_out();
}

}  // namespace attune::tools
