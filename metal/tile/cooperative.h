#pragma once

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#include <metal_stdlib>

// Verbs over cooperative tensors. Which lane holds which element is the GPU's affair: everything
// goes by the coordinates of a slot, [0] the column, [1] the row.

// Slots are registers only where their numbers are constants.
#define MTO_UNROLL _Pragma("clang loop unroll(full)")

namespace mto {

template <typename Tile>
inline void clear(thread Tile& tile) {
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) tile[i] = 0;
}

// Whether the slots of every lane come in runs of `Run` neighbours in a row, each run at a multiple
// of `Run`.
template <int Run, typename Tile>
inline bool has_runs(thread Tile& tile) {
  bool holds = tile.get_capacity() % Run == 0;
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    ushort first = i / Run * Run;
    auto at = tile.get_multidimensional_index(i);
    auto start = tile.get_multidimensional_index(first);
    holds = holds && tile.is_valid_element(i) && start[0] % Run == 0 &&
            at[0] == start[0] + i - first && at[1] == start[1];
  }
  return metal::simd_all(holds);
}

// The longest runs of these that a tile has, the same in all lanes.
template <typename Tile>
inline int run_length(thread Tile& tile) {
  return has_runs<4>(tile) ? 4 : has_runs<2>(tile) ? 2 : 1;
}

// Rounds to T. `out`, a pointer to T, is the tile's first element in a matrix of `stride` columns,
// of which the tile covers n_rows x n_cols.
template <typename T, typename Tile, typename Out>
inline void store_as(thread Tile& tile, Out out, int stride, int n_rows, int n_cols) {
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    if (!tile.is_valid_element(i)) continue;
    auto at = tile.get_multidimensional_index(i);
    if (at[1] < n_rows && at[0] < n_cols) out[at[1] * stride + at[0]] = T(tile[i]);
  }
}

template <typename Tile, typename T>
inline void store(thread Tile& tile, device T* out, int stride, int n_rows, int n_cols) {
  store_as<T>(tile, out, stride, n_rows, n_cols);
}

}  // namespace mto
