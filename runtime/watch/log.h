// runtime/watch/log.h — ATTUNE_LOG: facts as lines of stderr
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <attune/watch.h>

namespace attune::runtime {

/// What ATTUNE_LOG may name, in the order of its bits.
inline constexpr std::array<std::string_view, 5> channel_names{"passes", "choose", "cache", "build", "launch"};
inline constexpr unsigned all_channels = (1u << channel_names.size()) - 1;

/// Every fact as one line, without its end: the channel, then what happened.
std::string log_line(const watch::Lowered& fact);
std::string log_line(const watch::Chosen& fact);
std::string log_line(const watch::Built& fact);
std::string log_line(const watch::Called& fact);
std::string log_line(const watch::Noted& fact);

/// Listeners that write the lines of these channels to `file`, each in one write. Notes that are not of the cache are
/// in any of them.
watch::Callbacks log_to(int file, unsigned channels);

/// What ATTUNE_LOG asks for.
void log_as_asked();

}  // namespace attune::runtime
