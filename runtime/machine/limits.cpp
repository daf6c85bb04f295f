// runtime/machine/limits.cpp — how much memory and how many CPUs the system lets this process have
#include "runtime/machine/limits.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <sys/mman.h>
#include <sys/resource.h>

namespace attune::runtime {

bool can_map(std::size_t bytes) {
  if (bytes == 0) return true;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  munmap(at, bytes);
  return true;
}

bool is_address_space_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

namespace {

using std::filesystem::path;

/// The CPUs that one group may use: microseconds of CPU time by microseconds of the period.
std::optional<double> limit_of(const path& group) {
  double time = 0, period = 0;
  // Without a limit the text is "max 100000", and "max" is not a number.
  if (std::ifstream file(group / "cpu.max"); file >> time >> period && period > 0) return time / period;
  if (std::ifstream(group / "cpu.cfs_quota_us") >> time && std::ifstream(group / "cpu.cfs_period_us") >> period &&
      time > 0 && period > 0)
    return time / period;
  return std::nullopt;
}

/// `group`, a path that begins with /, and all groups around it below `mounted`. Inside a container the outer part of
/// the path may not be there.
void narrow(std::optional<double>& least, const path& mounted, const std::string& group) {
  for (path part = path(group).relative_path();; part = part.parent_path()) {
    if (const auto limit = limit_of(mounted / part)) least = std::min(*limit, least.value_or(*limit));
    if (part.empty()) return;
  }
}

}  // namespace

std::optional<double> cpu_quota(const path& root) {
  std::optional<double> least;
  const path groups = root / "sys/fs/cgroup";
  std::ifstream mine(root / "proc/self/cgroup");
  for (std::string line; std::getline(mine, line);) {
    // number:controllers:path, without controllers in version 2
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      narrow(least, groups, group);
      narrow(least, groups / "unified", group);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      narrow(least, groups / controllers, group);
      if (controllers != "cpu") narrow(least, groups / "cpu", group);
    }
  }
  return least;
}

}  // namespace attune::runtime
