// runtime/engines/picture/counts.h — counts and shares as people read them
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attune::runtime {

/// 1048576 becomes 1 048 576.
std::string grouped(std::int64_t n);
/// 1 query, 2 queries.
std::string counted(std::int64_t n, std::string_view one, std::string_view many);
/// 12.50 %
std::string percent(double part, double whole);

}  // namespace attune::runtime
