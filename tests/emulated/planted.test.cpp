// tests/emulated/planted.test.cpp — mistakes planted into kernels are found where these are emulated
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>

#include "codegen/cuda/headers.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

using runtime::emulated::Patch;

/// A mistake: `from` becomes `to` in a file of codegen/cuda; and a call that it affects.
struct Planted {
  const char* what;
  const char *file, *from, *to;
  enum class Call {
    sm80,
    decode,
    sm90,
    over90,
    empty90,
    late90,
    blocks90,
    parts90,
    backward80,
    backward90,
    turned90,
    completed90,
    stored90,
    skipped90,
    summed90,
    powers90,
    diagonal90,
    e4m3,
    long90,
    dense90,
    two_dense90,
    both_dense90,
    distant90,
    tanh90,
    f32,
    one_tf32,
    mla,
    backward_f32,
    wide90
  } call;
};
using enum Planted::Call;

const Planted all[] = {
    // ---- forward_sm80
    {"a group of copies too few is waited for", "forward_sm80/forward_sm80.cuh", "copy_wait<Tile::stages - 2>();",
     "copy_wait<Tile::stages - 1>();", sm80},
    {"no barrier behind the wait for copies", "forward_sm80/forward_sm80.cuh",
     "copy_wait<Tile::stages - 2>();\n      __syncthreads();", "copy_wait<Tile::stages - 2>();", sm80},
    {"a stage is loaded while it is read", "forward_sm80/forward_sm80.cuh", "load(i + Tile::stages - 1);",
     "load(i + Tile::stages);", sm80},
    {"a key behind the last one counts", "contract/mod.cuh", "to(at.kv_len - 1)", "to(at.kv_len)", sm80},
    {"lanes read rows of others too early", "forward_sm80/forward_sm80.cuh", "put_in_lines<Tile>(of);\n  __syncwarp();",
     "put_in_lines<Tile>(of);", sm80},
    {"units of rows 4 to 7 are looked for in the wrong place", "parts/products_sm80.cuh",
     "swizzle(half ^ Line::swizzle(row & 7))", "swizzle(half ^ Line::swizzle(row & 3))", sm80},
    {"an operand that is not transposed", "parts/products_sm80.cuh",
     "load_blocks_transposed(b, at.at(16 * step, i / 2));", "load_blocks(b, at.at(16 * step, i / 2));", sm80},
    // ---- decode_sm80
    {"a part is merged before it is written", "decode_sm80/epilogue.cuh",
     "== static_cast<unsigned>(split_tile.count - 1)", "== static_cast<unsigned>(split_tile.count - 2)", decode},
    // ---- keys_sm80
    {"no barrier before queries are used", "backward_sm80/keys_sm80.cuh",
     "copy_wait<0>();\n      __syncthreads();\n      const bool more", "copy_wait<0>();\n      const bool more",
     backward80},
    // ---- forward_sm90
    {"fewer bytes are expected than come", "forward_sm90/producer.cuh",
     "barrier_expect(full, Shared::at.k_bytes);\n    for", "barrier_expect(full, Shared::at.k_bytes - 128);\n    for",
     sm90},
    {"more bytes are expected than come", "forward_sm90/producer.cuh", "barrier_expect(q.full(), Shared::at.q_bytes);",
     "barrier_expect(q.full(), Shared::at.q_bytes + 128);", sm90},
    {"the wrong phase is waited for", "parts/ring_sm90.cuh", "now().wait(this->phase);", "now().wait(this->phase ^ 1);",
     sm90},
    {"keys are released before products have read them", "forward_sm90/consumer.cuh",
     "wgmma_wait<1>();\n    if constexpr (products_ordered) pass_turn();\n    pin(g.s);\n    release_keys();",
     "release_keys();\n    wgmma_wait<1>();\n    if constexpr (products_ordered) pass_turn();\n    pin(g.s);", long90},
    {"scores are used before they are there", "forward_sm90/consumer.cuh",
     "wgmma_wait<1>();\n    if constexpr (products_ordered)", "wgmma_wait<2>();\n    if constexpr (products_ordered)",
     sm90},
    {"values are not waited for", "forward_sm90/consumer.cuh", "v.wait();\n    g.values(v.stage, i > 1);",
     "g.values(v.stage, i > 1);", sm90},
    {"no proxy fence before results leave", "forward_sm90/softmax.cuh", "proxy_fence();\n    __syncwarp();",
     "__syncwarp();", sm90},
    {"results leave before all lanes have written theirs", "forward_sm90/softmax.cuh",
     "proxy_fence();\n    __syncwarp();", "proxy_fence();", sm90},
    {"results go to the wrong units", "forward_sm90/softmax.cuh", "^ (line & 7)) << 4);\n      store_blocks",
     "^ (line & 3)) << 4);\n      store_blocks", sm90},
    {"fewer threads than others say meet at a barrier", "forward_sm90/consumer.cuh",
     "named_sync(issue_turn + g.group, 2 * warpgroup_threads)", "named_sync(issue_turn + g.group, warpgroup_threads)",
     sm90},
    {"a warp too few releases a stage", "forward_sm90/forward_sm90.cuh", "k_full(), 1 + number_warps<Tile>, warps);",
     "k_full(), 1 + number_warps<Tile>, warps - 1);", sm90},
    {"a block ends before its results have left", "forward_sm90/consumer.cuh",
     "wgmma_wait<0>(g.s);\n    if (g.lane == 0) store_wait();", "wgmma_wait<0>(g.s);", sm90},
    {"results pass over values that are still read", "forward_sm90/consumer.cuh",
     "if (mine) Ring<Tile::stages>(shared.v_full(), place).wait_until_read();", "", over90},
    {"values are released before their last products", "forward_sm90/consumer.cuh",
     "if (!there) report_found();\n      wgmma_wait<0>();\n      g.pin_products();\n      g.take_in();\n      if "
     "(there) "
     "{\n        if (now.walk.count > 0) v.release(g.lane);",
     "if (there && now.walk.count > 0) v.release(g.lane);\n      if (!there) report_found();\n      wgmma_wait<0>();\n "
     "  "
     "   g.pin_products();\n      g.take_in();\n      if (there) {",
     over90},
    {"two warpgroups' results pass over the same values", "forward_sm90/consumer.cuh",
     "for (int i = g.group; i < groups - 1; ++i) place = place.before();", "", over90},
    {"a block of keys is asked for another one's", "forward_sm90/scores.cuh", "const Int kv(first_key(tile), first);",
     "const Int kv(first_key(tile), 0);", blocks90},
    {"values load over results that have not left", "forward_sm90/producer.cuh", "if (i == behind) wait_for_results();",
     "", over90},
    {"results are said to have left before they have", "forward_sm90/consumer.cuh",
     "store_wait_read();\n      barrier_arrive(shared.results_left());", "barrier_arrive(shared.results_left());",
     over90},
    {"results of a tile without keys pass over queries that load", "forward_sm90/consumer.cuh",
     "if (now.walk.count == 0) q.wait();", "", empty90},
    {"the memory of queries is lent and not taken", "forward_sm90/producer.cuh", "if (has_keys) lend_queries();", "",
     empty90},
    {"a warpgroup leaves out keys that load after its results have left", "forward_sm90/tile_scheduler.cuh",
     "leave_over_values<Tile> ? 1 : Tile::stages - 1", "Tile::stages - 1", late90},
    {"a warpgroup leaves out a tile too many", "forward_sm90/tile_scheduler.cuh", "walk.last + 1 - tiles",
     "walk.last + 2 - tiles", late90},
    {"keys that are left out are not released", "forward_sm90/consumer.cuh",
     "k.release_as_warp(g.lane);\n          k.next();", "k.next();", late90},
    {"values of the wrong tiles are left out", "forward_sm90/consumer.cuh",
     "for (int i = 0; i < late; ++i) v = Ring<Tile::stages>(v.barriers, v.before());", "", late90},
    {"copies of a bias are not waited for", "forward_sm90/scores.cuh",
     "copy_wait<copies_late ? 0 : 1>();\n      __syncwarp();", "__syncwarp();", dense90},
    {"a lane reads what another one copies", "forward_sm90/scores.cuh",
     "copy_wait<copies_late ? 0 : 1>();\n      __syncwarp();", "copy_wait<copies_late ? 0 : 1>();", dense90},
    {"copies go where the previous ones are read", "forward_sm90/scores.cuh",
     "copied ^= copies_late ? 0 : Shared::at.copied_bytes;", "", dense90},
    {"copies go where other lanes read the previous ones", "forward_sm90/scores.cuh",
     "__syncwarp();  // what lay there has been read", "", two_dense90},
    {"keys are said to be there before their distances are", "forward_sm90/numbers.cuh",
     "find(head, at, origin, item.entry.key(tile * Tile::n));\n        k.acquire();\n        "
     "arrive_as_warp(k.full(), lane);",
     "k.acquire();\n        arrive_as_warp(k.full(), lane);\n        find(head, at, origin, "
     "item.entry.key(tile * Tile::n));",
     distant90},
    {"one lane says that all have found their distances", "forward_sm90/numbers.cuh", "arrive_as_warp(k.full(), lane);",
     "if (lane == 0) barrier_arrive(k.full());", distant90},
    {"distances are found where others may be read", "forward_sm90/numbers.cuh",
     "(keys.phase * Tile::stages + keys.stage)", "keys.stage", distant90},
    {"distances come with the next keys", "forward_sm90/consumer.cuh", "release_keys();\n    g.template weigh<Partial>",
     "release_keys();\n    g.take_numbers(k);\n    g.template weigh<Partial>", distant90},
    {"a large argument counts as small", "forward_sm90/scores.cuh", "> exact::small_tanh_most", "> 9.0f", tanh90},
    {"a part has a tile of keys of the next one", "parts/entry.cuh", "all.count * (nth + 1) / parts - begin;",
     "all.count * (nth + 1) / parts - begin + (nth + 1 < parts);", parts90},
    {"parts leave their results in the same place", "forward_sm90/softmax.cuh", "(part * parts.rows + number_of(h, q))",
     "number_of(h, q)", parts90},
    {"the first part is left out", "companions/combine_parts.cuh", "int nth = 0; nth < parts.count",
     "int nth = 1; nth < parts.count", parts90},
    {"parts weigh the same", "companions/combine_parts.cuh", "some[i].y * shares[i]", "some[i].y", parts90},
    // ---- forward_f32_sm90
    {"keys are released before the products of their scores", "forward_sm90/consumer.cuh",
     "g.scores(q.stage, k.stage);\n    if constexpr (Base::issue_ordered) this->pass_turn();\n    "
     "g.wait_for_scores();\n    if constexpr (Base::products_ordered) this->pass_turn();\n    k.release(g.lane);",
     "k.release(g.lane);\n    g.scores(q.stage, k.stage);\n    if constexpr (Base::issue_ordered) this->pass_turn();\n "
     "   "
     "g.wait_for_scores();\n    if constexpr (Base::products_ordered) this->pass_turn();",
     f32},
    {"values are not waited for, tile by tile", "forward_sm90/consumer.cuh", "v.wait();\n    g.values(v.stage);",
     "g.values(v.stage);", f32},
    {"sums of scores are read while products run", "forward_sm90/forward_f32_sm90.cuh", "wgmma_wait<0>(s, low);",
     "wgmma_wait<1>(s, low);", f32},
    {"one product with a remainder is left out", "forward_sm90/forward_f32_sm90.cuh",
     "Of::template rs<Major::k>(low, a, b_rest, 1);", "", f32},
    {"values in another order than probabilities", "forward_sm90/split_keys_sm90.cuh",
     "from[2 * pitch], from[4 * pitch]", "from[4 * pitch], from[2 * pitch]", f32},
    {"keys are loaded while they are split", "forward_sm90/forward_sm90.cuh",
     "come_transposed<Tile> || are_gathered<Tile>) wait_for", "false) wait_for", f32},
    {"no proxy fence behind rounded queries", "forward_sm90/forward_f32_sm90.cuh", "proxy_fence();\n", "", one_tf32},
    // ---- keys_f32_sm90, queries_f32_sm90
    {"a product with rests is left out", "backward_wide_sm90/split.cuh",
     "Product<64, f16>::template set4<Major::k, Major::k>(rests, a_at + a_chunk, b_at);",
     "Product<64, f16>::template set4<Major::k, Major::k>(rests, a_at, b_at);", backward_f32},
    {"P is read before the other warpgroup has written it", "backward_wide_sm90/keys_f32_sm90.cuh",
     "weights.wait(nth & 1);\n    wgmma_wait", "wgmma_wait", backward_f32},
    {"P is overwritten before the other warpgroup has read it", "backward_wide_sm90/keys_f32_sm90.cuh",
     "weights.acquire(nth & 1);", "", backward_f32},
    {"grad_o is not waited for", "backward_wide_sm90/keys_f32_sm90.cuh", "grad_o.wait();\n    p.add_to", "p.add_to",
     backward_f32},
    {"queries are released before the products of dK", "backward_wide_sm90/keys_f32_sm90.cuh",
     "of.add_to(dk, shared.q()[q.stage]);\n    q.release_as_warp(lane);",
     "q.release_as_warp(lane);\n    of.add_to(dk, shared.q()[q.stage]);", backward_f32},
    {"values are not waited for, before dP", "backward_wide_sm90/queries_f32_sm90.cuh", "v.wait();\n    flows", "flows",
     backward_f32},
    {"keys are released before the products of dQ", "backward_wide_sm90/queries_f32_sm90.cuh",
     "ds.add_to(dq, shared.k()[k.stage]);\n    k.release_as_warp(lane);",
     "k.release_as_warp(lane);\n    ds.add_to(dq, shared.k()[k.stage]);", backward_f32},
    {"results pass over operands that are still read", "backward_wide_sm90/keys_f32_sm90.cuh",
     "named_sync(first_warpgroup_done, warpgroup_threads);", "", backward_f32},
    // ---- keys_sm90
    {"P and dropout's decisions are read before the other warpgroup has written them",
     "backward_wide_sm90/keys_sm90.cuh", "weights.wait(nth & 1);\n    // The other", "// The other", wide90},
    {"dropout's decisions are overwritten before the other warpgroup has read them", "backward_wide_sm90/keys_sm90.cuh",
     "weights.acquire(nth & 1);\n    if constexpr (User::traits.drops) this->hand_kept();",
     "if constexpr (User::traits.drops) this->hand_kept();\n    weights.acquire(nth & 1);", wide90},
    {"dropout's decisions are those of the queries before", "backward_wide_sm90/keys_sm90.cuh",
     "const int whole = this->enter(q.stage);\n    this->draw();",
     "this->draw();\n    const int whole = this->enter(q.stage);", wide90},
    // ---- backward_sm90
    {"no proxy fence before dS is an operand", "backward_sm90/consumer.cuh",
     "proxy_fence();\n    named_sync(ds_shared, 2 * warpgroup_threads);\n    store_ds(stage, clock);\n    await_issue",
     "named_sync(ds_shared, 2 * warpgroup_threads);\n    store_ds(stage, clock);\n    await_issue", backward90},
    {"a warpgroup reads dS before the other has written it", "backward_sm90/consumer.cuh",
     "named_sync(ds_shared, 2 * warpgroup_threads);\n    store_ds(stage, clock);\n    await_issue",
     "store_ds(stage, clock);\n    await_issue", backward90},
    {"dS is stored before the warpgroup has written it", "backward_sm90/consumer.cuh",
     "named_sync(ds_shared, 2 * warpgroup_threads);\n    store_ds(stage, clock);\n    await_issue",
     "store_ds(stage, clock);\n    named_sync(ds_shared, 2 * warpgroup_threads);\n    await_issue", stored90},
    {"the stage is released while dS is stored", "backward_sm90/warpgroup.cuh",
     "if constexpr (stores_ds) store_wait_read();", "", stored90},
    {"dS of tiles that no item visits is read", "companions/sum_ds.cuh",
     "this->is_stored(entry, at[i], first / Tile::m, tile);", "true;", skipped90},
    {"tiles of keys that earlier launches have added do not count", "backward_sm90/producer.cuh",
     "return max(to - first - user.stored_ds.tiles, 0) - max(", "return -max(", skipped90},
    {"the tile of keys after a band counts as visited", "parts/entry.cuh", "kv_tile < end_tile_of(",
     "kv_tile <= end_tile_of(", skipped90},
    {"sums of a head go to the next one's place", "backward_sm90/warpgroup.cuh",
     "if (at.b >= 0 && (at.b != b || at.h != h)) give_item_sums();", "", summed90},
    {"each thread of a key adds the sum of all four", "backward_sm90/warpgroup.cuh",
     "if (lane % 4 == 0 && key < at.kv_len) add_exactly(", "if (key < at.kv_len) add_exactly(", summed90},
    {"an item keeps its sums for the next one", "backward_sm90/consumer.cuh",
     "if constexpr (Group::sums_items) this->give_item_sums();", "", summed90},
    {"a second bias is copied while that of the step before is read", "backward_sm90/producer.cuh",
     "if (Shared::shares_copied && !(what & Step::stop)) barrier_wait(shared.copied_empty(), (step & 1) ^ 1);", "",
     both_dense90},
    {"dS is written again once one of four warps has summed it", "backward_sm90/backward_sm90.cuh",
     "init(8, Diagonals90<Tile, User>::warps)", "init(8, 1)", diagonal90},
    {"dS is summed before it is there", "backward_sm90/diagonals.cuh", "ds.wait(step >> 1 & 1);", "", diagonal90},
    {"a buffer of dS is given back while lanes read it", "backward_sm90/diagonals.cuh",
     "if (!(what & Step::empty)) add_tile(step, what & Step::falls, buffer);\n      __syncwarp();\n      if "
     "(lane_asked() "
     "== 0) barrier_arrive(ds.empty());",
     "if (lane_asked() == 0) barrier_arrive(ds.empty());\n      if (!(what & Step::empty)) add_tile(step, what & "
     "Step::falls, buffer);",
     diagonal90},
    {"a band adds to the sums of the one before it", "backward_sm90/diagonals.cuh",
     "if (held >= 0) store();\n      held", "held", diagonal90},
    {"dq is added out of order", "backward_sm90/backward_sm90.cuh", "args.added + tile) != before)",
     "args.added + tile) > 100u)", turned90},
    {"rows are read before the kernel that writes them has ended", "backward_sm90/producer.cuh",
     "wait_for_kernel_before();", "", backward90},
    {"the wrong half of an operand", "backward_sm90/warpgroup.cuh", "from(m == 128 ? 0 : n * group)",
     "from(m == 128 ? 1 : n * group)", backward90},
    {"the rows of a step are not waited for", "backward_sm90/backward_sm90.cuh", "shared.full()[i].init(2, 8);",
     "shared.full()[i].init(1, 8);", backward90},
    {"the only tile of dQ is overwritten before it has left", "backward_sm90/warpgroup.cuh",
     "shared.sum_full()[stage ^ 1].acquire(phase ^ static_cast<unsigned>(stage));",
     "shared.sum_full()[stage].acquire(phase);", turned90},
    {"a transposed operand is read as it lies", "backward_sm90/warpgroup.cuh",
     "template set4<Major::n, Major::k>(dq(), y, x);", "template set4<Major::k, Major::k>(dq(), y, x);", turned90},
    {"sums are completed before others are added", "backward_sm90/backward_sm90.cuh",
     "wait_for_turn(args, tile, before);\n  barrier_expect", "barrier_expect", completed90},
    {"loaded sums are not waited for", "backward_sm90/warpgroup.cuh", "barrier_wait(shared.sums_loaded(stage), phase);",
     "", completed90},
    {"loaded sums take no phase where nothing is loaded", "backward_sm90/backward_sm90.cuh",
     "barrier_arrive(loaded);\n    // No consumer waits for this phase; compute-sanitizer says so of phases that "
     "nobody "
     "waits for.\n    return barrier_wait(loaded, phase);",
     "return;", completed90},
    {"the first item completes dq", "backward_sm90/producer.cuh", "keys == (falls ? to - 1 : from)",
     "keys == (falls ? from : to - 1)", completed90},
    // ---- powers of p
    {"results are rescaled as multiples of p are", "forward_sm90/softmax.cuh",
     "o[i] *= to_degree<User>(lift[i / 2 % 2]);", "o[i] *= lift[i / 2 % 2];", powers90},
    {"results are divided as multiples of p are", "parts/row.cuh", "Ended out{to_degree<User>(1 / part.sum) +",
     "Ended out{1 / part.sum +", powers90},
    // ---- mla_sm90
    {"queries are released before their last scores", "mla_sm90/warpgroup.cuh",
     "wgmma_wait<0>(s);\n    release(stage(place, Group), Shared::used_rest);\n    if (last) arrive_as_warp(shared + "
     "Shared::at.q_empty, lane);",
     "if (last) arrive_as_warp(shared + Shared::at.q_empty, lane);\n    wgmma_wait<0>(s);\n    release(stage(place, "
     "Group), Shared::used_rest);",
     mla},
    {"the last values are released before results have left through them", "mla_sm90/mla_sm90.cuh",
     "    group.store(same,", "    arrive_as_warp(freed, group.lane);\n    group.store(same,", mla},
    {"results are freed before they have been read again", "mla_sm90/warpgroup.cuh", "    uint4 x[16];\n",
     "    free();\n    uint4 x[16];\n", mla},
    {"results go where the other warpgroup's pass", "mla_sm90/mla_sm90.cuh",
     "group.keys(1, Group * Shared::at.half_chunks)", "group.keys(1, 0)", mla},
    {"rows of results that two lanes have are swapped", "mla_sm90/warpgroup.cuh",
     "pack<Out>(o[i + 2 * j] * own[j % 2],", "pack<Out>(o[i + 2 * j] * own[j / 2],", mla},
    {"a stage is loaded before it is released", "mla_sm90/producer.cuh", "place.phase ^ 1);", "place.phase);", mla},
    {"values are released before their products", "mla_sm90/warpgroup.cuh",
     "pin(o);\n    add_own(mine);\n    wgmma_wait<0>(o);\n    if (Group == 0 || !last) release(mine, Group);",
     "pin(o);\n    add_own(mine);\n    if (Group == 0 || !last) release(mine, Group);\n    wgmma_wait<0>(o);", mla},
};

