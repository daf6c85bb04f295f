// tools/progress.cpp — a long verb's progress on stderr: a bar on a terminal, else lines, or nothing
#include "tools/progress.h"

#include <array>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tools/text.h"

namespace attune::tools {

Progress::Progress(Style style, std::string what, std::size_t whole)
    : style_(style), what_(std::move(what)), whole_(whole) {
  if (style_ == Style::bar) draw();
}

Progress::~Progress() {
  if (style_ == Style::bar) std::fputs("\r\x1b[K", stderr);
}

void Progress::step(const std::string& name) {
  constexpr std::chrono::milliseconds pause{100};
  const std::lock_guard lock(mutex_);
  ++done_;
  if (style_ == Style::plain) std::fprintf(stderr, "%zu/%zu %s\n", done_, whole_, name.c_str());
  if (style_ == Style::bar && (done_ == whole_ || std::chrono::steady_clock::now() - drawn_ > pause)) draw();
}

void Progress::draw() {
  constexpr std::size_t width = 32;
  drawn_ = std::chrono::steady_clock::now();
  const std::size_t full = whole_ ? width * done_ / whole_ : width;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(drawn_ - start_).count();
  const std::string line = fmt::format("\r\x1b[K{} [{}{}] {}/{}  {} s", what_, std::string(full, '#'),
                                       std::string(width - full, ' '), done_, whole_, seconds);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

Progress::Style progress_style(const std::string& word, bool quiet) {
  require_word("--progress", word, std::array<std::string, 4>{"auto", "bar", "plain", "none"});
  if (word == "bar") return Progress::Style::bar;
  if (word == "plain") return Progress::Style::plain;
  return word == "auto" && !quiet && isatty(STDERR_FILENO) ? Progress::Style::bar : Progress::Style::none;
}

}  // namespace attune::tools
