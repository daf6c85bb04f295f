// tools/progress.h — a long verb's progress on stderr: a bar on a terminal, else lines, or nothing
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace attune::tools {

/// Threads may call step().
class Progress {
 public:
  enum class Style : std::uint8_t { none, plain, bar };

  Progress(Style style, std::string what, std::size_t whole);
  /// Wipes the bar, so that the next output has the line for itself.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more is done, called `name`.
  void step(const std::string& name);

 private:
  void draw();

  Style style_;
  std::string what_;
  std::size_t whole_, done_ = 0;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), drawn_{};
};

/// `word`: auto, bar, plain or none. auto: a bar if stderr is a terminal, else nothing.
Progress::Style progress_style(const std::string& word, bool quiet);

}  // namespace attune::tools