Shape shape_of(Planted::Call call) {
  Shape out{
      .batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 310, .d = 64, .dv = 64, .dtype = DType::bf16};
  if (call == decode) out.q_len = 2;
  if (call == over90 || call == empty90 || call == late90) out.q_len = out.kv_len = 400;
  if (call == completed90) out.q_len = out.kv_len = 400;
  if (call == parts90) {
    out.batch = 2, out.q_len = 20, out.kv_len = 3000;
    out.used = {3000, 700};
  }
  if (call == turned90 || call == diagonal90 || call == two_dense90) out.d = out.dv = 128;
  if (call == wide90) out.d = 144, out.dv = 80;
  if (call == mla)
    out = {.batch = 5,
           .q_heads = 128,
           .kv_heads = 1,
           .q_len = 1,
           .kv_len = 330,
           .d = 576,
           .dv = 512,
           .dtype = DType::bf16,
           .mla = true};
  if (call == decode || call == long90) out.kv_len = 700;
  if (call == e4m3) out.e4m3 = true;
  if (call == backward80 || call == f32 || call == one_tf32 || call == backward_f32) out.dtype = DType::f32;
  return out;
}
bool is_backward(Planted::Call call) {
  return call == backward80 || call == backward90 || call == turned90 || call == completed90 || call == stored90 ||
         call == skipped90 || call == summed90 || call == diagonal90 || call == both_dense90 || call == backward_f32 ||
         call == wide90;
}
int arch_of(Planted::Call call) { return call == sm80 || call == decode || call == backward80 ? 80 : 90; }

