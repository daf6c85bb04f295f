// tools/output/completion.cpp — attune completion: a script by which a shell completes attune's command lines; and
// attune man
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <memory>

#include "runtime/attention/offline/request.h"
#include "tools/options/text.h"
#include "tools/output/manual.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using runtime::shell_quoted;

/// Visits each page with the words that lead to it: "", "cover", "cache ls".
void for_all(const ManualPage& page, const std::function<void(const std::string& path, const ManualPage&)>& visit,
             const std::string& path = "") {
  visit(path, page);
  for (const ManualPage& verb : page.verbs) for_all(verb, visit, path + (path.empty() ? "" : " ") + verb.verb());
}

std::string words_after(const ManualPage& page) {
  std::vector<std::string> out;
  for (const ManualPage& verb : page.verbs) out.push_back(verb.verb());
  for (const ManualOption& o : page.options) {
    const auto& words = o.positional ? o.choices : o.names;
    out.insert(out.end(), words.begin(), words.end());
  }
  return fmt::format("{}", fmt::join(out, " "));
}

/// What an option takes, in the terms of the shell functions below: words, @file, or @any.
std::string values_of(const ManualOption& o) {
  if (!o.choices.empty()) return fmt::format("{}", fmt::join(o.choices, " "));
  return o.file ? "@file" : "@any";
}

/// The branches of a shell's `case` that set this variable to the path of a verb.
std::string paths_of(const ManualPage& root, std::string_view variable) {
  std::string out;
  for_all(root, [&](const std::string& path, const ManualPage&) {
    if (!path.empty()) out += fmt::format("      {0}) {1}={0} ;;\n", shell_quoted(path), variable);
  });
  return out;
}

std::string bash(const ManualPage& root) {
  std::string words, values;
  for_all(root, [&](const std::string& path, const ManualPage& page) {
    words += fmt::format("    {}) words={} ;;\n", shell_quoted(path), shell_quoted(words_after(page)));
    for (const ManualOption& o : page.options) {
      if (o.positional || o.takes.empty()) continue;
      for (const std::string& name : o.names)
        values += fmt::format("    {}) values={} ;;\n", shell_quoted(path + " " + name), shell_quoted(values_of(o)));
    }
  });
  return fmt::format(R"(# bash completion of attune {0}, written by `attune completion bash`
_attune() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev='' path='' at words='' values=''
  ((COMP_CWORD > 0)) && prev=${{COMP_WORDS[COMP_CWORD-1]}}
  # Bash takes --option=value and NAME=VALUE apart at the =.
  [[ $cur == = ]] && cur='' && prev='='
  if [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD-2]}}
    [[ ${{COMP_WORDS[COMP_CWORD]}} == = ]] && prev=${{COMP_WORDS[COMP_CWORD-1]}}
    [[ $prev == --* ]] || {{ _attune_files "$cur"; return; }}
  fi
  for ((at = 1; at < COMP_CWORD; at++)); do
    case "${{path:+$path }}${{COMP_WORDS[at]}}" in
{1}    esac
  done
  case "$path $prev" in
{2}  esac
  case "$values" in
    @file) _attune_files "$cur"; return ;;
    @any) COMPREPLY=(); return ;;
    ?*) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur"); return ;;
  esac
  case "$path" in
{3}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}
_attune_files() {{
  mapfile -t COMPREPLY < <(compgen -f -- "$1")
  type compopt >/dev/null 2>&1 && compopt -o filenames 2>/dev/null
  return 0
}}
complete -F _attune attune
)",
                     version(), paths_of(root, "path"), values, words);
}

/// Replaces characters that end or split a specification of _arguments.
std::string plain(std::string text) {
  for (char& c : text)
    if (c == '[' || c == ']' || c == ':' || c == '\'') c = ' ';
  return text;
}

