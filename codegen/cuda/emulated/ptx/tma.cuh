// codegen/cuda/emulated/ptx/tma.cuh — TMA: boxes of tensors, and bytes in a row
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

/// The last lane, which no other condition that stands for a warp names.
inline bool elected(Site at = Site::here()) {
  attune_machine->together(
      ~0u, "elect.sync", [](void* const*, unsigned) {}, nullptr, at);
  return attune_machine->now->lane == 31;
}

inline void load_box(unsigned into, const TensorMap& map, unsigned barrier, int d, int position, int head, int batch,
                     Site at = Site::here()) {
  const emulated::Box box{&map, {d, position, head, batch}, 4};
  attune_machine->load_box(into, &box, barrier, at);
}
inline emulated::Box box_of(const TensorMap& map, HeadsBox of) {
  return {&map, {of.d, of.head, of.position, of.kv_head, of.batch}, 5};
}
inline void load_box_of_heads(unsigned into, const TensorMap& map, unsigned barrier, HeadsBox of,
                              Site at = Site::here()) {
  const emulated::Box box = box_of(map, of);
  attune_machine->load_box(into, &box, barrier, at);
}
inline void store_box(const TensorMap& map, unsigned from, int d, int position, int head, int batch,
                      Site at = Site::here()) {
  const emulated::Box box{&map, {d, position, head, batch}, 4};
  attune_machine->store_box(&box, from, at);
}
inline void store_box_of_heads(const TensorMap& map, unsigned from, HeadsBox of, Site at = Site::here()) {
  const emulated::Box box = box_of(map, of);
  attune_machine->store_box(&box, from, at);
}
inline void load_bulk(unsigned into, const void* from, unsigned bytes, unsigned barrier, Site at = Site::here()) {
  attune_machine->load_bulk(into, from, bytes, barrier, at);
}
inline void store_bulk(void* to, unsigned from, unsigned bytes, Site at = Site::here()) {
  attune_machine->store_bulk(to, from, bytes, false, at);
}
inline void add_bulk(void* to, unsigned from, unsigned bytes, Site at = Site::here()) {
  attune_machine->store_bulk(to, from, bytes, true, at);
}
inline void store_commit(Site at = Site::here()) { attune_machine->store_commit(at); }
inline void store_wait_read(Site at = Site::here()) { attune_machine->store_wait(true, at); }
inline void store_wait(Site at = Site::here()) { attune_machine->store_wait(false, at); }
inline void proxy_fence(Site at = Site::here()) { attune_machine->proxy_fence(false, at); }
inline void copy_fence(Site at = Site::here()) { attune_machine->proxy_fence(true, at); }

}  // namespace attune