/// The kernel that the call names, or nothing.
std::string kernel_of(Planted::Call call) {
  switch (call) {
    case turned90: return "backward_sm90:m=80,order=3,completes=0";
    case completed90: return "backward_sm90:m=128,order=3,completes=1";
    case over90: return "forward_sm90:m=128,n=64,stages=2,q_stages=1,own_o=2,issue_order=1,items=1";
    case empty90: return "forward_sm90:m=128,n=64,stages=2,q_stages=1,own_o=0,issue_order=1,items=1";
    case two_dense90: return "forward_sm90:m=128,n=128,q_stages=1,own_o=0,copies=2";
    case both_dense90: return "backward_sm90:order=2,copies=2";
    case late90: return "forward_sm90:m=192,n=80,stages=3,q_stages=1,own_o=2,issue_order=1,items=1";
    default: return "";
  }
}
Engine engine_of(Planted::Call call, std::uint64_t seed) {
  const runtime::emulated::Gpu gpu{.arch = arch_of(call), .sms = call == parts90 ? 8 : 3, .seed = 100 * seed};
  const std::string kernel = kernel_of(call);
  Engine out = kernel.empty() ? emulated_engine(gpu) : emulated_engine(gpu, kernel);
  out.mla = call == mla;
  // One tile of keys a launch.
  if (call == skipped90)
    out.backward = [=](const Subject& subject, const auto& of, const compiler::Problem& problem) {
      runtime::emulated::emulate(gpu);
      on_device(subject, of, problem, {.ds_bytes = 1});
    };
  return out;
}

