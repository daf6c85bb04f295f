// tests/fuzz/result_file.cpp — results of random calls in a file, and two machines' results compared
#include "tests/fuzz/result_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

namespace attune::tests {
namespace {

constexpr std::size_t most_kept = 512;

/// The step between the elements that are kept. It is odd, so that the kept elements come from all columns.
std::size_t stride_of(std::size_t size) { return (size + most_kept - 1) / most_kept | 1; }

/// Machines make NaN of different bits.
std::uint32_t bits_of(double x) {
  return std::bit_cast<std::uint32_t>(std::isnan(x) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(x));
}

}  // namespace

KeptResult::KeptResult(const std::string& of_type, const std::vector<double>& elements)
    : type(of_type), size(elements.size()), digest(0xcbf29ce484222325) {
  for (const double x : elements) digest = (digest ^ bits_of(x)) * 0x100000001b3;
  for (std::size_t i = 0; i < size; i += stride_of(size)) sample.push_back(std::bit_cast<float>(bits_of(elements[i])));
}

std::string KeptResult::line(const std::string& name) const {
  std::string out = fmt::format("{} {} {} {:016x}", name, type, size, digest);
  for (const float x : sample) out += fmt::format(" {:x}", std::bit_cast<std::uint32_t>(x));
  return out;
}

std::pair<std::string, KeptResult> KeptResult::of_line(const std::string& line) {
  std::istringstream in(line);
  std::pair<std::string, KeptResult> out;
  KeptResult& kept = out.second;
  if (!(in >> out.first >> kept.type >> kept.size >> std::hex >> kept.digest))
    throw std::runtime_error("a file of results holds the line " + line.substr(0, 80));
  for (std::uint32_t bits; in >> bits;) kept.sample.push_back(std::bit_cast<float>(bits));
  return out;
}

ResultFiles::ResultFiles(const std::string& record, const std::string& against) {
  if (!record.empty()) {
    record_.reset(std::fopen(record.c_str(), "w"));
    if (!record_) throw std::runtime_error("results cannot be written to " + record);
  }
  if (against.empty()) return;
  std::ifstream in(against);
  if (!in) throw std::runtime_error("results cannot be read from " + against);
  for (std::string line; std::getline(in, line);) against_.insert(KeptResult::of_line(line));
}

void ResultFiles::add(std::uint64_t seed, const Observed& result) {
  std::string name = fmt::format("{}:{}", seed, result.name);
  std::ranges::replace(name, ' ', '_');
  const KeptResult here(result.type, result.elements);
  const std::lock_guard lock(mutex_);
  if (record_) {
    std::fprintf(record_.get(), "%s\n", here.line(name).c_str());
    std::fflush(record_.get());
  }
  if (const auto there = against_.find(name); there != against_.end()) compare(name, result, here, there->second);
}

void ResultFiles::compare(const std::string& name, const Observed& result, const KeptResult& here,
                          const KeptResult& there) {
  if (here.type != there.type || here.size != there.size) {
    apart_ += fmt::format("{}: {} elements of {} here, {} of {} there\n", name, here.size, here.type, there.size,
                          there.type);
    return;
  }
  const std::string kind = result.name.starts_with("gradient of") ? "captured" : result.name;
  Row& row = rows_[fmt::format("{:<9} {}", kind, result.type)];
  ++row.results;
  row.same += here.digest == there.digest;
  double difference = 0, own = 0;
  for (std::size_t i = 0; i < std::min(here.sample.size(), there.sample.size()); ++i) {
    const double a = here.sample[i], b = there.sample[i], oracle = result.oracle[i * stride_of(here.size)];
    ++row.elements;
    const bool same = bits_of(a) == bits_of(b);
    row.same_elements += same;
    // What is not finite in the oracle may be any infinity or NaN.
    if (!std::isfinite(oracle)) continue;
    if (!same) difference += (a - b) * (a - b);
    own += (a - oracle) * (a - oracle);
  }
  difference = std::sqrt(difference);
  if (difference == 0) return;
  row.most_of_allowance = std::max(row.most_of_allowance, difference / result.granted);
  row.most_of_own_error = std::max(row.most_of_own_error, difference / std::sqrt(own));
  if (!(difference <= result.granted))
    apart_ += fmt::format("{}: {:.3g} apart, {:.3g} granted\n", name, difference, result.granted);
}

std::string ResultFiles::table() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  if (!rows_.empty()) out = "output         results  same bits  same elements  apart: of the allowance  of the error\n";
  for (const auto& [name, row] : rows_)
    out += fmt::format("{:<14} {:7} {:10} {:13.2f}% {:23.3f} {:13.3f}\n", name, row.results, row.same,
                       100.0 * static_cast<double>(row.same_elements) /
                           static_cast<double>(std::max<std::size_t>(row.elements, 1)),
                       row.most_of_allowance, row.most_of_own_error);
  return out;
}

}  // namespace attune::tests
