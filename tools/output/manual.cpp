// tools/output/manual.cpp — pages of verbs: from CLI11's options and footers to text and man(1)
#include "tools/output/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>

#include "runtime/machine/options.h"
#include "tools/options/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

constexpr std::size_t page_width = 100;

/// The words of full|causal, and of cpu|emulated:ARCH those that are whole; none for NAME=FILE|NAME=TYPE, which is not
/// a list of words.
std::vector<std::string> choices_of(const std::string& takes) {
  if (takes.find('|') == std::string::npos) return {};
  const auto is_of_word = [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '-' || c == '_'; };
  std::vector<std::string> out = split(takes, '|');
  std::erase_if(out, [](const std::string& word) { return word.find(':') != std::string::npos; });
  for (const std::string& word : out)
    if (word.empty() || !std::ranges::all_of(word, is_of_word)) return {};
  return out;
}

ManualOption option_of(const CLI::Option& option) {
  ManualOption out;
  out.positional = option.get_positional();
  if (out.positional) out.names.push_back(option.get_name(true));
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  const bool flag = option.get_items_expected_max() == 0;
  out.takes = flag || out.positional ? "" : option.get_type_name();
  out.about = option.get_description();
  out.group = out.positional ? "Arguments" : option.get_group();
  out.choices = choices_of(flag ? "" : option.get_type_name());
  out.required = option.get_required();
  out.repeats = option.get_items_expected_max() > 1;
  out.file = option.get_type_name().find("FILE") != std::string::npos ||
             option.get_type_name().find("DIR") != std::string::npos;
  return out;
}

/// The sections of a footer. The first is DESCRIPTION, which may have no lines.
std::vector<ManualSection> sections_of(const std::string& footer) {
  constexpr std::array<std::array<std::string_view, 2>, 5> titles{{{"Example:", "EXAMPLES"},
                                                                   {"Examples:", "EXAMPLES"},
                                                                   {"Exit:", "EXIT STATUS"},
                                                                   {"Environment:", "ENVIRONMENT"},
                                                                   {"Files:", "FILES"}}};
  std::vector<ManualSection> out{{"DESCRIPTION", {}}};
  for (const std::string& line : split(footer, '\n')) {
    const auto title = std::ranges::find(titles, line, [](const auto& pair) { return pair[0]; });
    if (title != titles.end())
      out.push_back({std::string((*title)[1]), {}});
    else
      out.back().lines.push_back(line);
  }
  for (ManualSection& s : out)
    while (!s.lines.empty() && s.lines.back().empty()) s.lines.pop_back();
  return out;
}

ManualSection& section(std::vector<ManualSection>& all, const std::string& title) {
  const auto found = std::ranges::find(all, title, &ManualSection::title);
  return found != all.end() ? *found : all.emplace_back(ManualSection{title, {}});
}

/// `lead`, then the text, broken at spaces; later lines start in the text's column.
std::string hanging(std::string lead, std::size_t indent, std::string_view text) {
  std::string out = std::move(lead);
  const bool blank = out.find_first_not_of(' ') == std::string::npos;
  if (!blank && out.size() + 2 > indent)
    out += "\n" + std::string(indent, ' ');
  else
    out.resize(indent, ' ');
  std::size_t column = indent;
  bool first = true;
  for (const std::string& word : split(text, ' ')) {
    if (!first && column + 1 + word.size() > page_width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    first = false;
  }
  return out + "\n";
}

std::string head(const ManualOption& o) {
  std::string out = fmt::format("{}", fmt::join(o.names, ", "));
  if (!o.takes.empty()) out += " " + o.takes;
  if (o.repeats) out += " ...";
  return out;
}

std::string synopsis(const ManualPage& page) {
  std::string out = page.name;
  for (const ManualOption& o : page.options)
    if (o.required && !o.positional) out += " " + head(o);
  if (!page.verbs.empty()) return out + " VERB [OPTION]...";
  out += " [OPTION]...";
  for (const ManualOption& o : page.options)
    if (o.positional)
      out += fmt::format(" {}{}{}{}", o.required ? "" : "[", o.names[0], o.repeats ? "..." : "", o.required ? "" : "]");
  return out;
}

std::vector<std::string> groups_of(const ManualPage& page) {
  std::vector<std::string> out;
  for (const ManualOption& o : page.options)
    if (std::ranges::find(out, o.group) == out.end()) out.push_back(o.group);
  // Options that every verb has come last.
  std::stable_partition(out.begin(), out.end(), [](const std::string& group) { return group != "Options"; });
  return out;
}

/// Escapes text for roff: no line becomes a command, and - stays the character that can be copied.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      (out += "\\&") += c;
    else
      out += c;
  }
  return out;
}

