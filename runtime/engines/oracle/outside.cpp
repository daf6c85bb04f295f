// runtime/engines/oracle/outside.cpp — visits the pairs that a call keeps, and evaluates the indices of its reads
#include "runtime/engines/oracle/outside.h"

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"
#include "compiler/outside.h"
#include "ir/print.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"

namespace attune::runtime {
namespace {

using compiler::OutsideIndex;

/// One index of a read, ready to evaluate.
struct Counted {
  OutsideIndex of;
  ir::Program count;
  std::optional<ir::Program> index;  ///< none if the index depends on the variable of a sum
};

class Count {
 public:
  Count(const compiler::Mod& written, const Call& call)
      : mod_(written), problem_(call.problem), captures_(call.args.captures), rows_(call) {
    const auto clamped = compiler::check_reads(written, captures_, problem_);
    for (const OutsideIndex& one : compiler::outside_indices(written, clamped, captures_)) {
      const ir::Expr& index = one.read->args[one.dimension];
      counted_.push_back({one, ir::Program(one.count), index->free ? std::nullopt : std::optional<ir::Program>(index)});
    }
  }

  OutsideReads operator()() {
    using enum OutsideIndex::At;
    if (counted_.empty()) return {};
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence seq = sequence(problem_, b);
      for (std::int64_t h = 0; h < problem_.q_heads && seq.q_len > 0; ++h)
        for (std::int64_t i = 0; i < seq.q_len; ++i) {
          const OracleRow& row = rows_.row(b, h, i);
          const std::string place = fmt::format("b={} h={}", b, h);
          if (i == 0) at(head, {0, 0, 0, 0}, place);
          const std::string of_row = fmt::format("{} q={}", place, seq.q_offset + i);
          for (std::int64_t kv = 0; kv < seq.kv_len; ++kv) at(pair, {kv, 0, 0, 0}, of_row);
          for (const OracleRow::Pair& kept : row.kept) at(kept_pair, kept, of_row);
        }
    }
    return out_;
  }

 private:
  void at(OutsideIndex::At where, const OracleRow::Pair& pair, const std::string& place) {
    for (const Counted& one : counted_) {
      if (one.of.at != where) continue;
      const auto count = static_cast<std::int64_t>(rows_.value(one.count, pair));
      if (count > 0 && out_.count == 0) first(one, pair, place);
      out_.count += count;
    }
  }

  void first(const Counted& one, const OracleRow::Pair& pair, const std::string& place) {
    const ir::Expr& read = one.of.read;
    const Tensor& tensor = captures_[read->bits];
    const ir::Signature names = mod_.signature();
    out_.name = mod_.captures[read->bits].name;
    const std::string is = one.index ? fmt::format(" is {}", rows_.value(*one.index, pair)) : " is outside";
    const std::string of_pair = one.of.at == OutsideIndex::At::head
                                    ? ""
                                    : fmt::format(" kv={}", problem_.kv_offset + pair.kv);
    const std::int64_t extent = tensor.shape[one.of.dimension];
    out_.first = fmt::format("at {}{}, {}{} in {}, and {} holds {} value{}{}", place, of_pair,
                             ir::print(read->args[one.of.dimension], names), is, ir::print(read, names), out_.name,
                             extent, extent == 1 ? "" : "s",
                             tensor.rank > 1 ? fmt::format(" along dimension {}", one.of.dimension) : "");
  }

  const compiler::Mod& mod_;
  const compiler::Problem& problem_;
  std::span<const Tensor> captures_;
  OracleRows rows_;
  std::vector<Counted> counted_;
  OutsideReads out_;
};

}  // namespace

OutsideReads outside_reads(const compiler::Mod& written, const Call& call) { return Count(written, call)(); }

void refuse_outside_reads(const compiler::Mod& written, const Call& call) {
  const OutsideReads found = outside_reads(written, call);
  if (found.count == 0) return;
  throw Error("capture-outside", fmt::format("capture `{}` is read out of range", found.name), {},
              fmt::format("{}; {} read{} of this call {} outside", found.first, found.count,
                          found.count == 1 ? "" : "s", found.count == 1 ? "is" : "are"),
              "fix the data or the index, or write clamp(…) to stay at the ends");
}

}  // namespace attune::runtime
