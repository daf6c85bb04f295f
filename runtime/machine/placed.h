// runtime/machine/placed.h — an Error of a call gets the line that the call is in
#pragma once

#include <attune/error.h>
#include <attune/expr.h>

#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

/// Returns what `body` returns. An Error without a place gets the line of the call.
template <class Body>
auto placed(Line at, const Body& body) {
  const Recording recording;
  try {
    return body();
  } catch (const Error& e) {
    if (!e.where.name.empty() || !e.where.text.empty() || !at.file) throw;
    throw Error(e.code, e.problem, {.name = at.file, .line = at.number}, e.why, e.fix);
  }
}

}  // namespace attune::runtime
