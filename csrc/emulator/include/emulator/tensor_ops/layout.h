#pragma once

#include "emulator/runtime.h"

// Which element of a tile a slot of a thread holds. Metal leaves this to the GPU, so the layout is
// a policy of the launch:
// - M5: what MLX's BaseNAXFrag assumes of generation 17 and later, 16x16 fragments of 8 elements a
//   lane, in row-major order;
// - an 8x8 grid: the mapping of simdgroup_matrix, seen on an M4 Pro, and on M5 with
//   relaxed_precision = false and float inputs (two independent projects);
// - random: any slot may hold any element, and some hold none.
// How tiles of several simdgroups are dealt to them is unknown for the first two; here each
// simdgroup gets a run of fragments or blocks.

EMU_SHIM_BEGIN

namespace emu {

enum class Role { kLeft, kRight, kDestination, kRow, kColumn };

constexpr uint32_t kNoElement = ~0u;

constexpr int divided_up(int a, int b) { return (a + b - 1) / b; }
constexpr int larger(int a, int b) { return a < b ? b : a; }

// Row and first column of a lane in a 16x16 fragment, and in an 8x8 block.
constexpr int lane_row(int lane) { return (lane >> 2 & 4) | (lane >> 1 & 3); }
constexpr int fragment_column(int lane) { return ((lane >> 2 & 2) | (lane & 1)) * 4; }
constexpr int block_column(int lane) { return (lane >> 2 & 2) * 2 + (lane & 1) * 2; }

// A policy, as the slots of one kind of tensor see it.
template <bool grid_on_m5>
inline int effective_layout() {
  const int layout = policies().layout;
  return layout == EMU_LAYOUT_M5 && grid_on_m5 ? EMU_LAYOUT_GRID8 : layout;
}

// A tile of rows x cols over `threads` threads. kKey tells the tiles of random layouts apart.
template <int rows, int cols, int threads, Role role, bool grid_on_m5>
struct TileSlots {
  static constexpr int kRows = rows, kCols = cols, kThreads = threads;
  static constexpr int kSimdgroups = divided_up(threads, 32);
  static constexpr int kFragments =
      divided_up(divided_up(rows, 16) * divided_up(cols, 16), kSimdgroups);
  static constexpr int kBlocks = divided_up(divided_up(rows, 8) * divided_up(cols, 8), kSimdgroups);
  // A few slots too many: kernels must ask which ones are valid.
  static constexpr int kRandom =
      divided_up(rows * cols, threads) + divided_up(rows * cols, 8 * threads) + 1;
  static constexpr int kMost = larger(larger(8 * kFragments, 2 * kBlocks), kRandom);

  static int layout() { return effective_layout<grid_on_m5>(); }
  static int capacity(int layout) {
    return layout == EMU_LAYOUT_M5      ? 8 * kFragments
           : layout == EMU_LAYOUT_GRID8 ? 2 * kBlocks
                                        : kRandom;
  }
  // row * cols + column, or kNoElement.
  static uint32_t element(int layout, int thread, int slot) {
    if (layout == EMU_LAYOUT_RANDOM) {
      constexpr uint32_t key = static_cast<uint32_t>(role) + 8u * static_cast<uint32_t>(rows) +
                               8192u * static_cast<uint32_t>(cols);
      const uint32_t at = permutation(key, threads * kRandom)[thread * kRandom + slot];
      return at < static_cast<uint32_t>(rows * cols) ? at : kNoElement;
    }
    const int lane = thread % 32, simdgroup = thread / 32;
    int row, col;
    if (layout == EMU_LAYOUT_GRID8) {
      const int block = simdgroup * kBlocks + slot / 2, across = divided_up(cols, 8);
      row = block / across * 8 + lane_row(lane);
      col = block % across * 8 + block_column(lane) + slot % 2;
    } else {
      const int fragment = simdgroup * kFragments + slot / 8, across = divided_up(cols, 16);
      row = fragment / across * 16 + lane_row(lane) + slot % 8 / 4 * 8;
      col = fragment % across * 16 + fragment_column(lane) + slot % 4;
    }
    return row < rows && col < cols ? static_cast<uint32_t>(row * cols + col) : kNoElement;
  }
};

// A reduction result of n rows (or columns): each lane holds a copy of every row that its slots of
// the tile are in. Metal does not say how many slots that takes.
template <int n, Role role, bool grid_on_m5>
struct LineSlots {
  static constexpr int kRows = n, kCols = 1, kThreads = 32;
  static constexpr bool kIsRow = role == Role::kRow;
  static constexpr int kM5 = divided_up(n, 16) * (kIsRow ? 2 : 4);
  static constexpr int kGrid = divided_up(n, 8) * (kIsRow ? 1 : 2);
  static constexpr int kRandom = n + 2;
  static constexpr int kMost = larger(larger(kM5, kGrid), kRandom);

  static int layout() { return effective_layout<grid_on_m5>(); }
  static int capacity(int layout) {
    return layout == EMU_LAYOUT_M5 ? kM5 : layout == EMU_LAYOUT_GRID8 ? kGrid : kRandom;
  }
  static uint32_t element(int layout, int lane, int slot) {
    int at;
    if (layout == EMU_LAYOUT_RANDOM) {
      const uint32_t key = static_cast<uint32_t>(role) + 8u * static_cast<uint32_t>(n) +
                           8192u * static_cast<uint32_t>(1024 + lane);
      at = permutation(key, kRandom)[slot];
    } else if (kIsRow) {
      at = 8 * slot + lane_row(lane);
    } else if (layout == EMU_LAYOUT_GRID8) {
      at = slot / 2 * 8 + block_column(lane) + slot % 2;
    } else {
      at = slot / 4 * 16 + fragment_column(lane) + slot % 4;
    }
    return at < n ? static_cast<uint32_t>(at) : kNoElement;
  }
};

// The slots of all threads in a table, because operations look at every one of them.
template <class Slots>
struct SlotMap {
  int layout, seed, capacity;
  uint32_t elements[Slots::kThreads * Slots::kMost];

  uint32_t at(int thread, int slot) const { return elements[thread * capacity + slot]; }

  static const SlotMap& get() {
    // Policies are constant during a launch, not between launches.
    static thread_local SlotMap map = {-1, 0, 0, {}};
    const int layout = Slots::layout(), seed = policies().seed;
    if (map.layout != layout || map.seed != seed) {
      map.fill(layout, seed);
    }
    return map;
  }

 private:
  void fill(int new_layout, int new_seed) {
    layout = new_layout;
    seed = new_seed;
    capacity = Slots::capacity(layout);
    for (int thread = 0; thread < Slots::kThreads; thread++) {
      for (int slot = 0; slot < capacity; slot++) {
        elements[thread * capacity + slot] = Slots::element(layout, thread, slot);
      }
    }
  }
};

}  // namespace emu

EMU_SHIM_END
