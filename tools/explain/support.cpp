// tools/explain/support.cpp — attune support: which kernel takes which call on which GPU, measured speeds, and refused
// calls
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/explain/support_rows.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/verbs.h"
#include <attune/error.h>

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

struct SupportOptions {
  std::array<std::vector<std::string>, axes> words;
  bool json = false;
};

constexpr std::array all_axes{Axis::arch, Axis::call, Axis::dtype, Axis::width, Axis::layout, Axis::mod};

std::string option_of(Axis axis) { return fmt::format("--{}", name_of(axis)); }

Asked asked(const SupportOptions& o) {
  Asked out;
  for (const Axis axis : all_axes) {
    const auto values = values_of(axis);
    const std::vector<std::string> known(values.begin(), values.end());
    for (std::string word : o.words[static_cast<std::size_t>(axis)]) {
      if (axis == Axis::call && word == "prefill") word = "forward";
      require_word(option_of(axis), word, known);
      out[static_cast<std::size_t>(axis)].push_back(
          static_cast<std::size_t>(std::ranges::find(known, word) - known.begin()));
    }
  }
  return out;
}

// ---- as JSON: a line for each row ----

Json json_of(const SupportRow& row, std::span<const Measured> all) {
  Json out;
  for (const Axis axis : all_axes) {
    const std::string value(row.value(axis));
    if (axis == Axis::arch)
      out["arch"] = std::stoi(value);
    else
      out[std::string(name_of(axis))] = value;
  }
  out["kernels"] = row.kernels;
  if (!row.others.empty()) out["others"] = row.others;
  if (row.refused)
    out["refused"] = {{"code", row.refused->code},
                      {"problem", row.refused->problem},
                      {"why", row.refused->why},
                      {"fix", row.refused->fix}};
  for (const Measured& one : all) {
    if (!one.is_of(row)) continue;
    Json found{{"card", one.card}, {"date", one.date}, {"file", one.file}, {"row", one.group + ": " + one.label},
               {"rate", one.rate}, {"unit", one.unit}};
    if (!one.compared.empty()) found.update({{"compared", one.compared}, {"share", one.of_compared}});
    out["measured"].push_back(std::move(found));
  }
  return out;
}

// ---- as a table ----

using Bits = std::array<unsigned, axes>;

/// A box's values on one axis, relative to the values that its section has.
std::string values_text(Axis axis, unsigned bits, unsigned possible) {
  const auto values = values_of(axis);
  std::vector<std::string_view> in, out;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (possible >> i & 1) (bits >> i & 1 ? in : out).push_back(values[i]);
  if (in.size() > 1 && out.empty()) return "any";
  if (axis == Axis::arch) return fmt::format("{}", fmt::join(in, " "));
  if (axis == Axis::width && in.size() > 2) return fmt::format("{} to {}", in.front(), in.back());
  if (out.size() < 4 && in.size() > std::max(out.size(), std::size_t{2}))
    return fmt::format("any but {}", fmt::join(out, ", "));
  return fmt::format("{}", fmt::join(in, ", "));
}

/// Errors count as equal if they differ only in details of the call; `row` shows the details of one of them.
struct Refusals {
  std::vector<const Refusal*> all;

  std::string number(const Refusal& of) {
    const auto same = [&](const Refusal* one) { return one->code == of.code && one->problem == of.problem; };
    auto found = std::ranges::find_if(all, same);
    if (found == all.end()) found = all.insert(all.end(), &of);
    return fmt::format("refused ({})", found - all.begin() + 1);
  }
  std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < all.size(); ++i)
      out += fmt::format("{}({}) {}{}\n", i == 0 ? "\n" : "", i + 1, all[i]->problem,
                         all[i]->code.empty() ? "" : fmt::format(" [{}]", all[i]->code));
    return out;
  }
};

constexpr std::array columns{Axis::arch, Axis::dtype, Axis::width, Axis::layout, Axis::mod};
constexpr std::array<std::string_view, columns.size()> headings{"GPU, sm_", "type", "D", "layout", "mod"};

std::string section(std::string_view title, const std::vector<SupportBox>& boxes, std::span<const SupportRow> rows,
                    Refusals& refusals) {
  Bits possible{};
  for (const SupportBox& box : boxes)
    for (std::size_t axis = 0; axis < axes; ++axis) possible[axis] |= box.values[axis];
  std::vector<std::vector<std::string>> lines{{headings.begin(), headings.end()}};
  lines[0].emplace_back("kernel");
  for (const SupportBox& box : boxes) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Axis axis : columns) {
      const auto at = static_cast<std::size_t>(axis);
      line.push_back(values_text(axis, box.values[at], possible[at]));
    }
    const SupportRow& row = rows[box.first];
    line.push_back(row.refused ? refusals.number(*row.refused) : fmt::format("{}", fmt::join(row.kernels, " + ")));
  }
  std::array<std::size_t, columns.size()> width{};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < width.size(); ++i) width[i] = std::max(width[i], line[i].size());
  std::string out = fmt::format("\n{}\n", title);
  for (const auto& line : lines) {
    out += ' ';
    for (std::size_t i = 0; i < width.size(); ++i) out += fmt::format(" {:<{}}", line[i], width[i] + 1);
    out += ' ' + line.back() + '\n';
  }
  return out;
}

/// Kernels first, those of Hopper before others.
bool comes_before(const SupportBox& a, const SupportBox& b, std::span<const SupportRow> rows) {
  const auto rank = [&](const SupportBox& box) {
    const auto archs = static_cast<std::size_t>(Axis::arch);
    const bool hopper = rows[box.first].value(Axis::arch) == "90" && (box.values[archs] & (box.values[archs] - 1)) == 0;
    return std::pair(rows[box.first].refused.has_value(), !hopper);
  };
  return rank(a) < rank(b);
}

