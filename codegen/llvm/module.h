// codegen/llvm/module.h — an LLVM module for one instruction set, from its first function to object code
#pragma once

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <memory>
#include <span>
#include <string>

#include "codegen/isa.h"

namespace attune::codegen {

struct Listing;

/// Registers the target of this machine; must precede its use.
void initialise_llvm();

/// Each compile has its own context, so that compiles can run concurrently.
class Module {
 public:
  Module(Isa isa, const std::string& name);

  Isa isa() const { return isa_; }
  llvm::LLVMContext& context() { return *context_; }
  llvm::Module& llvm() { return *module_; }

  /// An exported function. Its pointer arguments must not overlap, unless `may_alias`.
  llvm::Function* define(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args);
  /// A function that only this module calls.
  llvm::Function* define_local(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args);

  /// The module as text, for dumps and tests.
  std::string text() const;
  /// Verifies (a Bug if that fails) and compiles; consumes the module. `listing` may be null.
  std::string object(Listing* listing = nullptr) &&;

 private:
  llvm::Function* function(const std::string& symbol, llvm::Type* result, std::span<llvm::Type* const> args,
                           bool local);

  Isa isa_;
  std::unique_ptr<llvm::LLVMContext> context_;
  std::unique_ptr<llvm::Module> module_;
};

}  // namespace attune::codegen
