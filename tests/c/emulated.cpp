// tests/c/emulated.cpp — a C++ program that links libattune.so alone and emulates GPUs, in several threads
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/c/call.h"

namespace {

constexpr std::int64_t heads = 2, rows = 70, width = 64;
constexpr std::size_t numbers = heads * rows * width;

/// dq of a causal call on a target. Ends the program if there is no C++ compiler.
std::vector<float> dq_on(std::int32_t target) {
  float* const q = normals(4 * numbers, 1);
  std::vector<float> dq(numbers);
  tensor* const all[] = {floats(q, 4, 1, heads, rows, width), floats(q + numbers, 4, 1, heads, rows, width),
                         floats(q + 2 * numbers, 4, 1, heads, rows, width),
                         floats(q + 3 * numbers, 4, 1, heads, rows, width),
                         floats(dq.data(), 4, 1, heads, rows, width)};
  attune_what what{};
  what.size = sizeof what;
  what.target = target;
  what.mask.text = "kv <= q";
  attune_attention* attention = nullptr;
  GOOD(attune_new(&what, &attention));
  attune_call call{};
  call.size = sizeof call;
  call.pass = ATTUNE_BACKWARD;
  call.q = &all[0]->t, call.k = &all[1]->t, call.v = &all[2]->t, call.grad_o = &all[3]->t, call.dq = &all[4]->t;
  attune_error* const error = attune_run(attention, &call, nullptr);
  if (is_no_compiler(error)) std::exit(0);
  GOOD(error);
  attune_free(attention);
  for (tensor* one : all) free(one);
  free(q);
  return dq;
}
std::int32_t emulated(const char* gpu) {
  std::int32_t target = 0;
  GOOD(attune_emulated(gpu, &target));
  return target;
}

}  // namespace

int main() {
  const std::vector<float> exact = dq_on(ATTUNE_ENGINE_ORACLE);
  const std::array<std::int32_t, 3> targets{emulated("sm_80"), emulated("sm_80:seed=2"), emulated("sm_90a")};
  std::array<std::vector<float>, 3> results;
  std::array<std::thread, 3> threads;
  for (std::size_t i = 0; i < targets.size(); ++i) threads[i] = std::thread([&, i] { results[i] = dq_on(targets[i]); });
  for (std::thread& one : threads) one.join();
  for (const std::vector<float>& dq : results)
    for (std::size_t i = 0; i < dq.size(); ++i) CHECK(std::abs(dq[i] - exact[i]) < 1e-4f);
  if (failures == 0) puts("ok");
  return failures != 0;
}
