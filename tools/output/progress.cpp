// tools/output/progress.cpp — a long verb's progress on stderr: a bar on a terminal, else lines, or nothing
#include "tools/output/progress.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tools/options/text.h"

namespace attune::tools {

Progress::Progress(Style style, std::string what, std::size_t whole)
    : style_(style), what_(std::move(what)), whole_(whole) {
  if (style_ == Style::bar) draw();
}

Progress::~Progress() { wipe(); }

void Progress::wipe() {
  const std::lock_guard lock(mutex_);
  if (style_ != Style::bar) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

bool Progress::due() const {
  constexpr std::chrono::milliseconds pause{100};
  return std::chrono::steady_clock::now() - drawn_ > pause;
}

void Progress::at(double share) {
  const std::lock_guard lock(mutex_);
  share_ = share;
  if (style_ == Style::bar && (share == 1 || due())) draw();
  const auto tenths = static_cast<std::size_t>(10 * share);
  if (style_ == Style::plain && tenths > told_) std::fprintf(stderr, "%s %zu%%\n", what_.c_str(), 10 * tenths);
  told_ = std::max(told_, tenths);
}

void Progress::step(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++done_;
  share_ = whole_ ? static_cast<double>(done_) / static_cast<double>(whole_) : 1;
  if (style_ == Style::plain) std::fprintf(stderr, "%zu/%zu %s\n", done_, whole_, name.c_str());
  if (style_ == Style::bar && (done_ == whole_ || due())) draw();
}

void Progress::draw() {
  constexpr std::size_t width = 32;
  drawn_ = std::chrono::steady_clock::now();
  const auto full = static_cast<std::size_t>(static_cast<double>(width) * share_);
  const std::string count = whole_ > 1 ? fmt::format("{}/{}", done_, whole_) : fmt::format("{:.0f}%", 100 * share_);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(drawn_ - start_).count();
  const std::string line = fmt::format("\r\x1b[K{} [{}{}] {}  {} s", what_, std::string(full, '#'),
                                       std::string(width - full, ' '), count, seconds);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

void ProgressOption::add_to(CLI::App& verb) {
  verb.add_option("--progress", word, "on stderr; a bar on a terminal if left out")->type_name("auto|bar|plain|none");
}

Progress::Style ProgressOption::style(bool quiet) const { return progress_style(word, quiet); }

Progress::Style progress_style(const std::string& word, bool quiet) {
  require_word("--progress", word, std::array<std::string, 4>{"auto", "bar", "plain", "none"});
  if (word == "bar") return Progress::Style::bar;
  if (word == "plain") return Progress::Style::plain;
  return word == "auto" && !quiet && isatty(STDERR_FILENO) ? Progress::Style::bar : Progress::Style::none;
}

}  // namespace attune::tools