std::string zsh(const ManualPage& root) {
  std::string cases;
  for_all(root, [&](const std::string& path, const ManualPage& page) {
    cases += fmt::format("    {})\n", shell_quoted(path));
    if (!page.verbs.empty()) {
      cases += "      verbs=(";
      for (const ManualPage& verb : page.verbs) cases += shell_quoted(verb.verb() + ":" + plain(verb.about)) + " ";
      cases += ")\n      _describe verb verbs\n";
    }
    cases += "      specs=(";
    for (const ManualOption& o : page.options) {
      const std::string action = !o.choices.empty() ? fmt::format("({})", fmt::join(o.choices, " "))
                                 : o.file           ? "_files"
                                                    : "";
      if (o.positional) {
        cases += shell_quoted(fmt::format("{}:{}:{}", o.repeats ? "*" : "", o.names[0], action)) + " ";
        continue;
      }
      for (const std::string& name : o.names)
        cases += shell_quoted(fmt::format("{}{}[{}]{}", o.repeats ? "*" : "", name, plain(o.about),
                                          o.takes.empty() ? "" : fmt::format(":{}:{}", plain(o.takes), action))) +
                 " ";
    }
    cases += ")\n      ;;\n";
  });
  return fmt::format(R"(#compdef attune
# zsh completion of attune {0}, written by `attune completion zsh`
_attune() {{
  local at='' word
  local -a verbs specs
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "${{at:+$at }}$word" in
{1}    esac
  done
  case "$at" in
{2}  esac
  _arguments -s : "${{specs[@]}}" '*:file:_files'
}}
_attune "$@"
)",
                     version(), paths_of(root, "at"), cases);
}

std::string fish(const ManualPage& root) {
  std::string out = fmt::format("# fish completion of attune {}, written by `attune completion fish`\n", version());
  for_all(root, [&](const std::string& path, const ManualPage& page) {
    std::string when = "__fish_use_subcommand";
    if (!path.empty()) {
      when = "";
      for (const std::string& word : split(path, ' '))
        when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    }
    for (const ManualPage& verb : page.verbs)
      out += fmt::format("complete -c attune -n {} -f -a {} -d {}\n", shell_quoted(when), verb.verb(),
                         shell_quoted(verb.about));
    for (const ManualOption& o : page.options) {
      if (o.positional) {
        if (!o.choices.empty())
          out += fmt::format("complete -c attune -n {} -f -a {}\n", shell_quoted(when),
                             shell_quoted(fmt::format("{}", fmt::join(o.choices, " "))));
        continue;
      }
      for (const std::string& name : o.names)
        out += fmt::format("complete -c attune -n {} -{} {}{} -d {}\n", shell_quoted(when),
                           name.starts_with("--") ? "l" : "s", name.substr(name.find_first_not_of('-')),
                           o.takes.empty()      ? ""
                           : !o.choices.empty() ? fmt::format(" -x -a {}", shell_quoted(values_of(o)))
                           : o.file             ? " -r"
                                                : " -x",
                           shell_quoted(o.about));
    }
  });
  return out;
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App& verb = *app.add_subcommand("completion", "a completion script for a shell");
  verb.add_option("SHELL", *shell, "which shell")->type_name("bash|zsh|fish")->required();
  verb.footer("It completes verbs, options and the words that options take.\n"
              "\n"
              "  bash   attune completion bash > ~/.local/share/bash-completion/completions/attune\n"
              "  zsh    attune completion zsh > FOLDER/_attune, a folder of $fpath\n"
              "  fish   attune completion fish > ~/.config/fish/completions/attune.fish\n"
              "\n"
              "Examples:\n  attune completion bash");
  verb.callback([shell, &app] {
    require_word("SHELL", *shell, std::array<std::string, 3>{"bash", "zsh", "fish"});
    const ManualPage page = manual_page(app, "attune");
    write_out(*shell == "bash" ? bash(page) : *shell == "zsh" ? zsh(page) : fish(page));
  });
}

void add_man(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("man", "this help as one page for man(1)");
  verb.footer("Examples:\n  attune man > attune.1");
  verb.callback([&app] { write_out(as_man(manual_page(app, "attune"), std::string(version()))); });
}

}  // namespace attune::tools
