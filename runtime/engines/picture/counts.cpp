// runtime/engines/picture/counts.cpp — counts and shares as people read them
#include "runtime/engines/picture/counts.h"

#include <fmt/format.h>

namespace attune::runtime {

std::string grouped(std::int64_t n) {
  std::string out = std::to_string(n);
  for (std::size_t i = out.size(); i > 3;) out.insert(i -= 3, " ");
  return out;
}

std::string counted(std::int64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(n), n == 1 ? one : many);
}

std::string percent(double part, double whole) { return fmt::format("{:.2f} %", 100 * part / whole); }

}  // namespace attune::runtime
