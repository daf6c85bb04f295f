// codegen/llvm/compat.h — what LLVM 16 to 19 call differently
#pragma once

#include <llvm/Config/llvm-config.h>
#include <llvm/Target/TargetMachine.h>

namespace attune::codegen::compat {

#if LLVM_VERSION_MAJOR >= 18
inline constexpr auto optimised = llvm::CodeGenOptLevel::Default;
inline constexpr auto object_file = llvm::CodeGenFileType::ObjectFile;
#else
inline constexpr auto optimised = llvm::CodeGenOpt::Default;
inline constexpr auto object_file = llvm::CGFT_ObjectFile;
#endif

}  // namespace attune::codegen::compat
