// compiler/refuse.h — the Error for an argument of a call, which has no line of text to point at
#pragma once

#include <string>
#include <utility>

#include <attune/error.h>

namespace attune::compiler {

inline Error refuse(std::string code, std::string problem, std::string why, std::string fix) {
  return Error(std::move(code), std::move(problem), {}, std::move(why), std::move(fix));
}

}  // namespace attune::compiler
