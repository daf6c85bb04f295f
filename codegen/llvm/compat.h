// codegen/llvm/compat.h — what LLVM 16 to 19 call differently
#pragma once

#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Target/TargetMachine.h>

namespace attune::codegen::compat {

#if LLVM_VERSION_MAJOR >= 18
inline constexpr auto optimised = llvm::CodeGenOptLevel::Default;
inline constexpr auto object_file = llvm::CodeGenFileType::ObjectFile;
#else
inline constexpr auto optimised = llvm::CodeGenOpt::Default;
inline constexpr auto object_file = llvm::CGFT_ObjectFile;
#endif

/// What the JIT may link is what it is given. Before 17 it was so by default.
template <class Builder>
void keep_process_out(Builder& builder) {
  if constexpr (requires { builder.setLinkProcessSymbolsByDefault(false); })
    builder.setLinkProcessSymbolsByDefault(false);
}

template <class F>
auto symbol(F* function) {
  const auto flags = llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable;
#if LLVM_VERSION_MAJOR >= 17
  return llvm::orc::ExecutorSymbolDef(llvm::orc::ExecutorAddr::fromPtr(function), flags);
#else
  return llvm::JITEvaluatedSymbol::fromPointer(function, flags);
#endif
}

}  // namespace attune::codegen::compat
