#pragma once

#include "emulator/runtime.h"

// What kernel parameters with an attribute receive, one function an attribute of the same name
// (Metal Shading Language specification 4, table 5.8). Called by the adapters that the rewriter
// writes.

EMU_SHIM_BEGIN

namespace emu::input {

inline uint32_t threadgroup_position_in_grid(int axis) { return cur_tg()->position[axis]; }
inline uint32_t threadgroups_per_grid(int axis) { return cur_tg()->grid[axis]; }
inline uint32_t threads_per_threadgroup(int axis) { return cur_tg()->threads[axis]; }
inline uint32_t dispatch_threads_per_threadgroup(int axis) { return cur_tg()->full_threads[axis]; }
inline uint32_t threads_per_grid(int axis) { return cur_tg()->grid_threads[axis]; }
inline uint32_t thread_position_in_threadgroup(int axis) { return cur_lane()->position[axis]; }
inline uint32_t thread_position_in_grid(int axis) {
  return cur_tg()->position[axis] * cur_tg()->full_threads[axis] + cur_lane()->position[axis];
}

inline uint32_t thread_index_in_threadgroup() { return cur_lane()->index; }
inline uint32_t thread_index_in_simdgroup() { return cur_lane()->lane; }
inline uint32_t simdgroup_index_in_threadgroup() { return cur_lane()->simdgroup; }
inline uint32_t simdgroups_per_threadgroup() { return cur_tg()->simdgroups; }
// Of the full threadgroups, where the grid ends in smaller ones.
inline uint32_t dispatch_simdgroups_per_threadgroup() {
  const uint32_t* full = cur_tg()->full_threads;
  return (full[0] * full[1] * full[2] + kLanes - 1) / kLanes;
}
inline uint32_t threads_per_simdgroup() { return kLanes; }
inline uint32_t thread_execution_width() { return kLanes; }

inline uint32_t thread_index_in_quadgroup() { return cur_lane()->index % kQuadLanes; }
inline uint32_t quadgroup_index_in_threadgroup() { return cur_lane()->index / kQuadLanes; }
inline uint32_t quadgroups_per_threadgroup() {
  const uint32_t* threads = cur_tg()->threads;
  return (threads[0] * threads[1] * threads[2] + kQuadLanes - 1) / kQuadLanes;
}
inline uint32_t dispatch_quadgroups_per_threadgroup() {
  const uint32_t* full = cur_tg()->full_threads;
  return (full[0] * full[1] * full[2] + kQuadLanes - 1) / kQuadLanes;
}

}  // namespace emu::input

EMU_SHIM_END