/// Wraps text to the width of the tables.
void add_share(std::string& to, const std::string& share) {
  constexpr std::size_t most = 62;
  const std::size_t line = to.size() - (to.rfind('\n') == to.npos ? 0 : to.rfind('\n') + 1 + 54);
  if (!to.empty()) to += line + share.size() > most ? fmt::format(",\n{:54}", "") : ", ";
  to += share;
}

/// The measurements, one line for each card and kind of call.
std::string measured_text(std::span<const SupportRow> rows, const std::vector<Measured>& all) {
  std::map<std::string, std::pair<std::string, std::string>> lines;  ///< by card and call: the plain rate, shares
  std::vector<std::string> order;
  for (const Measured& one : all) {
    if (std::ranges::none_of(rows, [&](const SupportRow& row) { return one.is_of(row); })) continue;
    const std::string key = fmt::format("{}, {} {} D={} {}", one.card, one.call, one.dtype, one.width, one.layout);
    if (!lines.contains(key)) order.push_back(key);
    auto& [plain, shares] = lines[key];
    if (one.compared.empty())
      plain = fmt::format("{:.0f} {}", one.rate, one.unit);
    else
      add_share(shares, fmt::format("{} {:.0f} %", one.what, 100 * one.of_compared));
  }
  std::string out;
  for (const std::string& key : order) {
    const auto& [plain, shares] = lines[key];
    const std::string line = fmt::format("  {:<38}{:<14}{}", key, plain,
                                         shares.empty() ? "no mod was measured" : shares);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

/// True while all kernels in Blackwell's rows are portable ones.
bool is_portable_on_blackwell(std::span<const SupportRow> rows) {
  bool any = false;
  for (const SupportRow& row : rows) {
    if (std::stoi(std::string(row.value(Axis::arch))) < 100) continue;
    any |= !row.kernels.empty();
    if (std::ranges::any_of(row.kernels, [](const std::string& name) { return !name.ends_with("_sm80"); }))
      return false;
  }
  return any;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> sections{
    {{"forward", "forward, many queries (prefill)"},
     {"decode", "forward, one query of each entry (decode)"},
     {"backward", "backward"}}};

void print_table(const std::vector<SupportRow>& rows) {
  std::vector<SupportBox> all = folded(rows);
  Refusals refusals;
  std::string out;
  for (const auto& [call, title] : sections) {
    std::vector<SupportBox> boxes;
    for (const SupportBox& box : all)
      if (rows[box.first].value(Axis::call) == call) boxes.push_back(box);
    if (boxes.empty()) continue;
    std::ranges::stable_sort(boxes, [&](const SupportBox& a, const SupportBox& b) { return comes_before(a, b, rows); });
    out += section(title, boxes, rows, refusals);
  }
  out += refusals.text();
  out += "\nmods\n";
  const auto mod = static_cast<std::size_t>(Axis::mod);
  for (std::size_t i = 0; i < values_of(Axis::mod).size(); ++i)
    if (std::ranges::any_of(rows, [&](const SupportRow& row) { return row.at[mod] == i; }))
      out += fmt::format("  {:<11} {}\n", values_of(Axis::mod)[i], meaning_of(Axis::mod, i));
  if (const std::string found = measured_text(rows, measured()); !found.empty())
    out += "\nmeasured: the rate without a mod, and the share of it that remains with one; other GPUs were not "
           "measured\n" +
           found;
  if (is_portable_on_blackwell(rows))
    out +=
        "\nThere are no kernels for Blackwell yet: sm_100 and sm_120 run the portable ones, whose names end in sm80.\n";
  write_out(out.substr(1));
}

}  // namespace

void add_support(CLI::App& app) {
  auto o = std::make_shared<SupportOptions>();
  CLI::App& verb = *app.add_subcommand("support", "which kernel runs which call on which GPU, and what is refused");
  constexpr std::array<std::string_view, axes> meanings{
      "only these GPUs, by compute capability times ten",
      "only these calls; decode is one query of each entry, prefill is forward",
      "only these types; A/B: q of type A, k and v of type B",
      "only these widths; D/Dv: values of width Dv",
      "only these layouts; lengths and paged are those of a KV cache",
      "only these kinds of mods"};
  for (const Axis axis : all_axes) {
    const auto at = static_cast<std::size_t>(axis);
    add_words(verb, option_of(axis), o->words[at], std::string(meanings[at]))
        ->type_name(fmt::format("{}", fmt::join(values_of(axis), "|")));
  }
  verb.add_flag("--json", o->json, "a line of JSON for each row, with the text of refusals and every measurement");
  verb.footer(
      "Asks the kernel chooser about each kind of call: GPU, direction, type, width of a head, layout and "
      "mod. Rows that agree are folded. No GPU is needed, and nothing is compiled: a kernel that spills too many "
      "registers is replaced by the next one; attune explain shows that.\n"
      "\n"
      "Only H100 and H200 were measured. There are no kernels for Blackwell yet: sm_100 and sm_120 run the portable "
      "ones, as the table says.\n"
      "Examples:\n"
      "  attune support --arch 90\n"
      "  attune support --call decode --dtype bf16 --layout paged\n"
      "  attune support --arch 90 --call backward --mod 'grads q-kv,grads' --json");
  verb.callback([o] {
    const std::vector<SupportRow> rows = support_rows(asked(*o));
    if (!o->json) return print_table(rows);
    const std::vector<Measured> all = measured();
    for (const SupportRow& row : rows) write_json(json_of(row, all));
  });
}

}  // namespace attune::tools