/// An attention for which no kernel has been compiled yet.
Attention fresh(Planted::Call call) {
  static int made = 0;
  const float by = 1.0f + 0.001f * static_cast<float>(++made);
  if (call == tanh90) return {.score = [=](Float s, At) { return 4.0f * tanh(s * by); }, .exact = true};
  if (call == one_tf32) return {.score = [=](Float s, At) { return s * by; }, .exact = false};
  if (call == empty90)
    return {.score = [=](Float s, At) { return s * by; },
            .mask = [](At at) { return at.q / 128 % 2 == 1 && at.kv <= at.q % 128; }};
  if (call == blocks90)
    return {.score = [=](Float s, At) { return s * by; },
            .mask = [](At at) { return (at.q / 16 + at.kv / 32) % 3 != 0; }};
  if (call == wide90) return {.score = [=](Float s, At) { return s * by; }, .prob = mods::dropout(0.8f, 7)};
  // The maximum rises from one tile to the next, which visits the last keys first.
  if (call == powers90)
    return {.score = [=](Float s, At at) { return s * by - 0.01f * attune::f32(at.kv); },
            .prob = [](Float p, At) { return p * p; }};
  if (call == late90 || call == completed90)
    return {.score = [=](Float s, At) { return s * by; }, .mask = mods::causal()};
  if (call == summed90) {
    static std::vector<float> numbers(312, 0.5f);
    Text text;
    text.capture("gate", Tensor(numbers.data(), DType::f32, {2}));
    text.capture("key", Tensor(numbers.data(), DType::f32, {310}));
    return {.score = text.score(fmt::format("s + {:.3f}f * key[kv] + 0.01f * gate[h] * f32(kv - q)", by))};
  }
  if (call == diagonal90) {
    static std::vector<float> numbers(460, 0.5f);
    Text text;
    text.capture("table", Tensor(numbers.data(), DType::f32, {460}));
    return {.score = text.score(fmt::format("s + {:.3f}f * table[q - kv + 309]", by))};
  }
  const bool is_two = call == two_dense90 || call == both_dense90;
  if (call != dense90 && !is_two && call != distant90 && call != stored90 && call != skipped90)
    return {.score = [=](Float s, At) { return s * by; }};
  static std::vector<unsigned short> numbers(150 * 312, 0x3f80);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<unsigned short>(0x3f80 + i % 100);
  Text text;
  text.capture("bias", Tensor(numbers.data(), DType::bf16, {150, 312}));
  // A literal: attentions that differ in a parameter alone have the same kernel.
  const std::string factor = fmt::format("{:.3f}f", by);
  Attention out{.score = text.score(call == dense90     ? "s * " + factor + " + bias[q, kv]"
                                    : is_two            ? "s + " + factor + " * (bias[q, kv] + bias[149 - q, kv])"
                                    : call == distant90 ? "s * " + factor + " + bias[3, q - kv + 150] * bias[4, q - kv]"
                                                        : "s + " + factor + " * bias[q, kv]")};
  if (call == skipped90) out.mask = mods::causal();
  return out;
}

