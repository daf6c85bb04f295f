// runtime/engines/emulated/refused.h — the Errors for what the system refuses: files, processes, memory
#pragma once

#include <string>

namespace attune::runtime::emulated {

/// Throws the Error for a system call that failed with this value of errno, on a file below TMPDIR or on a process.
[[noreturn]] void refuse(const std::string& problem, int error);
/// The same where memory could not be mapped for the stacks of an emulated kernel's threads.
[[noreturn]] void refuse_stacks(int error);
/// The same where a kernel's library in TMPDIR could not be loaded; `why` is what the dynamic linker says.
[[noreturn]] void refuse_library(const std::string& path, const std::string& why);

}  // namespace attune::runtime::emulated
