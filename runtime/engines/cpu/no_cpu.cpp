// runtime/engines/cpu/no_cpu.cpp — the CPU engine's calls in a build without LLVM: those that need it throw an Error
#include <attune/error.h>

#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/kernels.h"

namespace attune::runtime::cpu {
namespace {

[[noreturn]] void refuse() {
  throw Error("no-engine", "no engine of this build can run this", {},
              "it was built without LLVM, which the CPU engine needs",
              "build attune with LLVM 16 to 19, or take the oracle as target: exact, in double precision, and slow");
}

}  // namespace

bool supports(Isa) { return false; }
Isa isa() { refuse(); }
double worthwhile_workers(double) { return 1; }  // the call itself is refused
int usual_workers(const compiler::Problem&) { refuse(); }
std::size_t forward_workspace(const Call&, const Means&) { refuse(); }
std::size_t backward_workspace(const Call&, const Means&) { refuse(); }
void forward(const Call&, const Means&) { refuse(); }
void backward(const Call&, const Means&) { refuse(); }
double peak_gflops(DType) { refuse(); }
CacheEntry Object::entry() const { refuse(); }
std::vector<Object> forward_objects(const compiler::Mod&, Isa, DType) { refuse(); }
std::vector<Object> backward_objects(const compiler::Mod&, const codegen::Wanted&, Isa, DType) { refuse(); }

}  // namespace attune::runtime::cpu
