// codegen/llvm/module.cpp — an LLVM module for one instruction set, from its first function to object code
#include "codegen/llvm/module.h"

#include <algorithm>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/Triple.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar.h>

#include <attune/error.h>

#include "codegen/llvm.h"
#include "codegen/llvm/compat.h"
#include "codegen/llvm/writers.h"

namespace attune::codegen {
namespace {

struct Cpu {
  const char* name;
  const char* features;
  const char* tune;
};

/// CPU names and features follow the instructions used, not a product. x86-64-v3 and -v4 are the psABI's levels.
Cpu cpu_of(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::portable: return {"x86-64", "", "generic"};
    case Isa::avx2: return {"x86-64-v3", "", "haswell"};
    case Isa::avx512: return {"x86-64-v4", "", "icelake-server"};
    case Isa::avx512bf16: return {"x86-64-v4", "+avx512bf16", "icelake-server"};
    case Isa::amx: return {"x86-64-v4", "+avx512bf16,+amx-tile,+amx-bf16", "sapphirerapids"};
  }
#endif
  return {"generic", "", "generic"};
}

/// Instructions of the largest function that is optimised. LLVM's time grows with the square of a function's length: a
/// mask of 1 000 nested wheres (23 000 instructions) takes 3.8 s, or 0.3 s unoptimised. Results are the same; a
/// call then takes four times as long for that mask, and as long as before for scores of that size (LLVM 19, AVX-512, 2
/// cores).
constexpr std::size_t most_optimised = 10'000;

bool is_large(const llvm::Module& module) {
  return std::any_of(module.begin(), module.end(),
                     [](const llvm::Function& f) { return f.getInstructionCount() > most_optimised; });
}

/// A new one for each compile: a TargetMachine is not thread-safe.
std::unique_ptr<llvm::TargetMachine> machine_of(Isa isa, bool optimise) {
  initialise_llvm();
  const std::string triple = llvm::sys::getProcessTriple();
  std::string why;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, why);
  if (!target) throw Bug("LLVM has no target for " + triple + ": " + why);
  const Cpu cpu = cpu_of(isa);
  llvm::TargetOptions options;
  return std::unique_ptr<llvm::TargetMachine>(
      target->createTargetMachine(triple, cpu.name, cpu.features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                  optimise ? compat::optimised : compat::unoptimised));
}

}  // namespace

void initialise_llvm() {
  // Not std::call_once, which aborts in libattune.so if memory runs out.
  static const bool done = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  static_cast<void>(done);
}

Module::Module(Isa isa, const std::string& name)
    : isa_(isa), context_(std::make_unique<llvm::LLVMContext>()),
      module_(std::make_unique<llvm::Module>(name, *context_)) {}

llvm::Function* Module::function(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args,
                                 bool local) {
  auto* type = llvm::FunctionType::get(result, llvm::ArrayRef<llvm::Type*>(args.data(), args.size()), false);
  auto* f = llvm::Function::Create(
      type, local ? llvm::GlobalValue::InternalLinkage : llvm::GlobalValue::ExternalLinkage, symbol, *module_);
  const Cpu cpu = cpu_of(isa_);
  f->addFnAttr("target-cpu", cpu.name);
  if (*cpu.features) f->addFnAttr("target-features", cpu.features);
  f->addFnAttr("tune-cpu", cpu.tune);
  // Without these, Intel's tunings split 512-bit vectors in two.
  f->addFnAttr("prefer-vector-width", "512");
  f->addFnAttr("min-legal-vector-width", "512");
  f->addFnAttr("no-builtins");
  f->addFnAttr(llvm::Attribute::NoUnwind);
  return f;
}

llvm::Function* Module::define(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args) {
  return function(symbol, result, args, false);
}
llvm::Function* Module::define_local(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args) {
  return function(symbol, result, args, true);
}

std::string Module::text() const {
  std::string out;
  llvm::raw_string_ostream stream(out);
  module_->print(stream, nullptr);
  return out;
}

std::string Module::object(Listing* listing) && {
  std::string wrong;
  llvm::raw_string_ostream stream(wrong);
  if (llvm::verifyModule(*module_, &stream)) throw Bug("generated LLVM IR is not valid: " + wrong + "\n" + text());
  const bool optimise = !is_large(*module_);
  const auto machine = machine_of(isa_, optimise);
  module_->setTargetTriple(machine->getTargetTriple().str());
  module_->setDataLayout(machine->createDataLayout());
  if (listing) listing->before = text();
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream into(bytes);
  llvm::legacy::PassManager passes;
  // Must come first: passes that find no TargetTransformInfo create one that knows no target, and the code generator
  // then uses it too. That splits masked loads, and kernels take five times as long to compile.
  passes.add(llvm::createTargetTransformInfoWrapperPass(machine->getTargetIRAnalysis()));
  passes.add(llvm::createEarlyCSEPass());
  if (optimise) passes.add(llvm::createLICMPass());
  if (machine->addPassesToEmitFile(passes, into, nullptr, compat::object_file))
    throw Bug("LLVM writes no object code for this machine");
  passes.run(*module_);
  if (listing) listing->after = text();
  return std::string(bytes.begin(), bytes.end());
}

std::string writer_description(Isa isa) {
  const Cpu cpu = cpu_of(isa);
  // Leave out the vendor: builds of LLVM differ in it for the same machine.
  const llvm::Triple triple(llvm::sys::getProcessTriple());
  return std::string("attune " ATTUNE_WRITERS " ") + triple.getArchName().str() + " " + triple.getOSName().str() + " " +
         cpu.name + " " + cpu.features + " " + cpu.tune;
}

std::string llvm_description() { return std::string("LLVM ") + LLVM_VERSION_STRING; }

}  // namespace attune::codegen
