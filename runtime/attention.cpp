// runtime/attention.cpp — include/attune/attention.h made real: lower once, check each call, hand it to an engine
#include "runtime/attention.h"

#include <utility>

#include <attune/error.h>

#include "compiler/check.h"
#include "compiler/explain.h"
#include "compiler/lower.h"

namespace attune {
namespace detail {

struct Lowered {
  // The parts it was made of: kept, so that their addresses tell them apart for as long as they are compared.
  Score score;
  Mask mask;
  Prob prob;
  Sink sink;
  compiler::Mod written;     ///< as the user wrote it, for messages
  compiler::Traced lowered;  ///< for engines

  explicit Lowered(const Attention& a)
      : score(a.score), mask(a.mask), prob(a.prob), sink(a.sink), lowered(compiler::trace(a)) {
    written = lowered.mod;
    lowered.mod = compiler::lower(std::move(lowered.mod));
  }
  bool is_of(const Attention& a) const {
    return score.identity() == a.score.identity() && mask.identity() == a.mask.identity() &&
           prob.identity() == a.prob.identity() && sink.identity() == a.sink.identity();
  }
};

Memo::Memo(const Memo& other) {
  const std::lock_guard lock(other.mutex_);
  last_ = other.last_;
}

Memo& Memo::operator=(const Memo& other) {
  std::shared_ptr<const Lowered> theirs = Memo(other).last_;
  const std::lock_guard lock(mutex_);
  last_ = std::move(theirs);
  return *this;
}

std::shared_ptr<const Lowered> Memo::get(const Attention& attention) const {
  const std::lock_guard lock(mutex_);
  if (!last_ || !last_->is_of(attention)) last_ = std::make_shared<const Lowered>(attention);
  return last_;
}

}  // namespace detail

namespace runtime {
namespace {

template <class Call>
void dispatch(const Attention& attention, const Call& call, Line at, const Progress& progress,
              void (*oracle)(const compiler::Traced&, const Call&, const compiler::Problem&, const Progress&)) {
  try {
    const auto lowered = attention.memo.get(attention);
    const compiler::Problem problem = compiler::check(lowered->lowered, call, attention.scale);
    compiler::check_reads(lowered->written, lowered->lowered.captures, problem);
    if (attention.target == Target::automatic)
      throw Error("no-engine", "no engine of this build can run this", {}, "this build has the oracle only",
                  "choose it with .target = Target::oracle: exact, in double precision, and slow");
    if (call.q.device.kind != Device::Kind::cpu)
      throw Error("oracle-device", "the oracle reads memory of the host", {}, "q is on another device",
                  "copy the tensors to the host first");
    oracle(lowered->lowered, call, problem, progress);
  } catch (const Error& e) {
    if (!e.where.name.empty() || !e.where.text.empty() || !at.file) throw;
    throw Error(e.code, e.problem, {.name = at.file, .line = at.number}, e.why, e.fix);
  }
}

}  // namespace

void run(const Attention& attention, const Forward& call, Line at, const Progress& progress) {
  dispatch(attention, call, at, progress, oracle_forward);
}
void run(const Attention& attention, const Backward& call, Line at, const Progress& progress) {
  dispatch(attention, call, at, progress, oracle_backward);
}

}  // namespace runtime

void Attention::operator()(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, Line at) const {
  run({.q = q, .k = k, .v = v, .o = o}, at);
}

void Attention::run(const Forward& call, Line at) const { runtime::run(*this, call, at); }

void Attention::backward(const Backward& call, Line at) const { runtime::run(*this, call, at); }

std::string Attention::explain() const {
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::Traced lowered = compiler::lower(*this, &steps);
  return compiler::explain(lowered.mod, steps);
}

}  // namespace attune
