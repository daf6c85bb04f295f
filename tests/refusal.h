// tests/refusal.h — what a call is refused with
#pragma once

#include <attune/error.h>

namespace attune::tests {

/// With the code `nothing` where it is not refused.
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
