#pragma once

#include "tile/cooperative.h"

// Row values of cooperative tiles: one-dimensional tensors, in which a row has the same slot as in
// any other of the same type.

namespace mto {

template <typename Tensor>
inline void fill(thread Tensor& values, float value) {
  MTO_UNROLL for (ushort i = 0; i < values.get_capacity(); ++i) values[i] = value;
}

// Multiplies each row of a tile by its factor. Factors of another operation's rows may not fit the
// tile's slots: then they go through `memory`, which holds a tile's rows, and is free before and
// after.
template <int Rows, typename Tile, typename Factors>
inline void scale_rows(thread Tile& tile, thread Factors& factors, threadgroup float* memory) {
  using namespace metal;
  if (mpp::tensor_ops::is_iterator_compatible(tile, factors)) {
    MTO_UNROLL for (auto it = tile.begin(); it != tile.end(); ++it) {
      if (it.is_valid_element()) *it *= *factors.map_iterator(it);
    }
    return;
  }
  tensor<threadgroup float, extents<int, Rows>, tensor_inline> rows(memory, extents<int, Rows>());
  factors.store(rows);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    if (tile.is_valid_element(i)) tile[i] *= memory[tile.get_multidimensional_index(i)[1]];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

}  // namespace mto
