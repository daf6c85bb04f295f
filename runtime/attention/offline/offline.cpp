// runtime/attention/offline/offline.cpp — implements include/attune/offline.h
#include <attune/offline.h>

#include "runtime/machine/cache/objects.h"

namespace attune::offline {

void load(const std::string& path) { runtime::objects().add(runtime::Bundle::open(path)); }

void load_bytes(std::span<const std::byte> bytes) {
  runtime::objects().add(runtime::Bundle::of(bytes, "a bundle in memory"));
}

void jit(bool allowed) { runtime::objects().jit(allowed); }
bool jit() { return runtime::objects().jit(); }

}  // namespace attune::offline
