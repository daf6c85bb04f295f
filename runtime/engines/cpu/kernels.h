// runtime/engines/cpu/kernels.h — the CPU's kernels: compiled for an instruction set and expressions, kept by use
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/facts/parts.h"
#include "codegen/llvm.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/orc.h"
#include "runtime/engines/dump.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/cache/single.h"
#include <attune/tensor.h>

namespace attune::runtime::cpu {

using codegen::Isa, codegen::Unit;

/// The instruction set that kernels are compiled for, and the call that needs them (null: not recorded).
struct KernelsFor {
  Isa isa;
  const Purpose* purpose = nullptr;
  KernelsFor(Isa of, const Purpose* call = nullptr) : isa(of), purpose(call) {}
  KernelsFor(const Call& call, const Means& means) : isa(means.isa ? *means.isa : cpu::isa()), purpose(call.purpose) {}
};

/// Code that does not depend on the user's expressions.
struct Kit {
  Kit(const KernelsFor& what, Unit unit, DType type);

  Loaded code;
  codegen::Tiling tiling;
  codegen::ProductFn* product;
  codegen::ProductFn* half_product;  ///< null for amx
  codegen::GuardedProductFn* guarded_product;
  codegen::RowDotsFn* row_dots;
  codegen::LoadRowsFn* load_rows;
  codegen::PackColumnsFn* pack_columns;
  codegen::PackRowsFn* pack_rows;
  codegen::TransposeFn* transpose;
  codegen::StoreRowsFn* store_rows;
  codegen::DotsFn* dots;
  codegen::DotsFn* dots_of_pairs;  ///< null unless products are in bf16
  codegen::WeighFn* weigh;
  void (*tiles_begin)();  ///< null except for amx
  void (*tiles_end)();
};

/// The user's expressions in the forward.
struct ForwardKernel {
  ForwardKernel(const compiler::Mod& mod, const KernelsFor& what, Unit unit);

  Loaded code;
  codegen::ForwardParts parts;
  codegen::HeadFieldsFn* head_fields;
  codegen::LineFieldsFn* row_fields;
  codegen::LineFieldsFn* col_fields;
  codegen::AttendFn* attend_all;
  codegen::AttendFn* attend_some;
  codegen::AttendFn* attend_known;  ///< null if prob is linear in p
};

/// The user's expressions in the backward.
struct BackwardKernel {
  BackwardKernel(const compiler::Mod& mod, const codegen::Wanted& wanted, const KernelsFor& what, Unit unit);

  Loaded code;
  codegen::BackwardParts parts;
  codegen::HeadFieldsFn* head_fields;
  codegen::LineFieldsFn* row_fields;
  codegen::LineFieldsFn* col_fields;
  codegen::DifferentiateFn* differentiate_all;
  codegen::DifferentiateFn* differentiate_some;
  codegen::DifferentiateFn* sum_rows;  ///< null if prob is linear in p
};

/// Object code that calls may need, with the request for its compiler.
struct Object {
  std::string name;  ///< such as: forward f32 avx512
  Asked asked;
  KernelName called;
  std::function<std::string(codegen::Listing*)> write;  ///< compiles; the argument may be null

  /// Compiles it now.
  CacheEntry entry() const;
};
Object kit_code(Isa isa, Unit unit, DType type);
Object forward_code(const compiler::Mod& mod, Isa isa, Unit unit);
Object backward_code(const compiler::Mod& mod, const codegen::Wanted& wanted, Isa isa, Unit unit);
/// All objects that calls of a Mod on tensors of this type need. A backward's include the objects of its own forward.
std::vector<Object> forward_objects(const compiler::Mod& mod, Isa isa, DType type);
std::vector<Object> backward_objects(const compiler::Mod& mod, const codegen::Wanted& wanted, Isa isa, DType type);

/// Compiled at first use, by one thread per key; different keys compile concurrently. ATTUNE_LOADED bounds the number
/// of kernels that stay once no call uses them.
Held<Kit> kit(const KernelsFor& what, Unit unit, DType type);
Held<ForwardKernel> forward_kernel(const compiler::LoweredMod& lowered, const KernelsFor& what, Unit unit);
Held<BackwardKernel> backward_kernel(const compiler::LoweredMod& lowered, const codegen::Wanted& wanted,
                                     const KernelsFor& what, Unit unit);

}  // namespace attune::runtime::cpu
