// runtime/machine/watch/status_line.h — ATTUNE_PROGRESS: shows on stderr that a call waits for compilers
#pragma once

#include <cstdint>

#include <attune/watch.h>

namespace attune::runtime {

/// `line`: below the line of the cursor, which stays where it is; erased when the wait is over. `plain`: one line of
/// text when a wait is first reported, and one when it is over.
enum class ShownAs : std::uint8_t { line, plain };
/// Callbacks that show waits on `file`.
watch::Callbacks show_on(int file, ShownAs as);

/// Shows waits on stderr as ATTUNE_PROGRESS asks.
void show_as_asked();

}  // namespace attune::runtime
