// c/call.cpp — calls: structs of C become Forward, Backward and Resources
#include "c/call.h"

#include <attune/append.h>
#include <attune/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "c/attention.h"
#include "c/error.h"
#include "compiler/bind.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/picture/draw.h"
#include "runtime/machine/background.h"

struct attune_cover {
  attune::Cover cover;
};

namespace attune::c {
namespace {

void refuse_forward_only(const attune_call& from) {
  const std::array<std::pair<const char*, bool>, 7> given{{{"kv_len", from.kv_len},
                                                           {"q_offsets", from.q_offsets},
                                                           {"page_table", from.page_table},
                                                           {"o_before", from.o_before},
                                                           {"lse_before", from.lse_before},
                                                           {"kv_offset", from.kv_offset != 0},
                                                           {"fixed_split_size", from.fixed_split_size != 0}}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw Error("forward-only", fmt::format("a backward is given `{}`", name), {}, "it is for the forward alone",
                  "leave it out");
}

}  // namespace

Call::Call(const attune_attention& attention, const attune_call* given, const char* function) {
  const auto from = c::given(given, function, "call");
  if (from.pass != ATTUNE_FORWARD && from.pass != ATTUNE_BACKWARD)
    throw Error("bad-choice", fmt::format("`pass` cannot be {}", from.pass), {},
                "it is ATTUNE_FORWARD (0) or ATTUNE_BACKWARD (1)", "set it to one of these");
  backward = from.pass == ATTUNE_BACKWARD;
  at = {from.file, from.line};
  captures = captures_of(attention, from.captures, from.n_captures);
  params = params_of(attention, from.params, from.n_params);
  backward ? fill(attention, from, back) : fill(from, forward);
}

template <class Into>
void Call::fill_both(const attune_call& from, Into& into) {
  into.q = tensor_of(from.q, "q");
  into.k = tensor_of(from.k, "k");
  into.v = tensor_of(from.v, "v");
  into.o = tensor_of(from.o, "o");
  into.lse = tensor_of(from.lse, "lse");
  into.cu_seqlens_q = tensor_of(from.cu_q, "cu_q");
  into.cu_seqlens_kv = tensor_of(from.cu_kv, "cu_kv");
  into.q_offset = from.q_offset;
  into.max_q_len = from.max_q_len;
  into.max_kv_len = from.max_kv_len;
  into.captures = captures;
  into.params = params;
}

void Call::fill(const attune_call& from, Forward& into) {
  fill_both(from, into);
  into.max = tensor_of(from.max, "max");
  // Most calls have none of these tensors, and making a Tensor takes nanoseconds.
  const auto take = [](const attune_tensor* given, const char* name, Tensor& tensor) {
    if (given) tensor = tensor_of(given, name);
  };
  take(from.kv_len, "kv_len", into.kv_len);
  take(from.q_offsets, "q_offsets", into.q_offsets);
  take(from.page_table, "page_table", into.page_table);
  take(from.o_before, "o_before", into.o_before);
  take(from.lse_before, "lse_before", into.lse_before);
  into.fixed_split_size = from.fixed_split_size;
  into.kv_offset = from.kv_offset;
}

void Call::fill(const attune_attention& attention, const attune_call& from, Backward& into) {
  refuse_forward_only(from);
  fill_both(from, into);
  into.grad_o = tensor_of(from.grad_o, "grad_o");
  into.grad_lse = tensor_of(from.grad_lse, "grad_lse");
  into.dq = tensor_of(from.dq, "dq");
  into.dk = tensor_of(from.dk, "dk");
  into.dv = tensor_of(from.dv, "dv");
  into.sum_captured = from.own_captured_grads == 0;
  if (!from.captured_grads) return;
  if (from.n_captured_grads != attention.captures.size())
    throw Error("bind-count", fmt::format("the call has {} captured gradients", from.n_captured_grads), {},
                fmt::format("the attention declares {} captures", attention.captures.size()),
                fmt::format("set n_captured_grads to {}: NULL where none is wanted", attention.captures.size()));
  for (std::size_t i = 0; i < attention.captures.size(); ++i) {
    if (!from.captured_grads[i]) continue;
    const Name& name = attention.captures[i];
    if (!name.slot)
      throw Error("grad-not-captured", fmt::format("a gradient is asked for capture `{}`", name.name), {},
                  "no expression reads it", "leave the gradient out: it is 0");
    into.captured.push_back({.of = {},
                             .into = tensor_of(from.captured_grads[i], {"the gradient of capture `", name.name, "`"}),
                             .slot = static_cast<int>(*name.slot)});
  }
}

namespace {

void run_one(void* run, std::int64_t task, std::int32_t worker) { (*static_cast<const Task*>(run))(task, worker); }

Resources resources_of(const attune_with* given, const char* function) {
  if (!given) return {};
  const auto from = c::given(given, function, "with");
  Resources out;
  out.executor.workers = from.workers;
  if (from.parallel_for)
    out.executor.parallel_for = [loop = from.parallel_for, user = from.user](std::int64_t count, const Task& run) {
      loop(user, count, run_one, const_cast<Task*>(&run));
    };
  if (from.progress)
    out.progress = [tell = from.progress, user = from.user](double done) {
      if (tell(user, done) != 0)
        throw Error("stopped", "the call was stopped", {}, "its progress callback did not return 0",
                    "call again: its results are incomplete");
    };
  if (from.workspace_bytes > 0 && !from.workspace) require(nullptr, function, "with.workspace");
  out.workspace = {static_cast<std::byte*>(from.workspace), from.workspace ? from.workspace_bytes : 0};
  out.stream = from.stream;
  if (from.cover) out.cover = from.cover->cover;
  if (from.sharding) out.sharding = from.sharding->sharding;
  return out;
}

/// A picture as the sizes that a cover is evaluated at.
runtime::Extent extent_of(const attune_picture& from) {
  const auto within = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (least <= value && value <= most) return static_cast<std::int32_t>(value);
    throw Error("bad-size", fmt::format("`{}` cannot be {}", name, value), {},
                fmt::format("it is a whole number from {} to {}", least, most), "set it to one of these");
  };
  const std::int64_t most = compiler::max_length;
  runtime::Extent out;
  out.q_len = within("q_len", from.q_len, 1, most);
  out.kv_len = within("kv_len", from.kv_len, 1, most);
  out.q_offset = within("q_offset", from.q_offset, 0, most - out.q_len);
  out.batch = within("batch", from.batch, 0, most - 1) + 1;
  out.heads = within("head", from.head, 0, most - 1) + 1;
  out.tile_q = within("tile_q", from.tile_q, 1, most);
  out.tile_kv = within("tile_kv", from.tile_kv, 1, most);
  return out;
}

void check_on_host(const compiler::LoweredMod& lowered, std::span<const Tensor> captures) {
  for (std::size_t i = 0; i < captures.size(); ++i) {
    const Tensor& t = captures[i];
    const std::string name = fmt::format("capture `{}`", lowered.mod.captures[i].name);
    if (t.device.kind != Device::Kind::cpu)
      throw Error("tensor-device", name + " is not on the host", {}, "tiles are found on the host, which reads it",
                  "copy it to the host");
    if (!t.data && t.size() > 0)
      throw Error("tensor-null", name + " has no memory", {}, "its data pointer is null", "point it at its elements");
  }
}

constexpr std::uint8_t cell_of(runtime::Keep keep) {
  return keep == runtime::Keep::None ? ATTUNE_EMPTY : keep == runtime::Keep::All ? ATTUNE_FULL : ATTUNE_PARTIAL;
}

/// The checked inputs of a picture: every tensor is on the host, and every index can be in range.
struct Pictured {
  const compiler::LoweredMod& lowered;
  runtime::Extent extent;
  std::vector<Tensor> captures;
  std::vector<double> params;

