// include/attune/cxx20.h — refuses to be compiled as an older C++, in one line
#pragma once

#if defined(__cplusplus) && __cplusplus < 202002L
#error attune needs C++20: compile with -std=c++20. C, and any C++, may include <attune/c.h>.
// No such file, which ends the compilation: what follows would give a page of errors.
#include <attune/needs_cxx20>
#endif
