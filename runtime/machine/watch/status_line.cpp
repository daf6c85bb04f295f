// runtime/machine/watch/status_line.cpp — ATTUNE_PROGRESS: shows on stderr that a call waits for compilers
#include "runtime/machine/watch/status_line.h"

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

/// A program may have begun a line of its own, such as a bar. The text is therefore written below, and the cursor
/// returns. Down and up first: on the last line of the terminal this scrolls by one.
std::string below(std::string_view text) {
  constexpr std::string_view down = "\x1b"
                                    "D",
                             up = "\x1bM",
                             keep = "\x1b"
                                    "7",
                             back = "\x1b"
                                    "8",
                             erase = "\x1b[K";
  return fmt::format("{}{}{}{}\r{}{}{}", down, up, keep, down, text, erase, back);
}

/// False: its terminal belongs to another job of a shell now.
bool is_in_front(int file) {
  const pid_t group = tcgetpgrp(file);
  return group < 0 || group == getpgrp();
}

/// A line that is longer than the terminal is wide would take two.
std::string_view fitting(std::string_view text, int file) {
  winsize size{};
  const std::size_t columns = ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80u;
  return text.substr(0, columns - 1);
}

}  // namespace

watch::Callbacks show_on(int file, ShownAs as) {
  watch::Callbacks out;
  if (as == ShownAs::line)
    out.compiling = [file](const watch::Compiling& fact) {
      if (is_in_front(file)) write_text(file, below(fact.over ? "" : fitting(fact.text, file)));
    };
  else
    out.compiling = [file, is_shown = std::make_shared<bool>(false)](const watch::Compiling& fact) {
      if (fact.over || !*is_shown) write_text(file, fact.text + "\n");
      *is_shown = !fact.over;
    };
  return out;
}

void show_as_asked() {
  const Options& o = options();
  const bool line = isatty(STDERR_FILENO) && o.terminal;
  // A log has lines of its own about kernels, which the status line would cross.
  if (o.progress == ShowProgress::on || (o.progress == ShowProgress::on_terminal && line && o.log == 0))
    listen_at_once(show_on(STDERR_FILENO, line && o.log == 0 ? ShownAs::line : ShownAs::plain));
}

}  // namespace attune::runtime
