// runtime/engines/emulated/refused.cpp — the Errors for what the system refuses: files, processes, memory
#include "runtime/engines/emulated/refused.h"

#include <cerrno>
#include <cstring>

#include <sys/statvfs.h>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime::emulated {

void refuse(const std::string& problem, int error) {
  const auto limit = [&](const char* fix) { throw Error("emulated-limit", problem, {}, std::strerror(error), fix); };
  if (error == EMFILE || error == ENFILE) limit("let the process open more files (ulimit -n)");
  if (error == EAGAIN || error == ENOMEM)
    limit("let the process have more processes (ulimit -u) and memory (ulimit -v)");
  throw Error("emulated-folder", problem, {}, std::strerror(error),
              "set TMPDIR to a folder with room that you may write");
}

void refuse_stacks(int error) {
  throw Error("emulated-limit", "there is no room for the stacks of an emulated kernel's threads", {},
              std::strerror(error),
              "emulate fewer multiprocessors, for example :sms=4, or raise ulimit -v and vm.max_map_count");
}

void refuse_library(const std::string& path, const std::string& why) {
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC))
    throw Error("emulated-folder", fmt::format("{} cannot be loaded", path), {},
                "its file system is mounted with noexec", "set TMPDIR to a folder from which programs may run");
  throw Bug(fmt::format("an emulated kernel does not load: {}", why));
}

}  // namespace attune::runtime::emulated
