// tests/compile_fail/param_gradient.cpp — the gradient of a Param
// expect: attune: a Param is no tensor and has no gradient: capture a tensor of one value
#include <attune/attune.h>

using namespace attune;

Backward gradient(const Param<float>& cap, const Array<float>& one, const Tensor& into) {
#ifdef FAIL
  return {.captured = {{.of = Tensor(cap), .into = into}}};
#else
  (void)cap;
  return {.captured = {{.of = one, .into = into}}};
#endif
}
