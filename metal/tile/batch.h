#pragma once

#include <metal_stdlib>

namespace mto {

// Where the index-th matrix of each operand starts, in elements. `table` has a row a batch
// dimension, outermost first: its size, and the stride of each of the N operands.
template <int N>
struct BatchOffsets {
  int64_t of[N];
};

template <int N>
inline BatchOffsets<N> batch_offsets(constant int64_t* table, int n_dims, uint index) {
  BatchOffsets<N> offsets;
  for (int i = 0; i < N; ++i) offsets.of[i] = 0;
  for (int dim = n_dims - 1; dim >= 0; --dim) {
    constant int64_t* row = table + dim * (N + 1);
    uint size = uint(row[0]), at = index % size;
    index /= size;
    for (int i = 0; i < N; ++i) offsets.of[i] += at * row[1 + i];
  }
  return offsets;
}

}  // namespace mto
