// runtime/attention/watched.cpp — reports a call to callbacks and to ATTUNE_VERIFY
#include "runtime/attention/watched.h"

#include <string>

#include "runtime/attention/verify.h"

namespace attune::runtime {
namespace {

/// True if results are merged with another call's: no row can then be verified from one call alone.
bool is_merged(const Call& call) { return call.is_forward() && call.forward().o_before.given(); }

watch::Called fact(const Call& call, const Used& used, double seconds, Line at) {
  const compiler::Problem& p = call.problem;
  return {.call = call.name(),
          .mod = call.mod.digest.hex(),
          .target = used.target,
          .kernel = used.kernel,
          .dtype = std::string(name_of(call.q().dtype)),
          .batch = p.batch,
          .q_heads = p.q_heads,
          .kv_heads = p.kv_heads,
          .q_len = p.q.length,
          .kv_len = p.kv.length,
          .d = p.d,
          .dv = p.dv,
          .packed = p.q.packed(),
          .workspace = used.workspace,
          .seconds = seconds,
          .file = at.file,
          .line = at.number};
}

}  // namespace

void Watched::report(const Checked& checked, void* stream, Whole whole) {
  const bool by_oracle = checked.target() == Target::oracle;
  if (by_oracle) used_ = {"oracle", "oracle", 0};
  if (watched_) record(fact(checked.call(), used_, clock_->seconds(), at_));
  if (!verifies_) return;
  if (whole == Whole::no)
    note(watch::Notice::Of::verify, "a call over ranks is not verified: no rank holds all of it");
  else if (by_oracle)
    return;
  else if (is_merged(checked.call()))
    note(watch::Notice::Of::verify, "a call that is merged with results of another is not verified");
  else
    verify(checked.call(),
           {.rows = options().verify,
            .sample = next_sample(),
            .used = used_,
            .by_device = checked.target().engine == Target::Engine::emulated},
           stream);
}

}  // namespace attune::runtime
