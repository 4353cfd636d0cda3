#pragma once

#include "tile/affine_tile.h"
#include "tile/coded_groups.h"
#include "tile/cooperative.h"

// Packed rows as operands of products: 32 rows, and 32 columns of them at a time, pass through
// threadgroup memory as they are packed and are decoded in registers.

namespace mto {

template <typename Groups>
struct PackedTile {
  enum {
    kRowWords = Groups::kBits,
    kGroups = Groups::kGroupSize < 32 ? 32 / Groups::kGroupSize : 1
  };
  uint words[32 * kRowWords];
  float2 parameters[32 * kGroups];  // scale and bias
};

// Rows of codes `stride` words apart, and their groups.
template <typename Groups>
struct PackedOperand {
  using Tile = PackedTile<Groups>;

  const device uint* words;
  int64_t stride;
  Groups groups;

  // The codes from a column on, which is a multiple of 32, of rows first .. first + n_rows; others
  // become 0.
  void load_codes(threadgroup Tile& tile, int first, int n_rows, int column,
                  int lane) const thread {
    const device uint* start = words + first * stride + column / 32 * Tile::kRowWords;
    for (int i = lane; i < 32 * Tile::kRowWords; i += kLanes) {
      const int row = i / Tile::kRowWords, word = i % Tile::kRowWords;
      tile.words[i] = row < n_rows ? start[row * stride + word] : 0;
    }
  }
  // What the lane's row has of a group; zeros behind the last row.
  float2 parameters(int first, int n_rows, int group, int lane) const thread {
    return lane < n_rows ? groups.parameters(first + lane, group) : float2(0.0f);
  }
  // Of all groups that the columns are in.
  void load_parameters(threadgroup Tile& tile, int first, int n_rows, int column,
                       int lane) const thread {
    for (int i = 0; i < Tile::kGroups; ++i) {
      const int group = column / Groups::kGroupSize + i;
      tile.parameters[lane * Tile::kGroups + i] = parameters(first, n_rows, group, lane);
    }
  }
};

// Makes the i-th of a tile's groups decode to what its codes stand for, and the others to 0.
template <typename Groups>
inline void take_group(threadgroup PackedTile<Groups>& tile, int i, int lane) {
  constexpr int kGroups = PackedTile<Groups>::kGroups;
  for (int g = 0; g < kGroups; ++g) {
    tile.parameters[lane * kGroups + g] = float2(g == i ? 1.0f : 0.0f, 0.0f);
  }
}

template <int Run, typename Groups, typename Operand>
inline void decode_packed_runs(thread Operand& operand,
                               const threadgroup PackedTile<Groups>& tile) {
  using T = typename Operand::value_type;
  using Tile = PackedTile<Groups>;
  MTO_UNROLL for (ushort i = 0; i < operand.get_capacity(); i += Run) {
    if (!operand.is_valid_element(i)) continue;
    auto at = operand.get_multidimensional_index(i);
    uint codes = codes_at<Groups::kBits, Run>(tile.words + at[1] * Tile::kRowWords, at[0]);
    float2 parameters = tile.parameters[at[1] * Tile::kGroups + at[0] * Tile::kGroups / 32];
    for (ushort j = 0; j < Run; ++j) {
      const uint code = codes >> (j * Groups::kBits) & ((1u << Groups::kBits) - 1);
      operand[i + j] = T(Groups::value(code, parameters));
    }
  }
}

// Makes the elements [column, row] of an operand those of the tile, rounded once where the operand
// is narrower. `run` is the operand's run_length.
template <typename Groups, typename Operand>
inline void decode_packed(thread Operand& operand, const threadgroup PackedTile<Groups>& tile,
                          int run) {
  if (run == 4) {
    decode_packed_runs<4>(operand, tile);
  } else if (run == 2) {
    decode_packed_runs<2>(operand, tile);
  } else {
    decode_packed_runs<1>(operand, tile);
  }
}

}  // namespace mto
