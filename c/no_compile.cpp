// c/no_compile.cpp — attune_compile in a build without the command line: it throws an Error
#include <attune/c.h>
#include <attune/error.h>

#include "c/error.h"

attune_error* attune_compile(const attune_job*, char**) {
  return attune::c::guarded([] {
    throw attune::Error("no-compile", "this library cannot compile bundles", {},
                        "it was built with ATTUNE_TOOLS=OFF, without the code of attune compile",
                        "build it with ATTUNE_TOOLS=ON");
  });
}
