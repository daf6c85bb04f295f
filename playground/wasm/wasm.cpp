// playground/wasm/wasm.cpp — the function that the page's worker calls
#include <string>

#include "playground/answer.h"

/// Valid until the next call.
extern "C" const char* attune_answer(const char* question) {
  static std::string last;
  last = attune::playground::answer(question);
  return last.c_str();
}
