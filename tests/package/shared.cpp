// tests/package/shared.cpp — a shared library of a user's with attune within: it exports what it says it does
#include <attune/attune.h>

extern "C" [[gnu::visibility("default")]] void attend(const attune::Forward* call) {
  attune::Attention{.mask = attune::mods::causal()}.run(*call);
}
