// runtime/cpu/orc.cpp — makes object code callable: LLVM's ORC with the few symbols that kernels may link to
#include "runtime/cpu/orc.h"

#include <cstring>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/TargetSelect.h>
#include <mutex>
#include <utility>

#include <attune/error.h>

#include "codegen/llvm/compat.h"

namespace attune::runtime::cpu {
namespace {

template <class T>
T take(llvm::Expected<T> got) {
  if (!got) throw Bug("the CPU's kernel loader failed: " + llvm::toString(got.takeError()));
  return std::move(*got);
}
void take(llvm::Error error) {
  if (error) throw Bug("the CPU's kernel loader failed: " + llvm::toString(std::move(error)));
}

}  // namespace

struct Loaded::Jit {
  std::string trouble;  ///< what the session reported; by default it goes to stderr
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

Loaded::Loaded(const std::string& object) : jit_(std::make_unique<Jit>()) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  llvm::orc::LLJITBuilder builder;
  codegen::compat::keep_process_out(builder);
  builder.setPlatformSetUp(llvm::orc::setUpInactivePlatform);
  jit_->jit = take(builder.create());
  auto& jit = *jit_->jit;
  jit.getExecutionSession().setErrorReporter(
      [&trouble = jit_->trouble](llvm::Error error) { trouble += llvm::toString(std::move(error)); });
  // LLVM turns loops into these. Kernels can link to nothing else of the process.
  llvm::orc::SymbolMap symbols;
  const auto add = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] = codegen::compat::symbol(function);
  };
  add("memset", &std::memset);
  add("memcpy", &std::memcpy);
  add("memmove", &std::memmove);
  take(jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))));
  take(jit.addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(llvm::StringRef(object.data(), object.size()))));
}

Loaded::~Loaded() = default;
Loaded::Loaded(Loaded&&) noexcept = default;

void* Loaded::address(const char* symbol) const {
  auto found = jit_->jit->lookup(symbol);
  if (!found) {
    llvm::consumeError(found.takeError());
    if (!jit_->trouble.empty()) throw Bug("the CPU's kernels do not link: " + jit_->trouble);
    return nullptr;
  }
  return found->toPtr<void*>();
}

}  // namespace attune::runtime::cpu
