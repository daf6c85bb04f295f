// tests/package/shared.cpp — a user's shared library that contains attune: it exports only its own symbols
#include <attune/attune.h>

extern "C" [[gnu::visibility("default")]] void attend(const attune::Forward* call) {
  attune::Attention{.mask = attune::mods::causal()}.run(*call);
}
