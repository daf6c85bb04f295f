// runtime/engines/cpu/kernels.cpp — the CPU's kernels: compiled for an instruction set and expressions, kept by use
#include "runtime/engines/cpu/kernels.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <tuple>

#include <attune/error.h>

#include "codegen/llvm.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/orc.h"
#include "runtime/engines/dump.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/waits.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;

std::string_view name_of(Unit unit) { return unit == Unit::f32 ? "f32" : "bf16"; }

/// For human readers: what an object contains.
Facts facts(const KernelName& name) {
  Facts out{{"kind", "CPU object"}, {"kernel", name.kernel}, {"arch", name.target}};
  if (name.mod) std::ranges::move(name.mod->facts(), std::back_inserter(out));
  return out;
}

/// `mod`: null for the kit.
KernelName kernel_name(std::string_view kernel, const compiler::Mod* mod, Isa isa, Unit unit) {
  return {.mod = mod, .kernel = fmt::format("{}-{}", kernel, name_of(unit)), .target = std::string(name_of(isa))};
}

Asked asked(std::string_view kind, Isa isa, Unit unit, std::string_view of) {
  return {.content = fmt::format("object 2 {} {} {} {} {}", kind, writer_description(isa), codegen::name_of(isa),
                                 name_of(unit), of),
          .compiler = llvm_description,
          .name = fmt::format("{}-{}", kind, name_of(unit))};
}

template <class Write>
std::string written(const Write& write) {
  std::string out;
  enter_llvm(LlvmWork::compile, [&] { out = write(); });
  return out;
}

Loaded built(Object object, const Purpose* purpose) {
  const Clock clock;
  Origin origin;
  object.asked.purpose = purpose;
  const Objects::Kept kept = objects().get(
      object.asked, [&] { return object.entry(); }, &origin);
  record_built(object.called, origin, object.asked, clock.seconds(), {.bytes = kept->bytes.size()});
  dump_object(object.called, object.asked.content, [&] {
    Listing listing;
    std::string code = object.write(&listing);
    return std::vector<DumpFile>{{"05-before.ll", std::move(listing.before)},
                                 {"06-after.ll", std::move(listing.after)},
                                 {"07-kernel.o", std::move(code)}};
  });
  return Loaded(kept->bytes);
}

/// Records which instruction set was chosen, and why no wider one.
void record_isa(const compiler::Mod& mod, std::string_view kernel, Isa isa, Unit unit) {
  if (!wants(Fact::chosen)) return;
  watch::Chosen fact{.mod = mod.digest().hex(),
                     .target = std::string(name_of(isa)),
                     .kernel = fmt::format("{}-{}", kernel, name_of(unit)),
                     .notes = {fmt::format("products of {}", name_of(unit))},
                     .rejected = {}};
  for (std::size_t i = static_cast<std::size_t>(isa) + 1; i < isa_names.size(); ++i) {
    const bool has = supports(static_cast<Isa>(i));
    fact.rejected.push_back(
        {std::string(isa_names[i]), has ? "ATTUNE_CPU asks for less" : "this CPU does not have it"});
  }
  record(std::move(fact));
}

/// Ignores the members of the key that have few values.
struct KeyHash {
  std::size_t operator()(const std::tuple<Isa, Unit, DType>& key) const {
    return 64 * static_cast<std::size_t>(std::get<Isa>(key)) + static_cast<std::size_t>(std::get<DType>(key));
  }
  template <class... Rest>
  std::size_t operator()(const std::tuple<Isa, Unit, ir::Digest, Rest...>& key) const {
    return ir::DigestHash()(std::get<ir::Digest>(key));
  }
};

template <class F>
void find(F*& into, const Loaded& code, const char* symbol) {
  into = code.find<F>(symbol);
  if (!into) throw Bug(fmt::format("a CPU kernel has no `{}`", symbol));
}

/// For all types that a call's tensors may have.
void add_kits(std::vector<Object>& out, Isa isa) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    out.push_back(kit_code(isa, Unit::f32, type));
  if (has_bf16(isa)) out.push_back(kit_code(isa, Unit::bf16, DType::bf16));
}

/// The units of a call's products: f32 in addition to bf16 for decode, and for a grad_o of another type.
std::vector<Unit> units_of(Isa isa, DType type) {
  if (type == DType::bf16 && has_bf16(isa)) return {Unit::bf16, Unit::f32};
  return {Unit::f32};
}

}  // namespace

CacheEntry Object::entry() const { return {facts(called), write(nullptr)}; }

Object kit_code(Isa isa, Unit unit, DType type) {
  const std::string of(attune::name_of(type));
  return {fmt::format("kit {} {} {}", of, name_of(unit), codegen::name_of(isa)), asked("kit", isa, unit, of),
          kernel_name(fmt::format("kit-{}", of), nullptr, isa, unit),
          [=](Listing* listing) { return written([&] { return codegen::kit_object(isa, unit, type, listing); }); }};
}

Object forward_code(const compiler::Mod& mod, Isa isa, Unit unit) {
  return {fmt::format("forward {} {}", name_of(unit), codegen::name_of(isa)),
          asked("forward", isa, unit, mod.digest().hex()), kernel_name("forward", &mod, isa, unit),
          [=](Listing* listing) { return written([&] { return codegen::forward_object(mod, isa, unit, listing); }); }};
}

