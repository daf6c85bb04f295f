// runtime/machine/archive.h — one tensor of a file: .npy, or by its name of a .npz archive or a .safetensors file
#pragma once

#include <string>

#include "runtime/machine/npy.h"

namespace attune::runtime {

/// FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME; an archive of one tensor needs no name. Archives are parsed
/// without trust, and never allocate more than the file's size allows. `called`: the file's name in Errors, as in --q
/// q.npz:q.
Owned read_tensor(const std::string& path, const std::string& called);

}  // namespace attune::runtime
