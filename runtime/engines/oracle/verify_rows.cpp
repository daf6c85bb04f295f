// runtime/engines/oracle/verify_rows.cpp — ATTUNE_VERIFY: the rows to check, the error that rounding may cause, the
// error report
#include "runtime/engines/oracle/verify_rows.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/choose/choose.h"
#include "runtime/engines/dump.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/options.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Below this, a type has 0 or fewer than all of its digits.
double smallest(DType type) { return type == DType::f16 ? 0x1p-24 : 0x1p-120; }
/// Only numbers at least this large round to infinity.
double largest(DType type) { return type == DType::f16 ? 65504 : 3e38; }

std::string text_of(const compiler::Mod& mod, std::span<const Tensor> captures) {
  std::string out;
  for (std::size_t i = 0; i < captures.size(); ++i) {
    out += (out.empty() ? " " : ", ") + mod.captures[i].name + "[";
    for (std::size_t d = 0; d < static_cast<std::size_t>(captures[i].rank); ++d)
      out += fmt::format("{}{}", d ? ", " : "", captures[i].shape[d]);
    out += "]";
  }
  return out;
}

std::string indented(const std::string& lines) {
  std::string out;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    out += "       " + lines.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::vector<RowAt> sampled(std::span<const std::int64_t> lengths, std::int64_t heads, const Verified& which) {
  std::vector<std::int64_t> first{0};  // by batch entry: its first row, counting all heads
  for (const std::int64_t length : lengths) first.push_back(first.back() + length * heads);
  const std::int64_t all = first.back();
  std::set<std::int64_t> chosen;
  for (std::int64_t n = 0; n < std::min<std::int64_t>(which.rows, all); ++n)
    chosen.insert(which.rows >= all
                      ? n
                      : static_cast<std::int64_t>(mixed(mixed(which.sample) + static_cast<std::uint64_t>(n)) %
                                                  static_cast<std::uint64_t>(all)));
  std::vector<RowAt> out;
  for (const std::int64_t row : chosen) {
    const auto b = std::upper_bound(first.begin(), first.end(), row) - first.begin() - 1;
    const std::int64_t length = lengths[static_cast<std::size_t>(b)], within = row - first[static_cast<std::size_t>(b)];
    out.push_back({b, within / length, within % length});
  }
  return out;
}

double unit(DType type) {
  return type == DType::e4m3 ? 0x1p-5 : type == DType::bf16 ? 0x1p-9 : type == DType::f16 ? 0x1p-12 : 0x1p-21;
}
double unit_of_exp(DType type) { return type == DType::f32 || type == DType::f64 ? 0x1p-21 : 0x1p-13; }

double rounded(double x, DType type) {
  double room = 0;
  const Tensor t(&room, type, {1});
  store(t, 0, x);
  return load(t, 0);
}

double tf32(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::isfinite(x) ? std::ldexp(std::round(fraction * 0x1p11), exponent - 11) : x;
}

double norm(std::span<const double> of) {
  double sum = 0;
  for (const double x : of) sum += x * x;
  return std::sqrt(sum);
}

Product product(std::span<const double> q, std::span<const double> k, double scale) {
  float sum = 0;
  for (std::size_t j = 0; j < q.size(); ++j) sum += static_cast<float>(q[j]) * static_cast<float>(k[j]);
  return {static_cast<double>(static_cast<float>(scale) * sum), std::abs(scale) * norm(q) * norm(k) * 0x1p-20};
}

std::optional<Wrong> wrong(const Judged& row) {
  const DType type = row.tensor.dtype;
  const auto got_at = [&](std::size_t j) {
    return load(row.tensor, row.at.origin + row.i * row.at.row + static_cast<std::int64_t>(j) * row.at.column);
  };
  const auto where = [&](std::size_t j) { return fmt::format("{}[{}]", row.name, j); };
  std::vector<double> off, plain_off;
  double worst = -1;
  std::size_t at = 0;
  for (std::size_t j = 0; j < row.wanted.size(); ++j) {
    const double got = got_at(j), wanted = row.wanted[j], plain = row.plain[j];
    // If the value is not finite in f32 or in this type, nothing can be checked.
    if (!std::isfinite(wanted) || !std::isfinite(plain) || std::abs(wanted) >= largest(type)) continue;
    if (!std::isfinite(got)) return Wrong{where(j), got, wanted, infinity, 0};
    off.push_back(got - wanted);
    plain_off.push_back(plain - wanted);
    if (std::abs(off.back()) > worst) worst = std::abs(off.back()), at = j;
  }
  const double of_type = 2 * unit(type) * norm(row.wanted) +
                         smallest(type) * std::sqrt(static_cast<double>(row.wanted.size()));
  const double allowed = 1.5 * norm(plain_off) + lucky * norm(row.luck) + of_type + row.more;
  // Not `>`: if luck is not finite, the row cannot be checked.
  if (off.empty() || !std::isfinite(allowed) || norm(off) <= allowed) return std::nullopt;
  return Wrong{where(at), got_at(at), row.wanted[at], norm(off), allowed};
}

namespace {

/// The first positions; the lengths too if entries differ in them.
std::string positions_text(const compiler::Problem& p) {
  std::string out = p.has_q_offsets() ? fmt::format(" q_offsets={}", fmt::join(p.per_entry->q_offsets, ","))
                                      : fmt::format(" q_offset={}", p.q_offset);
  if (p.kv_offset) out += fmt::format(" kv_offset={}", p.kv_offset);
  if (p.has_kv_lens()) out += fmt::format(" kv_len={}", fmt::join(p.per_entry->kv_lens, ","));
  return out;
}

}  // namespace

bool is_fast(const Call& call, const Verified& which) {
  return which.by_device && !codegen::is_exact(call.exact, call.q().dtype);
}

void refuse(const Call& call, const std::string& place, const Verified& which, const Wrong& wrong) {
  const compiler::Problem& p = call.problem;
  const compiler::Mod& mod = call.mod.mod;
  const std::string digest = mod.digest().hex();
  throw Bug(fmt::format(
      "a result differs from the oracle's\n"
      "   at  {}, {}\n"
      "  got  {:.9g}\n"
      "  not  {:.9g}, which the oracle has; the row is {:.3g} from it, and {:.3g} is allowed\n"
      "   by  {} on {}: B={} H={}/{} S={}x{} D={}/{}{} scale={:.9g}{}{}\n"
      "   of  {}\n"
      "{}  fix  run the same with ATTUNE_DUMP={} and attach its folders {}-*; Target::oracle computes it right "
      "meanwhile",
      place, wrong.where, wrong.got, wrong.wanted, wrong.distance, wrong.allowed, which.used.kernel, which.used.target,
      p.batch, p.q_heads, p.kv_heads, p.q.length, p.kv.length, p.d, p.dv, p.q.packed() ? " packed" : "", p.scale,
      positions_text(p), text_of(mod, call.args.captures), digest, indented(mod_file(mod)),
      dumps() ? options().dump : "a folder", digest.substr(0, 16)));
}

}  // namespace attune::runtime
