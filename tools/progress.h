// tools/progress.h — how far a long verb is, on stderr: a bar on a terminal, else lines, or nothing
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace attune::tools {

/// Threads may step it.
class Progress {
 public:
  enum class Style : std::uint8_t { none, plain, bar };

  Progress(Style style, std::string what, std::size_t whole);
  /// The bar is wiped away, so that what comes next has the line for itself.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more is done; `name` is that one.
  void step(const std::string& name);

 private:
  void draw();

  Style style_;
  std::string what_;
  std::size_t whole_, done_ = 0;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), drawn_{};
};

/// `word`: auto, bar, plain or none. auto: a bar where stderr is a terminal, else nothing.
Progress::Style progress_style(const std::string& word, bool quiet);

}  // namespace attune::tools
