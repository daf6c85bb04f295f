// codegen/llvm/compat.h — differences between the APIs of LLVM 16 to 19
#pragma once

#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Target/TargetMachine.h>

namespace attune::codegen::compat {

#if LLVM_VERSION_MAJOR >= 18
inline constexpr auto optimised = llvm::CodeGenOptLevel::Default, unoptimised = llvm::CodeGenOptLevel::None;
inline constexpr auto object_file = llvm::CodeGenFileType::ObjectFile;
#else
inline constexpr auto optimised = llvm::CodeGenOpt::Default, unoptimised = llvm::CodeGenOpt::None;
inline constexpr auto object_file = llvm::CGFT_ObjectFile;
#endif

/// The JIT must link only the symbols it is given. Before LLVM 17 that was the default.
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
