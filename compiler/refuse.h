// compiler/refuse.h — the Error of what a call passes: no line of a text is at fault
#pragma once

#include <string>
#include <utility>

#include <attune/error.h>

namespace attune::compiler {

inline Error refuse(std::string code, std::string problem, std::string why, std::string fix) {
  return Error(std::move(code), std::move(problem), {}, std::move(why), std::move(fix));
}

}  // namespace attune::compiler