  Pictured(const attune_attention& attention, const attune_picture& picture)
      : lowered(attention.story().lowered), extent(extent_of(picture)),
        captures(captures_of(attention, picture.captures, picture.n_captures)),
        params(params_of(attention, picture.params, picture.n_params)) {
    compiler::check_bound(lowered, captures, params);
    check_on_host(lowered, captures);
    runtime::check_reads(lowered, captures, extent);
  }
  compiler::Args args() const { return compiler::args(lowered, captures, params); }
};

void write_tiles(const Pictured& of, std::uint8_t* tiles) {
  const runtime::Extent& extent = of.extent;
  const runtime::Tiles cover(of.lowered, of.args());
  for (std::int32_t row = 0; row < extent.q_tiles(); ++row)
    for (std::int32_t col = 0; col < extent.kv_tiles(); ++col)
      *tiles++ = cell_of(cover.keep(extent, extent.batch - 1, extent.heads - 1, row, col));
}

runtime::View view_of(const attune_drawing& drawing, const runtime::Extent& extent,
                      const std::optional<double>& scale) {
  runtime::View view{.extent = extent, .b = extent.batch - 1, .h = extent.heads - 1, .scale = scale};
  constexpr int panels = ATTUNE_DRAW_TILES | ATTUNE_DRAW_SCORE | ATTUNE_DRAW_PROB;
  if ((drawing.panels & ~panels) != 0)
    throw Error("bad-choice", fmt::format("`panels` cannot be {}", drawing.panels), {},
                "it is a sum of ATTUNE_DRAW_TILES (1), ATTUNE_DRAW_SCORE (2) and ATTUNE_DRAW_PROB (4)",
                "set it to the panels to draw");
  view.tiles = drawing.panels & ATTUNE_DRAW_TILES;
  view.score = drawing.panels & ATTUNE_DRAW_SCORE;
  view.prob = drawing.panels & ATTUNE_DRAW_PROB;
  view.q = tensor_of(drawing.q, "q");
  view.k = tensor_of(drawing.k, "k");
  for (const auto& [tensor, name] : {std::pair{&view.q, "q"}, {&view.k, "k"}})
    if (tensor->given() && tensor->device.kind != Device::Kind::cpu)
      throw Error("tensor-device", fmt::format("`{}` is not on the host", name), {},
                  "a picture is drawn on the host, which reads it", "copy it to the host");
  runtime::check(view);
  return view;
}

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_run(const attune_attention* attention, const attune_call* call, const attune_with* with) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_run");
    const c::Call made(*attention, call, "attune_run");
    const Resources resources = c::resources_of(with, "attune_run");
    made.backward ? held->attention.backward(made.back, resources, made.at)
                  : held->attention.run(made.forward, resources, made.at);
  });
}