std::string path_of(const Planted& one) { return fmt::format("codegen/cuda/{}", one.file); }

/// How the mistake shows, trying one seed after another; empty if it never shows.
std::string found(const Planted& one) {
  runtime::emulated::set_patches({Patch{path_of(one), one.from, one.to}});
  const Subject subject(fresh(one.call));
  std::string out;
  for (std::uint64_t seed = 1; seed <= 4 && out.empty(); ++seed) {
    const Engine engine = engine_of(one.call, seed);
    const bool backward = is_backward(one.call);
    const Verdict verdict = compare(subject, inputs(shape_of(one.call)), std::span(&engine, 1),
                                    {.forward = !backward, .backward = backward});
    // TF32 is never as near as f32.
    const bool counts = verdict.engine_error > 0x1p-9 || verdict.wrong.find(": element") != std::string::npos;
    if (one.call != one_tf32 || counts) out = verdict.wrong;
  }
  for (const std::string& doubt : runtime::emulated::take_doubts()) out += out.empty() ? "" : doubt + "\n";
  runtime::emulated::set_patches({});
  return out;
}

}  // namespace

TEST_CASE("every planted mistake has one place in a kernel", "[emulated]") {
  const auto headers = codegen::headers();
  for (const Planted& one : all) {
    INFO(one.what);
    const auto file = std::ranges::find(headers, path_of(one), &codegen::Header::name);
    REQUIRE(file != headers.end());
    const std::string_view text = file->text;
    const std::size_t at = text.find(one.from);
    CHECK(at != std::string_view::npos);
    CHECK(text.find(one.from, at + 1) == std::string_view::npos);
  }
}

