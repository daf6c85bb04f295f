// runtime/machine/background.h — tasks that other threads do early, or for later calls, one after another
#pragma once

#include <functional>

namespace attune::runtime {

/// Runs `task` on another thread, after the tasks that were given before, and returns at once. A task does early what a
/// call would do itself: its exceptions are dropped, and so is the task if no thread can be started. A process that
/// ends waits for the task that runs, because its compiler must not be unloaded meanwhile, and drops the others.
void in_background(std::function<void()> task);
/// The same for what only later calls use: on a separate thread with an even lower priority, so that it slows nothing
/// that a call needs.
void in_spare_time(std::function<void()> task);

/// Returns when the tasks that were given to in_background() so far have ended.
void wait_for_background();
/// The same for in_spare_time().
void wait_for_spare_time();

/// Drops the tasks of both kinds that have not begun, and returns when those that run have ended.
void stop_background();
/// True while stop_background() waits: tasks should end early. Compilers that can be interrupted are.
bool stopping_background();
/// To be called after a library that tasks use was opened: exit() then stops the background before it unloads the
/// library, because it first calls what was registered last.
void stop_background_at_exit();

}  // namespace attune::runtime
