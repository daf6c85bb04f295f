// tests/refusal.h — the Error that a call throws
#pragma once

#include <attune/error.h>

namespace attune::tests {

/// An Error with the code `nothing` if the call does not throw one.
template <class F>
Error refusal(F call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return {"nothing", "nothing was refused", {}, "", ""};
}

}  // namespace attune::tests