int32_t attune_worthwhile_workers(const attune_call* call) {
  const auto extent = [](const attune_tensor* of, int i) { return static_cast<double>(of->shape[i]); };
  const double keys = extent(call->k, 2) * (call->page_table ? extent(call->page_table, 1) : 1),
               pairs = extent(call->q, 0) * extent(call->q, 1) * extent(call->q, 2) * keys,
               workers = runtime::cpu::worthwhile_workers(pairs * (extent(call->q, 3) + extent(call->v, 3)));
  return static_cast<int32_t>(std::min<double>(workers, std::numeric_limits<int32_t>::max()));
}

attune_error* attune_append(const attune_new_keys* keys, const attune_with* with) {
  return c::guarded([&] {
    const auto from = c::given(keys, "attune_append", "keys");
    append({.k_new = c::tensor_of(from.k_new, "k_new"),
            .v_new = c::tensor_of(from.v_new, "v_new"),
            .k = c::tensor_of(from.k, "k"),
            .v = c::tensor_of(from.v, "v"),
            .page_table = c::tensor_of(from.page_table, "page_table"),
            .kv_len = c::tensor_of(from.kv_len, "kv_len"),
            .cu_seqlens = c::tensor_of(from.cu_new, "cu_new"),
            .slots = c::tensor_of(from.slots, "slots"),
            .k_scale = from.k_scale == 0 ? 1 : from.k_scale,
            .v_scale = from.v_scale == 0 ? 1 : from.v_scale},
           c::resources_of(with, "attune_append"), {from.file, from.line});
  });
}

