// tools/support_measured.cpp — maps rows of docs/results to kinds of calls, with the peers that they are compared with
#include "tools/support_measured.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

#include <attune/error.h>

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Rows of a file that measure one kind of call. `compared`: the row without the mod.
struct RowOf {
  std::string_view files;  ///< what their names begin with
  std::string_view group, label, compared_group, compared_label;
  std::string_view call, dtype, width, layout, mod, what{};
};

constexpr std::string_view mods128 = "mods, D=128, S=8192, B=2", back = "backward, D=128, causal",
                           back_mods = "backward, mods, D=128, S=8192, B=2", one = "one query", size = "16x8k",
                           served = "mods, 16x8k", e4m3_128 = "q, k and v of e4m3, D=128, full";
constexpr std::array rows_of{
    RowOf{"gpu-forward", "D=128, full", "S=16384", "", "", "forward", "bf16", "128", "dense", "plain"},
    RowOf{"gpu-forward", "D=64, full", "S=16384", "", "", "forward", "bf16", "64", "dense", "plain"},
    RowOf{"gpu-forward", "D=256, full", "S=16384", "", "", "forward", "bf16", "256", "dense", "plain"},
    RowOf{"gpu-forward", "D=128, causal", "S=16384", "D=128, full", "S=16384", "forward", "bf16", "128", "dense",
          "mask", "causal"},
    RowOf{"gpu-forward", "D=64, causal", "S=16384", "D=64, full", "S=16384", "forward", "bf16", "64", "dense", "mask",
          "causal"},
    RowOf{"gpu-forward", "D=256, causal", "S=16384", "D=256, full", "S=16384", "forward", "bf16", "256", "dense",
          "mask", "causal"},
    RowOf{"gpu-forward", mods128, "alibi", mods128, "causal", "forward", "bf16", "128", "dense", "score", "alibi"},
    RowOf{"gpu-forward", mods128, "softcap", mods128, "causal", "forward", "bf16", "128", "dense", "score", "softcap"},
    RowOf{"gpu-forward", mods128, "relative", mods128, "causal", "forward", "bf16", "128", "dense", "score",
          "relative"},
    RowOf{"gpu-forward", mods128, "window", mods128, "causal", "forward", "bf16", "128", "dense", "mask", "window"},
    RowOf{"gpu-forward", mods128, "prefix", mods128, "causal", "forward", "bf16", "128", "dense", "mask", "prefix"},
    RowOf{"gpu-forward", mods128, "document", mods128, "causal", "forward", "bf16", "128", "dense", "data mask",
          "document"},
    RowOf{"gpu-forward", "packed, D=128", "full, starts on the host", "", "", "forward", "bf16", "128", "packed",
          "plain"},
    RowOf{"gpu-forward", "packed, D=128", "causal, starts on the host", "packed, D=128", "full, starts on the host",
          "forward", "bf16", "128", "packed", "mask", "causal"},
    RowOf{"gpu-forward", "packed, D=64", "full, starts on the host", "", "", "forward", "bf16", "64", "packed",
          "plain"},
    RowOf{"gpu-forward", "packed, D=64", "causal, starts on the host", "packed, D=64", "full, starts on the host",
          "forward", "bf16", "64", "packed", "mask", "causal"},
    RowOf{"gpu-gradients", "backward, D=128, full", "S=16384", "", "", "backward", "bf16", "128", "dense", "plain"},
    RowOf{"gpu-gradients", "backward, D=64, full", "S=16384", "", "", "backward", "bf16", "64", "dense", "plain"},
    RowOf{"gpu-gradients", "backward, D=256, full", "S=16384", "", "", "backward", "bf16", "256", "dense", "plain"},
    RowOf{"gpu-gradients", back, "S=16384", "backward, D=128, full", "S=16384", "backward", "bf16", "128", "dense",
          "mask", "causal"},
    RowOf{"gpu-gradients", back_mods, "alibi", back, "S=16384", "backward", "bf16", "128", "dense", "score", "alibi"},
    RowOf{"gpu-gradients", back_mods, "softcap", back, "S=16384", "backward", "bf16", "128", "dense", "score",
          "softcap"},
    RowOf{"gpu-gradients", back_mods, "relative", back, "S=16384", "backward", "bf16", "128", "dense", "score",
          "relative"},
    RowOf{"gpu-gradients", back_mods, "relative, its table's gradient too", back, "S=16384", "backward", "bf16", "128",
          "dense", "grads q-kv", "relative with its table's gradient"},
    RowOf{"gpu-gradients", back_mods, "window", back, "S=16384", "backward", "bf16", "128", "dense", "mask", "window"},
    RowOf{"gpu-gradients", back_mods, "prefix", back, "S=16384", "backward", "bf16", "128", "dense", "mask", "prefix"},
    RowOf{"gpu-gradients", back_mods, "document", back, "S=16384", "backward", "bf16", "128", "dense", "data mask",
          "document"},
    RowOf{"gpu-gradients", "backward, packed, D=64", "full, starts on the host", "", "", "backward", "bf16", "64",
          "packed", "plain"},
    RowOf{"gpu-gradients", "backward, packed, D=64", "causal, starts on the host", "backward, packed, D=64",
          "full, starts on the host", "backward", "bf16", "64", "packed", "mask", "causal"},
    RowOf{"gpu-e4m3", e4m3_128, "S=16384", "", "", "forward", "e4m3", "128", "dense", "plain"},
    RowOf{"gpu-e4m3", "q, k and v of e4m3, D=64, full", "S=16384", "", "", "forward", "e4m3", "64", "dense", "plain"},
    RowOf{"gpu-e4m3", "q, k and v of e4m3, D=128, causal", "S=16384", e4m3_128, "S=16384", "forward", "e4m3", "128",
          "dense", "mask", "causal"},
    RowOf{"gpu-serving", one, size, "", "", "decode", "bf16", "128", "dense", "plain"},
    RowOf{"gpu-serving", served, "alibi", one, size, "decode", "bf16", "128", "dense", "score", "alibi"},
    RowOf{"gpu-serving", served, "softcap", one, size, "decode", "bf16", "128", "dense", "score", "softcap"},
    RowOf{"gpu-serving", served, "table", one, size, "decode", "bf16", "128", "dense", "score", "relative"},
    RowOf{"gpu-serving", served, "window", one, size, "decode", "bf16", "128", "dense", "mask", "window"},
    RowOf{"gpu-serving", "pages, 16x8k", "pages of 16", one, size, "decode", "bf16", "128", "paged", "plain",
          "with pages of 16"},
    RowOf{"gpu-serving", "cache of e4m3", size, one, size, "decode", "bf16/e4m3", "128", "dense", "plain",
          "in bytes of e4m3"},
    RowOf{"gpu-serving-h100", "MLA", "128x8k, pages of 64, 128 heads of 1", "", "", "decode", "bf16", "576/512",
          "paged", "plain"},
};

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
  for (const RowOf& row : rows_of) {
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
                     .group = std::string(row.group),
                     .label = std::string(row.label),
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
