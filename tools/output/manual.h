// tools/output/manual.h — CLI11's verbs as pages: for --help, for man(1), for shells' completion
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace attune::tools {

struct ManualOption {
  std::vector<std::string> names;    ///< --score, -h; a positional has one name
  std::string takes;                 ///< f32|f16|bf16; empty for a flag
  std::string about, group;          ///< the group's title
  std::vector<std::string> choices;  ///< if it takes one of a few words
  bool positional = false, required = false, repeats = false, file = false;
};

/// The lines below a title, from a verb's footer: text before any title is the description; then come `Examples:`,
/// `Exit:`, `Environment:`, each alone on its line.
struct ManualSection {
  std::string title;
  std::vector<std::string> lines;
};

struct ManualPage {
  std::string name, about;  ///< such as: attune cover
  std::vector<ManualOption> options;
  std::vector<ManualSection> sections;  ///< including those that every page has
  std::vector<ManualPage> verbs;

  std::string verb() const { return name.substr(name.rfind(' ') + 1); }
};

ManualPage manual_page(const CLI::App& app, const std::string& name);

/// The page for a terminal: what --help prints.
std::string as_text(const ManualPage& page);
/// All pages as one for man(1).
std::string as_man(const ManualPage& page, const std::string& version);

/// Makes CLI11 print these pages.
std::shared_ptr<CLI::FormatterBase> manual_formatter();

}  // namespace attune::tools