TEST_CASE("mistakes that are planted into kernels are found where these are emulated", "[emulated]") {
  if (skipped_without_compiler()) return;
  const char* const only = std::getenv("ATTUNE_TEST_ONLY");
  for (std::size_t nth = 0; const Planted& one : all) {
    if (!in_turn(nth++, 18) && !only) continue;
    if (only && std::string(one.what).find(only) == std::string::npos) continue;
    INFO(one.what);
    const std::string how = found(one);
    if (std::getenv("ATTUNE_TEST_SAY")) std::printf("---- %s\n%s\n", one.what, how.substr(0, 900).c_str());
    CHECK(how != "");
  }
}

TEST_CASE("kernels without a planted mistake are right and leave no doubts", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (std::size_t nth = 0;
       const Planted::Call call :
       {sm80,       decode,      sm90,         over90,    empty90,   late90,   blocks90, parts90,      backward80,
        backward90, turned90,    completed90,  stored90,  skipped90, summed90, powers90, diagonal90,   e4m3,
        dense90,    two_dense90, both_dense90, distant90, tanh90,    f32,      mla,      backward_f32, wide90}) {
    if (!in_turn(nth++, 8)) continue;
    const std::array engines{engine_of(call, 1), engine_of(call, 2)};
    const bool backward = is_backward(call);
    CHECK(compare(Subject(fresh(call)), inputs(shape_of(call)), engines, {.forward = !backward, .backward = backward})
              .wrong == "");
  }
}

}  // namespace attune::tests
