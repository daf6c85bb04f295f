// tools/output/line_diff.cpp — the longest common subsequence of lines: quadratic in the part that differs
#include "tools/output/line_diff.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace attune::tools {
namespace {

using Side = DiffLine::Side;
using Lines = std::span<const std::string_view>;

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

/// Compares texts whose first lines differ and whose last lines differ.
void add_different(Lines a, Lines b, std::vector<DiffLine>& out) {
  const std::size_t width = b.size() + 1;
  std::vector<std::uint32_t> same((a.size() + 1) * width);
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t j = b.size(); j-- > 0;)
      same[i * width + j] = a[i] == b[j] ? same[(i + 1) * width + j + 1] + 1
                                         : std::max(same[(i + 1) * width + j], same[i * width + j + 1]);
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      out.push_back({Side::both, std::string(a[i++])});
      ++j;
    } else if (i < a.size() && (j == b.size() || same[(i + 1) * width + j] >= same[i * width + j + 1])) {
      out.push_back({Side::a, std::string(a[i++])});
    } else {
      out.push_back({Side::b, std::string(b[j++])});
    }
  }
}

/// Lines [begin, end) of a diff, and their place in each text, from 1.
struct Hunk {
  std::size_t begin, end, a = 1, b = 1, of_a = 0, of_b = 0;
};

std::vector<Hunk> hunks(const std::vector<DiffLine>& lines, std::size_t around) {
  std::vector<Hunk> out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].side == Side::both) continue;
    const std::size_t begin = i > around ? i - around : 0, end = std::min(lines.size(), i + around + 1);
    if (!out.empty() && begin <= out.back().end)
      out.back().end = end;
    else
      out.push_back({begin, end});
  }
  std::size_t a = 1, b = 1, i = 0;
  for (Hunk& hunk : out) {
    const auto pass = [&](std::size_t to) {
      for (; i < to; ++i) {
        a += lines[i].side != Side::b;
        b += lines[i].side != Side::a;
      }
    };
    pass(hunk.begin);
    hunk.a = a;
    hunk.b = b;
    pass(hunk.end);
    hunk.of_a = a - hunk.a;
    hunk.of_b = b - hunk.b;
    // A side without lines gets the number of the line before, as in diff.
    hunk.a -= hunk.of_a == 0;
    hunk.b -= hunk.of_b == 0;
  }
  return out;
}

std::string range(std::size_t first, std::size_t count) {
  return std::to_string(first) + (count == 1 ? "" : "," + std::to_string(count));
}

}  // namespace

std::vector<DiffLine> diff_lines(std::string_view text_a, std::string_view text_b) {
  const std::vector<std::string_view> all_a = split(text_a), all_b = split(text_b);
  Lines a = all_a, b = all_b;
  std::vector<DiffLine> out;
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    out.push_back({Side::both, std::string(a.front())});
    a = a.subspan(1);
    b = b.subspan(1);
  }
  std::size_t alike = 0;
  while (alike < std::min(a.size(), b.size()) && a[a.size() - 1 - alike] == b[b.size() - 1 - alike]) ++alike;
  add_different(a.first(a.size() - alike), b.first(b.size() - alike), out);
  for (const std::string_view line : a.last(alike)) out.push_back({Side::both, std::string(line)});
  return out;
}

std::string whole(const std::vector<DiffLine>& lines) {
  std::string out;
  for (const DiffLine& line : lines) ((out += static_cast<char>(line.side)) += ' ') += line.text + "\n";
  return out;
}

std::string unified(const std::vector<DiffLine>& lines, std::string_view name_a, std::string_view name_b,
                    std::size_t around, bool colour) {
  const std::vector<Hunk> all = hunks(lines, around);
  if (all.empty()) return {};
  std::string out;
  const auto put = [&](std::string_view escape, const std::string& line) {
    if (colour && !escape.empty())
      (((out += "\x1b[") += escape) += line) += "\x1b[0m\n";
    else
      out += line + "\n";
  };
  put("1m", "--- " + std::string(name_a));
  put("1m", "+++ " + std::string(name_b));
  for (const Hunk& hunk : all) {
    put("36m", "@@ -" + range(hunk.a, hunk.of_a) + " +" + range(hunk.b, hunk.of_b) + " @@");
    for (std::size_t i = hunk.begin; i < hunk.end; ++i) {
      const Side side = lines[i].side;
      put(side == Side::a ? "31m" : side == Side::b ? "32m" : "", static_cast<char>(side) + lines[i].text);
    }
  }
  return out;
}

}  // namespace attune::tools
