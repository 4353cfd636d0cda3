#pragma once

#include "tile/affine_groups.h"
#include "tile/affine_tile.h"

// Packed rows as operands of products: 32 rows, and 32 columns of them at a time, pass through
// threadgroup memory as they are packed and are decoded in registers.

namespace mto {

template <typename Groups>
using PackedTile = AffineTile<Groups::kBits, Groups::kGroupSize, 32, 32>;

// Rows of codes `stride` words apart, and their groups.
template <typename Groups>
struct PackedOperand {
  const device uint* words;
  int64_t stride;
  Groups groups;

  // The codes from a column on, which is a multiple of 32, of rows first .. first + n_rows; others
  // become 0.
  void load_codes(threadgroup PackedTile<Groups>& tile, int first, int n_rows, int column,
                  int lane) const thread {
    const device uint* start = words + first * stride + column / 32 * Groups::kBits;
    load_words(tile, start, int(stride), n_rows, 32, lane);
  }
  // What the lane's row has of the group of a column; zeros behind the last row.
  float2 parameters(int first, int n_rows, int column, int lane) const thread {
    if (lane >= n_rows) return float2(0.0f);
    return groups.parameters(first + lane, column / Groups::kGroupSize);
  }
};

}  // namespace mto