/// Keeps indented lines as they are; others become paragraphs.
std::string roff_lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines)
    out += line.starts_with("  ") ? fmt::format(".nf\n{}\n.fi\n", roff(line))
           : line.empty()         ? std::string(".PP\n")
                                  : roff(line) + "\n";
  return out;
}

/// `whole`: the page of attune itself, not of a verb.
void add_man(const ManualPage& page, bool whole, std::string& out) {
  out += whole ? fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n", roff(page.name), roff(page.about))
               : fmt::format(".SH {}\n{}\n.PP\n", roff(page.name), roff(page.about));
  out += fmt::format(".B {}\n", roff(synopsis(page)));
  const auto title = [&](const std::string& text) { out += fmt::format(".{} {}\n", whole ? "SH" : "SS", roff(text)); };
  for (const ManualSection& s : page.sections) {
    if (s.title != "DESCRIPTION") continue;
    whole ? title(s.title) : void(out += ".PP\n");
    out += roff_lines(s.lines);
  }
  for (const std::string& group : groups_of(page)) {
    title(group);
    for (const ManualOption& o : page.options)
      if (o.group == group) out += fmt::format(".TP\n.B {}\n{}\n", roff(head(o)), roff(o.about));
  }
  for (const ManualSection& s : page.sections) {
    // The environment is the same for all verbs.
    if (s.title == "DESCRIPTION" || (!whole && s.title == "ENVIRONMENT")) continue;
    title(s.title);
    out += roff_lines(s.lines);
  }
  for (const ManualPage& verb : page.verbs) add_man(verb, false, out);
}

class Formatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    return as_text(manual_page(*app, name));
  }
};

}  // namespace

ManualPage manual_page(const CLI::App& app, const std::string& name) {
  ManualPage page{.name = name, .about = app.get_description(), .options = {}, .sections = {}, .verbs = {}};
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty()) page.options.push_back(option_of(*option));
  std::stable_partition(page.options.begin(), page.options.end(), [](const ManualOption& o) { return o.positional; });
  page.sections = sections_of(app.get_footer());
  if (page.sections[0].lines.empty()) page.sections.erase(page.sections.begin());
  ManualSection& exit = section(page.sections, "EXIT STATUS");
  for (const std::string status :
       {"  0  done", "  2  a user error: stderr has what, where, why and how to fix it", "  3  a bug of attune"})
    if (std::ranges::none_of(exit.lines,
                             [&](const std::string& line) { return line.starts_with(status.substr(0, 5)); }))
      exit.lines.push_back(status);
  std::ranges::sort(exit.lines);
  ManualSection& environment = section(page.sections, "ENVIRONMENT");
  for (const runtime::OptionRow& row : runtime::option_rows())
    environment.lines.push_back(fmt::format("  {:<19} {}", row.name, row.meaning));
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App* v) { return !v->get_name().empty(); }))
    page.verbs.push_back(manual_page(*verb, name + " " + verb->get_name()));
  return page;
}

std::string as_text(const ManualPage& page) {
  std::string out = fmt::format("NAME\n  {} — {}\n\nSYNOPSIS\n  {}\n", page.name, page.about, synopsis(page));
  const auto add_section = [&](const ManualSection& s) {
    out += fmt::format("\n{}\n", s.title);
    for (const std::string& line : s.lines)
      out += line.empty() ? "\n" : line.starts_with("  ") ? line + "\n" : hanging("  ", 2, line);
  };
  for (const ManualSection& s : page.sections)
    if (s.title == "DESCRIPTION") add_section(s);
  if (!page.verbs.empty()) {
    out += "\nVERBS\n";
    for (const ManualPage& verb : page.verbs) {
      out += hanging("  " + verb.verb(), 14, verb.about);
    }
  }
  for (const std::string& group : groups_of(page)) {
    out += fmt::format("\n{}\n", group == "Options" ? "OPTIONS" : group);
    for (const ManualOption& o : page.options)
      if (o.group == group) out += hanging("  " + head(o), 28, o.about);
  }
  for (const ManualSection& s : page.sections)
    if (s.title != "DESCRIPTION") add_section(s);
  return out;
}

std::string as_man(const ManualPage& page, const std::string& version) {
  std::string out = fmt::format(".TH ATTUNE 1 \"\" \"attune {}\" \"User Commands\"\n", roff(version));
  add_man(page, true, out);
  return out;
}

std::shared_ptr<CLI::FormatterBase> manual_formatter() { return std::make_shared<Formatter>(); }

}  // namespace attune::tools
