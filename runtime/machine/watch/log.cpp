// runtime/machine/watch/log.cpp — what is reported to people: lines of text, and a line of status on a terminal
#include "runtime/machine/watch/log.h"

#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

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

namespace {

/// Indices into channel_names.
enum Channel : unsigned { passes, choose, cache, build, launch };

std::string begin(Channel channel, std::string_view mod) {
  // Enough digits to find the digest again.
  return fmt::format("{:<6}  {:<8}  ", channel_names[channel], mod.empty() ? "-" : mod.substr(0, 8));
}

std::string time_of(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

/// The seconds, and where they went.
std::string times_of(const watch::Built& fact) {
  std::string out = time_of(fact.seconds);
  for (const auto& one : fact.phases)
    out += fmt::format("{}{} {}", &one == fact.phases.data() ? " (" : ", ", one.name, time_of(one.seconds));
  return fact.phases.empty() ? out : out + ")";
}

bool is_of(const watch::Built& fact, Channel channel) {
  return channel == (fact.from == watch::Built::From::compiler ? build : cache);
}

void write_line(int file, const std::string& line) {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1000000;
  write_text(file,
             fmt::format("attune {:%H:%M:%S}.{:06} {} {}\n", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                         micros, gettid(), one_line(line)));
}

}  // namespace

std::string log_line(const watch::Lowered& fact) {
  std::string out = begin(passes, fact.mod) + fmt::format("lowered in {}:", time_of(fact.seconds));
  for (const auto& step : fact.steps)
    out += fmt::format("{} {} {} ({} nodes)", &step == fact.steps.data() ? "" : ",", step.name, time_of(step.seconds),
                       step.nodes);
  return out;
}

std::string log_line(const watch::Chosen& fact) {
  std::string out = begin(choose, fact.mod) + fmt::format("{} for {}", fact.kernel, fact.target);
  for (const std::string& text : fact.notes) out += fmt::format("; {}", text);
  for (const auto& one : fact.rejected) out += fmt::format("; not {}: {}", one.kernel, one.why);
  return out;
}

std::string log_line(const watch::Built& fact) {
  const bool made = fact.from == watch::Built::From::compiler;
  std::string out = begin(made ? build : cache, fact.mod) +
                    fmt::format("{} for {} {} in {}: {} bytes", fact.kernel, fact.target,
                                made                                    ? "compiled"
                                : fact.from == watch::Built::From::disk ? "found on disk"
                                                                        : "found in a bundle",
                                times_of(fact), fact.bytes);
  if (fact.registers > 0)
    out += fmt::format(", {} registers, {} bytes spilled, {} bytes of shared memory", fact.registers, fact.spilled,
                       fact.shared);
  if (!fact.flaw.empty()) out += fmt::format("; {}", fact.flaw);
  if (!fact.tier.empty()) out += fmt::format("; the {} tier", fact.tier);
  return out + fmt::format("; key {}", fact.key);
}

std::string log_line(const watch::Called& fact) {
  std::string out = begin(launch, fact.mod) +
                    fmt::format("{} by {} on {}: {} B={} H={}/{} S={}x{} D={}/{}{}, {} bytes of workspace, {}",
                                fact.call, fact.kernel, fact.target, fact.dtype, fact.batch, fact.q_heads,
                                fact.kv_heads, fact.q_len, fact.kv_len, fact.d, fact.dv, fact.packed ? " packed" : "",
                                fact.workspace, time_of(fact.seconds));
  if (fact.file) out += fmt::format("; {}:{}", fact.file, fact.line);
  return out;
}

std::string log_line(const watch::Notice& fact) {
  constexpr std::array<std::string_view, 5> names{"cache", "dump", "verify", "watch", "check"};
  return fmt::format("{:<6}  {:<8}  {}", names[static_cast<std::size_t>(fact.of)], "-", fact.text);
}

watch::Callbacks log_to(int file, unsigned channels) {
  watch::Callbacks out;
  const auto on = [channels](Channel channel) { return ((channels >> channel) & 1) != 0; };
  const auto log = [file](const auto& fact) { write_line(file, log_line(fact)); };
  if (on(passes)) out.lowered = log;
  if (on(choose)) out.chosen = log;
  if (on(launch)) out.called = log;
  if (on(build) || on(cache))
    out.built = [=](const watch::Built& fact) {
      for (const Channel channel : {build, cache})
        if (on(channel) && is_of(fact, channel)) log(fact);
    };
  if (channels != 0)
    out.notice = [=](const watch::Notice& fact) {
      if (fact.of != watch::Notice::Of::cache || on(cache)) log(fact);
    };
  return out;
}

void log_as_asked() {
  if (options().log != 0) listen_at_once(log_to(STDERR_FILENO, options().log));
}

}  // namespace attune::runtime
