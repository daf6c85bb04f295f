// tools/command.cpp — the command line as a function of C: a wheel's libattune.so has it, for attune/_command.py
#include "tools/verbs.h"

extern "C" [[gnu::visibility("default")]] int attune_command(int argc, const char* const* argv) {
  return attune::tools::attune_main(argc, argv);
}