attune_error* attune_prepare(const attune_attention* attention, const attune_call* call, const attune_with* with,
                             size_t* workspace, size_t* cover) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_prepare");
    const c::Call made(*attention, call, "attune_prepare");
    const Resources resources = c::resources_of(with, "attune_prepare");
    const Attention& a = held->attention;
    const std::size_t bytes = made.backward ? a.workspace(made.back, resources, made.at)
                                            : a.workspace(made.forward, resources, made.at);
    const std::size_t lists = made.backward || !cover ? 0 : a.cover_bytes(made.forward, made.at);
    if (workspace) *workspace = bytes;
    if (cover) *cover = lists;
  });
}

attune_error* attune_prepare_async(const attune_attention* attention, const attune_call* call) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_prepare_async");
    const c::Call made(*attention, call, "attune_prepare_async");
    made.backward ? held->attention.prepare_async(made.back) : held->attention.prepare_async(made.forward);
  });
}

void attune_wait(void) { wait(); }

void attune_cancel(void) { runtime::stop_background(); }

attune_error* attune_cover_new(const attune_attention* attention, const attune_call* call, const attune_with* with,
                               attune_cover** cover) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_cover_new");
    c::require(cover, "attune_cover_new", "cover");
    const c::Call made(*attention, call, "attune_cover_new");
    if (made.backward)
      throw Error("bad-choice", "a cover is asked for a backward", {}, "covers are of forward calls",
                  "set call.pass to ATTUNE_FORWARD");
    Cover lists = held->attention.cover(made.forward, c::resources_of(with, "attune_cover_new"), made.at);
    *cover = lists ? new attune_cover{std::move(lists)} : nullptr;
  });
}

void attune_cover_free(attune_cover* cover) { delete cover; }

attune_error* attune_tiles(const attune_attention* attention, const attune_picture* picture, uint8_t* tiles,
                           size_t bytes, int64_t* rows, int64_t* cols) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_tiles");
    const auto from = c::given(picture, "attune_tiles", "picture");
    const runtime::Extent extent = c::extent_of(from);
    if (tiles) {
      const auto needed = static_cast<std::uint64_t>(extent.q_tiles()) * static_cast<std::uint64_t>(extent.kv_tiles());
      if (bytes < needed)
        throw Error(
            "bad-size", "`bytes` is too small for the tiles", {},
            fmt::format("there are {} x {} tiles, and `bytes` is {}", extent.q_tiles(), extent.kv_tiles(), bytes),
            fmt::format("give {} bytes", needed));
      c::write_tiles(c::Pictured(*attention, from), tiles);
    }
    if (rows) *rows = extent.q_tiles();
    if (cols) *cols = extent.kv_tiles();
  });
}

attune_error* attune_draw(const attune_attention* attention, const attune_drawing* drawing, char** svg) {
  return c::guarded([&] {
    const c::Held held(attention, "attune_draw");
    const auto from = c::given(drawing, "attune_draw", "drawing");
    c::require(svg, "attune_draw", "svg");
    const auto picture = c::given(from.picture, "attune_draw", "drawing.picture");
    // q and k are checked before captures: a head that q lacks is also out of a capture's range.
    const runtime::View view = c::view_of(from, c::extent_of(picture), held->attention.scale);
    const c::Pictured of(*attention, picture);
    *svg = c::copied(runtime::draw(of.lowered, of.args(), view));
  });
}
