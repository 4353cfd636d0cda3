#include <metal_stdlib>

#include "tile/batch.h"

using namespace metal;

// A row-contiguous copy. `table` has the size and the stride of each axis.
template <typename T>
[[kernel]] void copy_strided(const device T* from [[buffer(0)]], device T* to [[buffer(1)]],
                             constant int64_t* table [[buffer(2)]],
                             constant int& n_axes [[buffer(3)]],
                             constant int64_t& start [[buffer(4)]],
                             constant int64_t& n [[buffer(5)]],
                             uint i [[thread_position_in_grid]]) {
  if (i < n) to[i] = from[start + mto::batch_offsets<1>(table, n_axes, i).of[0]];
}
