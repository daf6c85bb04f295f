// runtime/machine/watch/log.h — what is reported to people: lines of text, and a line of status on a terminal
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <attune/watch.h>

namespace attune::runtime {

/// Replaces characters that would end the line, or control a terminal that shows it.
inline std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

/// `line`: below the line of the cursor, which stays where it is; erased when the wait is over. `plain`: one line of
/// text when a wait is first reported, and one when it is over.
enum class ShownAs : std::uint8_t { line, plain };
/// Callbacks that show waits on `file`.
watch::Callbacks show_on(int file, ShownAs as);

/// Shows waits on stderr as ATTUNE_PROGRESS asks.
void show_as_asked();

/// The words of ATTUNE_LOG, in the order of their bits.
inline constexpr std::array<std::string_view, 5> channel_names{"passes", "choose", "cache", "build", "launch"};
inline constexpr unsigned all_channels = (1u << channel_names.size()) - 1;

/// Every fact as one line without its end: the channel, then what happened.
std::string log_line(const watch::Lowered& fact);
std::string log_line(const watch::Chosen& fact);
std::string log_line(const watch::Built& fact);
std::string log_line(const watch::Called& fact);
std::string log_line(const watch::Notice& fact);

/// Callbacks that write the lines of these channels to `file`, each in one write. Any channel includes notes that do
/// not concern the cache.
watch::Callbacks log_to(int file, unsigned channels);

/// Listens as ATTUNE_LOG asks.
void log_as_asked();

}  // namespace attune::runtime
