// tests/driver/launch_text.cpp — the steps that a call enqueues on its stream, as text: names, sizes, arguments
#include "tests/driver/launch_text.h"

#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include "codegen/cuda/contract/args.cuh"
#include "tests/codegen/kernels/forward_plain.cuh"
#include "tests/driver/fake_driver.h"

namespace attune::tests {
namespace {

class Text {
 public:
  explicit Text(const std::vector<Region>& regions) : regions_(regions) {}

  void step(const fake_driver::Launch& one, void* const* arguments, const std::string& kind, bool further) {
    const std::string name = one.kernel.substr(one.kernel.find("::") == std::string::npos ? 0 : 8);
    const std::string kernel = name.substr(0, name.find('<'));
    out_ += fmt::format("  {} {}", kernel, one.blocks);
    if (one.threads > 0) out_ += fmt::format(" x {} threads, {} bytes", one.threads, one.shared_bytes);
    if (one.cluster > 1) out_ += fmt::format(", clusters of {}", one.cluster);
    out_ += one.early ? ", early\n" : "\n";
    const void* const args = arguments[0];
    const bool of_backward = kind == "backward" && kernel.find("forward") == std::string::npos;
    repeats_ = repeats_ && of_backward;
    if (kernel == "set" || kernel == "copy") return line("to", place(args));
    if (kernel == "transpose_v_sm90") return transpose(*static_cast<const TransposeArgs*>(args));
    if (kernel == "split_keys_sm90") return split(*static_cast<const SplitArgs*>(args));
    if (kernel == "split_rows_sm90") return split_rows(*static_cast<const SplitRowsArgs*>(args));
    if (kernel == "clear") return clear(*static_cast<const ClearArgs*>(args));
    if (kernel == "cover") return cover(*static_cast<const CoverArgs*>(args));
    if (kernel == "store_sums") return sums(*static_cast<const SumsArgs*>(args));
    if (kernel == "append") return append(*static_cast<const AppendArgs*>(args));
    if (of_backward) {
      backward(*static_cast<const BackwardArgs*>(args));
      repeats_ = true;
      return;
    }
    if (kind == "plain") {
      forward(*static_cast<const ForwardArgs*>(args));
      return line("tops", place(static_cast<const PlainArgs*>(args)->tops));
    }
    if (kind == "decode") return both<DecodeArgs>(args, further, &Text::decode);
    if (kind == "mla") return both<MlaArgs>(args, further, &Text::mla);
    const bool in_parts = kind == "parts";
    if (kernel != "combine_parts") both<ForwardArgs>(args, further || in_parts, &Text::forward);
    if (in_parts) parts(static_cast<const InParts<ForwardArgs>*>(args)->parts);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string place(const void* at) const {
    if (!at) return "-";
    for (const Region& one : regions_) {
      const auto first = reinterpret_cast<std::uintptr_t>(one.first), it = reinterpret_cast<std::uintptr_t>(at);
      if (it >= first && it < first + one.bytes)
        return it == first ? one.name : fmt::format("{}+{}", one.name, it - first);
    }
    return "elsewhere";
  }
  void line(const char* name, const std::string& text) {
    std::string& last = told_[name];
    if (repeats_ ? text != last : text != "-" && text != "0") out_ += fmt::format("    {} {}\n", name, text);
    last = text;
  }
  void number(const char* name, long long value) { line(name, std::to_string(value)); }
  void map(const char* name, const TensorMap& of) {
    const auto* words = of.words;
    if (words[0] == 0) return line(name, "-");
    const std::span extents(words + 2, words[1]), strides(words + 7, words[1] - 1), box(words + 11, words[1]);
    line(name, fmt::format("map of {}: {} by {} in {}", place(reinterpret_cast<const void*>(words[0])),
                           fmt::join(extents, " "), fmt::join(strides, " "), fmt::join(box, " ")));
  }
  std::string text(const Strided& t) const {
    if (!t.data) return "-";
    return fmt::format("{} {} {} {} {}", place(t.data), t.batch, t.head, t.position, t.element);
  }
  std::string text(const Rows& t) const {
    return t.data ? fmt::format("{} {} {} {}", place(t.data), t.batch, t.head, t.position) : "-";
  }
  std::string text(const Numbers& t) const { return t.at ? fmt::format("{} {}", place(t.at), t.stride) : "-"; }
  std::string text(const PageTable& t) const {
    return t.at ? fmt::format("{} {} {} {} {}", place(t.at), t.entry, t.nth, t.rows, t.count) : "-";
  }
  std::string text(const Gradient& t) const {
    return t.to.data ? fmt::format("{} type {}", text(t.to), static_cast<int>(t.type)) : "-";
  }

  template <class Args>
  void both(const void* args, bool further, void (Text::*tell)(const Args&)) {
    const auto& of = *static_cast<const Args*>(args);
    (this->*tell)(of);
    if (!further) return;
    const auto& more = *static_cast<const Further<Args>*>(args);
    line("o_before", text(more.o_before)), line("lse_before", text(more.lse_before));
    number("o_before_type", static_cast<int>(more.o_before_type));
    number("split_steps", more.split_steps), number("splits", more.splits);
  }
  template <class Args>
  void operands(const Args& a) {
    line("q", text(a.q)), line("k", text(a.k)), line("v", text(a.v)), line("o", text(a.o));
    line("lse", text(a.lse));
    line("sizes", fmt::format("{} {} {} {} {} {}", a.batch, a.group, a.q_len, a.kv_len, a.q_offset, a.kv_shared));
    line("q_starts", place(a.q_starts)), line("kv_starts", place(a.kv_starts));
    line("tiles",
         !a.tiles ? "-" : fmt::format("{} {} {} {}", place(a.tiles), a.tile_stride, a.tile_batches, a.tile_heads));
  }
  void forward(const ForwardArgs& a) {
    map("q_map", a.q_map), map("k_map", a.k_map), map("v_map", a.v_map), map("o_map", a.o_map);
    operands(a);
    line("max", text(a.max));
    line("heads", fmt::format("{} {} {}", a.q_heads, a.d, a.dv));
    line("order", place(a.order)), number("order_count", a.order_count);
    number("section", a.section), line("next", place(a.next));
    entries(a);
  }
  void parts(const KeyParts& a) {
    line("parts",
         fmt::format("{} of {} rows, {} positions, type {}", a.count, a.rows, a.positions, static_cast<int>(a.o_type)));
    line("part_o", place(a.o)), line("sums", place(a.sums)), line("rests", place(a.rests));
  }
  void entries(const Entries& a) {
    line("kv_lens", text(a.kv_lens)), line("q_offsets", text(a.q_offsets)), line("page_table", text(a.page_table));
    number("kv_offset", a.kv_offset);
  }
  void decode(const DecodeArgs& a) {
    operands(a);
    line("max", text(a.max));
    line("sets", fmt::format("{} {}", a.sets, a.sets_of_group));
    entries(a);
    line("parts", place(a.parts)), line("arrivals", place(a.arrivals)), number("paired", a.paired);
  }
  void mla(const MlaArgs& a) {
    decode(a);
    map("q_map", a.q_map), map("k_map", a.k_map);
    line("cut", place(a.cut)), number("cuts", a.cuts);
  }
  void backward(const BackwardArgs& a) {
    map("q_map", a.q_map), map("k_map", a.k_map), map("v_map", a.v_map), map("grad_o_map", a.grad_o_map);
    operands(a);
    line("grad_o", text(a.grad_o)), line("grad_lse", text(a.grad_lse)), line("delta", text(a.delta));
    line("grad_q", text(a.grad_q)), line("grad_k", text(a.grad_k)), line("grad_v", text(a.grad_v));
    line("heads", fmt::format("{} {} {} {} {}", a.q_heads, a.kv_heads, a.d, a.dv, a.scale));
    number("section", a.section), line("visited", place(a.visited));
    number("q_places", a.q_places), number("kv_places", a.kv_places);
    line("sums", place(a.sums)), line("added", place(a.added)), line("next", place(a.next)),
        line("non_finite", place(a.non_finite));
  }
  void transpose(const TransposeArgs& a) {
    map("from", a.from), map("to", a.to);
    line("sizes", fmt::format("{} {} {}", a.heads, a.tiles, a.batch)), line("starts", place(a.starts));
  }
  void split(const SplitArgs& a) {
    line("k", text(a.k)), line("v", text(a.v)), line("k_to", place(a.k_to)), line("v_to", place(a.v_to));
    line("sizes", fmt::format("{} {} {} {} {} {}", a.heads, a.tiles, a.kv_len, a.d, a.dv, a.batch));
    line("starts", place(a.kv_starts));
    entries(a);
  }
  std::string text(const SplitRows& t) const {
    return fmt::format("{} into {}, factors {}, sizes {} {} {} {} {}", text(t.from), place(t.to), place(t.factors),
                       t.batch, t.heads, t.length, t.width, t.lines);
  }
  void split_rows(const SplitRowsArgs& a) {
    line("q", text(a.q)), line("k", text(a.k)), line("v", text(a.v)), line("grad_o", text(a.grad_o));
    line("non_finite", place(a.non_finite));
  }
  void clear(const ClearArgs& a) { line("first", fmt::format("{} {}", place(a.first), a.count)); }
  void cover(const CoverArgs& a) {
    line("tiles", fmt::format("{} {}", place(a.into), a.tile_stride));
    line("sizes", fmt::format("{} {} {} {} {}", a.q_len, a.kv_len, a.q_offset, a.m, a.n));
    line("q_starts", place(a.q_starts)), line("kv_starts", place(a.kv_starts));
    line("next", place(a.next)), line("visited", place(a.visited));
  }
  void sums(const SumsArgs& a) {
    line("sums", place(a.sums));
    line("to", fmt::format("{} type {}, {} of {} by {}", place(a.to), static_cast<int>(a.type), a.count,
                           fmt::join(a.extent, " "), fmt::join(a.stride, " ")));
  }
  void append(const AppendArgs& a) {
    line("k", text(a.k.from) + " into " + text(a.k.into)), line("v", text(a.v.from) + " into " + text(a.v.into));
    line("sizes", fmt::format("{} {} {} {}", a.batch, a.heads, a.new_rows, a.capacity));
    line("starts", place(a.starts)), line("kv_lens", text(a.kv_lens)), line("page_table", text(a.page_table));
    const Slots& s = a.slots;
    line("slots", fmt::format("{} {} {} of {} {}", place(s.at), s.stride, s.wide ? "i64" : "i32", s.rows, s.pages));
  }

  const std::vector<Region>& regions_;
  std::map<std::string, std::string> told_{};
  bool repeats_ = false;  ///< of the arguments of a backward, which its kernels share, tells what is other than before
  std::string out_;
};

}  // namespace

std::string launch_text(const std::vector<Region>& regions, const std::string& kind, bool further,
                        const std::function<void()>& call) {
  Text text(regions);
  fake_driver::forget();
  fake_driver::watch(
      [&](const fake_driver::Launch& one, void* const* arguments) { text.step(one, arguments, kind, further); });
  call();
  fake_driver::watch({});
  return text.take();
}

}  // namespace attune::tests
