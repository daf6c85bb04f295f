// tests/numerics/masks.cpp — the masks, one per line
#include "tests/numerics/masks.h"

namespace attune::tests {
namespace {

using enum DType;

std::vector<MaskCase> all() {
  std::vector<MaskCase> m;
  const auto closed = [&](std::string name, std::string mask, std::vector<CorpusCapture> captures = {},
                          std::vector<std::pair<std::string, double>> params = {}) {
    m.push_back({{.name = std::move(name),
                  .mask = std::move(mask),
                  .captures = std::move(captures),
                  .params = std::move(params)},
                 true});
  };
  const auto open = [&](std::string name, std::string mask, std::vector<CorpusCapture> captures = {},
                        std::vector<std::pair<std::string, double>> params = {}) {
    m.push_back({{.name = std::move(name),
                  .mask = std::move(mask),
                  .captures = std::move(captures),
                  .params = std::move(params)},
                 false});
  };
  const CorpusCapture doc{"doc", i32, {120}, Fill::documents}, ids{"ids", i32, {120}, Fill::any_ids};
  const CorpusCapture len{"len", i32, {2}, Fill::lengths, 90}, w{"w", i16, {4}, Fill::lengths, 40};
  // ---- closed forms
  // --------------------------------------------------------------------------------------------------
  closed("all", "true");
  closed("empty", "false");
  closed("empty by contradiction", "kv < q && q < kv");
  closed("causal", "kv <= q");
  closed("strictly causal", "kv < q");
  closed("inverse causal", "q <= kv");
  closed("causal, offset", "kv <= q + 17");
  closed("causal, offset by a parameter", "kv <= q + off", {}, {{"off", 9}});
  closed("causal, negative offset", "kv <= q + off", {}, {{"off", -31}});
  closed("aligned to the end", "kv - kv_len <= q - q_len");
  closed("window", "kv <= q && q - kv < 24");
  closed("window of one", "kv <= q && q - kv < 1");
  closed("window, the other way round", "q - kv >= 0 && kv > q - 13");
  closed("two-sided window", "abs(q - kv) <= 11");
  closed("outside of a window", "abs(q - kv) > 11");
  closed("band complement", "kv <= q && !(q - kv < 20)");
  closed("sinks", "kv < 4");
  closed("sinks and window", "kv <= q && (q - kv < 16 || kv < 5)");
  closed("prefix", "kv < 37 || kv <= q");
  closed("prefix by batch", "kv < len[b] || kv <= q", {len});
  closed("padding", "kv < len[b]", {len});
  closed("padding on both sides", "kv < len[b] && q < len[b]", {len});
  closed("padded causal", "kv < len[b] && q < len[b] && kv <= q", {len});
  closed("window by head", "kv <= q && q - kv < w[h]", {w});
  closed("window by a parameter", "kv <= q && q - kv < W", {}, {{"W", 30}});
  closed("infinite window", "kv <= q && q - kv < W", {}, {{"W", 2147483647}});
  closed("local and global heads", "(loc[h] ? q - kv < 20 : true) && kv <= q", {{"loc", boolean, {4}, Fill::coins}});
  closed("chunked", "q / 16 == kv / 16");
  closed("chunked, odd", "q / 7 == kv / 7");
  closed("chunked causal", "q / 24 == kv / 24 && kv <= q");
  closed("chunked by floordiv", "floordiv(q, 10) == floordiv(kv, 10)");
  closed("chunked by shift", "q >> 4 == kv >> 4");
  closed("block causal", "kv / 16 <= q / 16");
  closed("block causal, strictly", "kv / 10 < q / 10");
  closed("chunk and the one before", "kv / 8 == q / 8 || kv / 8 == q / 8 - 1");
  closed("scaled", "2 * kv <= q");
  closed("scaled the other way", "kv <= 3 * q - 10");
  closed("anti-diagonal", "q + kv < 90");
  closed("shifted both", "kv + 5 <= q - 3");
  closed("one pair", "q == 33 && kv == 70");
  closed("one column", "kv == 41");
  closed("one row", "q == 41");
  closed("diagonal", "q == kv");
  closed("not the diagonal", "q != kv");
  closed("rectangle", "q >= 20 && q < 50 && kv >= 30 && kv < 100");
  closed("outside of a rectangle", "q < 20 || q >= 50 || kv < 30 || kv >= 100");
  closed("clamped", "kv <= clamp(q, 20, 60)");
  closed("least of two", "kv <= min(q, 50)");
  closed("greatest of two", "kv <= max(q, 30)");
  closed("chosen by head", "h % 2 == 0 ? kv <= q : q <= kv");
  closed("documents", "doc[q] == doc[kv]", {doc});
  closed("documents, causal", "doc[q] == doc[kv] && kv <= q", {doc});
  closed("documents and window", "doc[q] == doc[kv] && kv <= q && q - kv < 9", {doc});
  closed("documents by batch", "doc[b, q] == doc[b, kv]", {{"doc", i32, {2, 120}, Fill::documents}});
  closed("other documents", "doc[q] != doc[kv]", {doc});
  // ---- proven by intervals, data, or looked into
  // ---------------------------------------------------------------------
  open("dilated window", "abs(q - kv) <= 30 && (q - kv) % 3 == 0");
  open("dilated by one window", "abs(q - kv) <= 30 && (q - kv) % 40 == 0");
  open("checkerboard", "(q + kv) % 2 == 0");
  open("strided", "kv <= q && (q - kv < 10 || kv % 10 >= 7)");
  open("unsorted ids", "ids[q] == ids[kv]", {ids});
  open("unsorted ids, causal", "ids[q] == ids[kv] && kv <= q", {ids});
  open("documents in order", "doc[kv] <= doc[q]", {doc});
  open("documents two by two", "doc[q] / 2 == doc[kv] / 2", {doc});
  open("longformer", "abs(q - kv) <= 4 || g[q] || g[kv]", {{"g", boolean, {120}, Fill::coins}});
  open("block map", "r[q / 16, kv / 16]", {{"r", boolean, {8, 8}, Fill::coins}});
  open("block map by head, causal", "r[h, q / 16, kv / 16] && kv <= q", {{"r", boolean, {4, 8, 8}, Fill::coins}});
  open("dense boolean", "m[q, kv]", {{"m", boolean, {100, 120}, Fill::coins}});
  open("dense boolean by batch and head", "m[b, h, q, kv]", {{"m", boolean, {2, 4, 100, 120}, Fill::coins}});
  open("byte mask", "m[q, kv] != 0", {{"m", u8, {100, 120}, Fill::indices, 2}});
  open("segments by offset", "kv >= start[doc[q]] && kv < start[doc[q] + 1]",
       {doc, {"start", i32, {8}, Fill::ramp, 15}});
  open("vision cross-attention", "q >= i0[img[kv]] && q < i0[img[kv] + 1]",
       {{"i0", i32, {9}, Fill::ramp, 12}, {"img", i32, {120}, Fill::indices, 8}});
  open("neighbourhood, 2-D", "abs(clamp(q % 10, 2, 7) - kv % 10) <= 2 && abs(clamp(q / 10, 2, 7) - kv / 10) <= 2");
  open("neighbourhood, 3-D",
       "abs(q % 4 - kv % 4) <= 1 && abs(q / 4 % 5 - kv / 4 % 5) <= 1 && abs(q / 20 - kv / 20) <= 1");
  open("rows and columns of an image", "q / 10 == kv / 10 || q % 10 == kv % 10");
  open("tree ancestors", "enter[kv] <= enter[q] && leave[q] <= leave[kv]",
       {{"enter", i32, {120}, Fill::indices, 50}, {"leave", i32, {120}, Fill::indices, 50}});
  open("block diffusion",
       "(kv < 60 && kv / 8 < (q - 50) / 8) || (kv >= 60 && q >= 50 && (kv - 60) / 8 == (q - 50) / 8)");
  open("shared prefix", "kv < 30 || (doc[q] == doc[kv] && kv <= q)", {doc});
  open("bit trick", "((q ^ kv) & 3) != 0 || q == kv");
  open("same low bits", "(q & 7) == (kv & 7)");
  open("bitmap", "(rows[q] >> (kv & 31) & 1) == 1", {{"rows", i32, {100}, Fill::any_ids}});
  open("parabola", "(q - 50) * (q - 50) <= 30 * kv");
  open("random", "random(5) < 0.01f");
  open("random blocks", "random(5) < 0.5f && kv <= q");
  open("by Floats", "f32(kv) * 1.5f <= f32(q)");
  open("square roots", "sqrt(f32(kv)) <= 0.8f * sqrt(f32(q))");
  open("sum of bits", "sum(i, 5, (q >> i & 1) * (kv >> i & 1)) > 1");
  open("overflow wraps", "kv + 2147483600 <= q");
  open("overflow wraps in a product", "q * 100000000 <= kv * 3");
  open("overflow by a parameter", "kv <= q + off", {}, {{"off", 2147483600}});
  open("window by a wild parameter", "q - kv < W && kv - q < W + 5", {}, {{"W", -2147483645}});
  open("run-time divisor", "q / W == kv / W", {}, {{"W", 9}});
  open("division by nothing", "q / W == kv / W", {}, {{"W", 0}});
  open("negative divisor", "(q - 40) / -7 == (kv - 50) / -7");
  open("negated everything", "!(kv <= q && (q - kv < 16 || kv < 5)) != (doc[q] == doc[kv])", {doc});
  open("many pieces", "kv == q || kv == q - 10 || kv == q - 20 || kv == q - 30 || kv == q - 40 || kv == q - 50 || kv "
                      "== q - 60 || kv == q - 70 || kv == q - 80 || kv == q - 90");
  open("clamped both", "clamp(kv, 20, 90) <= clamp(q, 30, 60)");
  open("either side of a choice", "(kv < 50 ? q : kv) <= 60");
  // ---- found by fuzzing
  // ------------------------------------------------------------------------------------------------------------------
  open("all the bits but the sign", "(kv & 2147483647) == 3 || (q & 2147483647) < kv");
  open("a bound that is the greatest Int", "off >= clamp(kv, q, off)", {}, {{"off", 2147483647}});
  open("an index that wraps", "r[0, off + kv]", {{"r", boolean, {8, 8}, Fill::coins}}, {{"off", 2147483647}});
  open("ends further apart than values", "kv + q / 1073741823 != kv || q == 3");
  open("a shift by less than nothing", "kv >> -1 == q >> 30 && kv <= q");
  open("wrapping below a clamp", "clamp(kv * 100000000, 0, 10) <= q");
  open("no room in a window", "kv <= q && q - kv < W", {}, {{"W", 0}});
  open("every other key", "kv == 2 * q");
  open("bounds that cross", "kv >= q && kv <= q / 2");
  open("other documents, causal", "doc[q] != doc[kv] && kv <= q", {doc});
  return m;
}

}  // namespace

const std::vector<MaskCase>& masks() {
  static const std::vector<MaskCase> made = all();
  return made;
}

}  // namespace attune::tests
