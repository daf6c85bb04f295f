// ir/error.cpp — the text of an Error
#include <attune/error.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/lex.h"

namespace attune {
namespace {

constexpr std::size_t code_ends = 93;  // the column where [code] ends, when the problem leaves room for it
constexpr std::size_t widest = 100;    // columns of the user's text; the rest is cut
constexpr std::string_view margin = "       ";

// Characters that move the cursor, are invisible, or change the reading direction: a terminal must not obey them.
bool obeyed_by_terminals(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff || c == 0xfffd;
}

// A line split into code points, each made safe to show, with the column of every byte.
struct Columns {
  std::vector<std::string_view> shown;
  std::vector<std::size_t> starts;

  explicit Columns(std::string_view line) {
    for (std::size_t at = 0; at < line.size();) {
      const auto [value, bytes] = ir::first_code_point(line.substr(at));
      starts.push_back(at);
      shown.push_back(value == '\t' || value == '\n' ? " "
                      : obeyed_by_terminals(value)   ? "\xef\xbf\xbd"
                                                     : line.substr(at, bytes));
      at += bytes;
    }
  }

  std::size_t of(std::size_t byte) const {
    return static_cast<std::size_t>(std::lower_bound(starts.begin(), starts.end(), byte) - starts.begin());
  }

  std::string text(std::size_t begin, std::size_t end) const {
    std::string out;
    for (std::size_t i = begin; i < end; ++i) out += shown[i];
    return out;
  }
  std::string text() const { return text(0, shown.size()); }
};

std::string first_line(const Error& e) {
  const Columns problem(e.problem);
  const std::size_t used = 8 + problem.shown.size(), code = e.code.size() + 2;
  const std::size_t gap = used + 2 + code <= code_ends ? code_ends - used - code : 2;
  return "attune: " + problem.text() + std::string(gap, ' ') + "[" + e.code + "]";
}

// The user's line with carets under [begin, end); a long line is cut to the part around them.
std::string marked(std::string_view line, std::size_t begin, std::size_t end) {
  const Columns columns(line);
  const std::size_t length = columns.shown.size();
  std::size_t first = columns.of(begin), last = std::max(columns.of(end), first + 1);
  std::size_t from = 0, to = length;
  if (length > widest) {
    const std::size_t room = widest - std::min(last - first, widest / 2);
    from = std::min(first > room / 2 ? first - room / 2 : 0, length - widest);
    to = from + widest;
    last = std::min(last, std::max(to, first + 1));
  }
  std::string shown = columns.text(from, to);
  if (from > 0) shown = "…" + columns.text(from + 1, to);
  if (to < length) shown.erase(shown.size() - columns.shown[to - 1].size()) += "…";
  std::string out = std::string(margin) + shown;
  if (begin < end) out += "\n" + std::string(margin) + std::string(first - from, ' ') + std::string(last - first, '^');
  return out;
}

std::string place(const Place& where) {
  std::string name = Columns(where.name).text();
  if (where.line > 0) name += ":" + std::to_string(where.line);
  if (where.text.empty()) return name.empty() ? "" : "\n   at  " + name;

  const std::string_view text = where.text;
  const std::size_t begin = std::min(where.begin, text.size());
  const std::size_t before = begin == 0 ? std::string_view::npos : text.rfind('\n', begin - 1);
  const std::size_t start = before == std::string_view::npos ? 0 : before + 1;
  const std::size_t stop = std::min(text.find('\n', begin), text.size());
  const std::string_view line = text.substr(start, stop - start);
  // An end beyond the text means that something is missing there: it still gets a caret.
  const std::size_t end = where.end > where.begin ? std::max(std::min(where.end, stop), begin + 1) : begin;
  if (text.find('\n') != std::string_view::npos && where.line == 0) {
    const auto row = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(start), '\n');
    name += (name.empty() ? "line " : ":") + std::to_string(row) + ":" +
            std::to_string(1 + Columns(line).of(begin - start));
  }
  const std::string shown = marked(line, begin - start, end - start);
  return name.empty() ? "\n   at  " + shown.substr(margin.size()) : "\n   at  " + name + "\n" + shown;
}

std::string section(std::string_view title, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t stop = std::min(text.find('\n'), text.size());
    out += (out.empty() ? "\n  " + std::string(title) + "  " : "\n" + std::string(margin)) +
           Columns(text.substr(0, stop)).text();
    text.remove_prefix(std::min(stop + 1, text.size()));
  }
  return out;
}

}  // namespace

Error::Error(std::string code_, std::string problem_, Place where_, std::string why_, std::string fix_)
    : code(std::move(code_)), problem(std::move(problem_)), where(std::move(where_)), why(std::move(why_)),
      fix(std::move(fix_)) {
  message_ = first_line(*this) + place(where) + section("why", why) + section("fix", fix);
}

Bug::Bug(std::string_view what)
    : message_("attune: this is a bug in attune: " + std::string(what) + "; please report it with this text") {}

}  // namespace attune