Object backward_code(const compiler::Mod& mod, const Wanted& wanted, Isa isa, Unit unit) {
  return {fmt::format("backward {} {}", name_of(unit), codegen::name_of(isa)),
          asked("backward", isa, unit, fmt::format("{} {:d}", mod.digest().hex(), fmt::join(wanted, ""))),
          kernel_name("backward", &mod, isa, unit), [=](Listing* listing) {
            return written([&] { return codegen::backward_object(mod, wanted, isa, unit, listing); });
          }};
}

std::vector<Object> forward_objects(const compiler::Mod& mod, Isa isa, DType type) {
  std::vector<Object> out;
  add_kits(out, isa);
  for (const Unit unit : units_of(isa, type)) out.push_back(forward_code(mod, isa, unit));
  return out;
}

std::vector<Object> backward_objects(const compiler::Mod& mod, const Wanted& wanted, Isa isa, DType type) {
  std::vector<Object> out = forward_objects(mod, isa, type);
  for (const Unit unit : units_of(isa, type)) out.push_back(backward_code(mod, wanted, isa, unit));
  return out;
}

Kit::Kit(const KernelsFor& what, Unit unit, DType type)
    : code(built(kit_code(what.isa, unit, type), what.purpose)), tiling(codegen::tiling(what.isa, unit)) {
  find(product, code, kit_symbol::product);
  half_product = code.find<ProductFn>(kit_symbol::half_product);
  find(guarded_product, code, kit_symbol::guarded_product);
  find(row_dots, code, kit_symbol::row_dots);
  find(load_rows, code, kit_symbol::load_rows);
  find(pack_columns, code, kit_symbol::pack_columns);
  find(pack_rows, code, kit_symbol::pack_rows);
  find(transpose, code, kit_symbol::transpose);
  find(store_rows, code, kit_symbol::store_rows);
  find(dots, code, kit_symbol::dots);
  dots_of_pairs = code.find<DotsFn>(kit_symbol::dots_of_pairs);
  find(weigh, code, kit_symbol::weigh);
  tiles_begin = code.find<void()>(kit_symbol::tiles_begin);
  tiles_end = code.find<void()>(kit_symbol::tiles_end);
}

ForwardKernel::ForwardKernel(const compiler::Mod& mod, const KernelsFor& what, Unit unit)
    : code(built(forward_code(mod, what.isa, unit), what.purpose)), parts(forward_parts(mod)) {
  find(head_fields, code, mod_symbol::head_fields);
  find(row_fields, code, mod_symbol::row_fields);
  find(col_fields, code, mod_symbol::col_fields);
  find(attend_all, code, mod_symbol::attend_all);
  find(attend_some, code, mod_symbol::attend_some);
  attend_known = code.find<AttendFn>(mod_symbol::attend_known);
}

BackwardKernel::BackwardKernel(const compiler::Mod& mod, const Wanted& wanted, const KernelsFor& what, Unit unit)
    : code(built(backward_code(mod, wanted, what.isa, unit), what.purpose)), parts(backward_parts(mod, wanted)) {
  find(head_fields, code, mod_symbol::head_fields);
  find(row_fields, code, mod_symbol::row_fields);
  find(col_fields, code, mod_symbol::col_fields);
  find(differentiate_all, code, mod_symbol::differentiate_all);
  find(differentiate_some, code, mod_symbol::differentiate_some);
  sum_rows = code.find<DifferentiateFn>(mod_symbol::sum_rows);
}

namespace {

template <class Kept, class Key, class Make>
auto kept_or_made(Kept& kept, const Key& key, const Make& make) {
  if (auto found = kept.find(key)) return found;
  const Waits waits;
  return kept.get(key, make);
}

/// The limit on forward or backward kernels, from ATTUNE_LOADED.
template <class T>
Limit<T> limit() {
  return {.count = options().loaded, .bytes = options().loaded_bytes, .bytes_of = [](const T& one) {
            return one.code.bytes();
          }};
}

}  // namespace

Held<Kit> kit(const KernelsFor& what, Unit unit, DType type) {
  using Key = std::tuple<Isa, Unit, DType>;
  static constinit Once<Single<Key, Kit, KeyHash>> kept;
  return kept_or_made(kept.get(), Key{what.isa, unit, type},
                      [&] { return std::make_shared<const Kit>(what, unit, type); });
}

Held<ForwardKernel> forward_kernel(const compiler::LoweredMod& lowered, const KernelsFor& what, Unit unit) {
  using Key = std::tuple<Isa, Unit, ir::Digest>;
  using All = Single<Key, ForwardKernel, KeyHash>;
  static constinit Once<All> kept;
  return kept_or_made(kept.get([] { return All(limit<ForwardKernel>()); }), Key{what.isa, unit, lowered.digest}, [&] {
    record_isa(lowered.mod, "forward", what.isa, unit);
    return std::make_shared<const ForwardKernel>(lowered.mod, what, unit);
  });
}

Held<BackwardKernel> backward_kernel(const compiler::LoweredMod& lowered, const Wanted& wanted, const KernelsFor& what,
                                     Unit unit) {
  using Key = std::tuple<Isa, Unit, ir::Digest, Wanted>;
  using All = Single<Key, BackwardKernel, KeyHash>;
  static constinit Once<All> kept;
  return kept_or_made(kept.get([] { return All(limit<BackwardKernel>()); }),
                      Key{what.isa, unit, lowered.digest, wanted}, [&] {
                        record_isa(lowered.mod, "backward", what.isa, unit);
                        return std::make_shared<const BackwardKernel>(lowered.mod, wanted, what, unit);
                      });
}

}  // namespace attune::runtime::cpu
