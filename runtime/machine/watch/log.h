// runtime/machine/watch/log.h — ATTUNE_LOG: facts as lines on stderr
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <attune/watch.h>

namespace attune::runtime {

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
