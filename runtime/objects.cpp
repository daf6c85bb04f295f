// runtime/objects.cpp — where object code is kept between compiles: by key, in memory
#include "runtime/objects.h"

namespace attune::runtime {

Objects& objects() {
  static MemoryObjects kept;
  return kept;
}

}  // namespace attune::runtime
