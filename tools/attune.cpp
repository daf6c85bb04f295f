// tools/attune.cpp — the command line's main
#include "tools/verbs.h"

int main(int argc, char** argv) { return attune::tools::attune_main(argc, argv); }
