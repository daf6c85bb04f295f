// runtime/machine/background.h — tasks that another thread does early, one after another
#pragma once

#include <functional>

namespace attune::runtime {

/// Runs `task` on another thread, after the tasks that were given before, and returns at once. A task does early what a
/// call would do itself: its exceptions are dropped, and so is the task if no thread can be started. A process that
/// ends waits for the task that runs, because its compiler must not be unloaded meanwhile, and drops the others.
void in_background(std::function<void()> task);

/// Returns when the tasks that were given so far have ended.
void wait_for_background();

/// Drops the tasks that have not begun, and returns when the one that runs has ended.
void stop_background();

}  // namespace attune::runtime
