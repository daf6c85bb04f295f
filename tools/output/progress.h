// tools/output/progress.h — a long verb's progress on stderr: a bar on a terminal, else lines, or nothing
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace CLI {
class App;
}

namespace attune::tools {

/// Any thread may call step().
class Progress {
 public:
  enum class Style : std::uint8_t { none, plain, bar };

  Progress(Style style, std::string what, std::size_t whole);
  /// Erases the bar, so that the next output starts on an empty line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Counts one more item as done; `name` is its name.
  void step(const std::string& name);
  /// Sets the fraction of the whole that is done, in [0, 1].
  void at(double share);
  /// Erases the bar until the next step, for other output.
  void wipe();

 private:
  bool due() const;
  void draw();

  Style style_;
  std::string what_;
  std::size_t whole_, done_ = 0;
  double share_ = 0;
  std::size_t told_ = 0;  ///< tenths that plain lines have told
  std::mutex mutex_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), drawn_{};
};

/// --progress of a verb that takes it.
struct ProgressOption {
  std::string word = "auto";
  void add_to(CLI::App& verb);
  Progress::Style style(bool quiet = false) const;
};

/// `word`: auto, bar, plain or none. auto: a bar if stderr is a terminal, else nothing.
Progress::Style progress_style(const std::string& word, bool quiet);

}  // namespace attune::tools
