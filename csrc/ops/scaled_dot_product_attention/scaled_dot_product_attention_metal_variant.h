#pragma once

// Which Metal kernel makes the forward pass of many rows, and what a simdgroup has of it: a
// function of the shape alone.

#include <cstdint>

#include "common/integers.h"

namespace mto {

struct AttentionMetalVariant {
  int rows, keys;  // of a tile
  int width;       // columns of the output that a simdgroup has
  bool registers;  // weights may stay in registers between the products

  bool operator==(const AttentionMetalVariant&) const = default;
};

// 32-bit registers of a lane for a tile: scores, their copy as weights (an operation may make one),
// output, and four values a row, which each lane may hold for as many rows as it has slots in a
// column.
constexpr int64_t attention_registers(int64_t rows, int64_t keys, int64_t width) {
  return (2 * rows * keys + rows * width) / 32 + 4 * 2;
}
// A thread of Apple's GPUs has 128 before it spills, of which some hold addresses and constants.
constexpr int64_t kAttentionRegisters = 112;

// The widths that kernels are made for. Wider outputs are cut into chunks, each with the scores
// again.
constexpr int kAttentionWidths[] = {32, 64, 96, 128};

constexpr int attention_width(int64_t d_v) {
  for (int width : kAttentionWidths) {
    if (d_v <= width) return width;
  }
  // The fewest chunks, and of those the least padding.
  int64_t chunks = ceil_div(d_v, 128);
  return chunks * 96 >= d_v ? 96 : 128;
}

// 16 rows: taller tiles read K and V less often, but hold their output in registers, and a diagonal
// or a window cuts off more of them. 32 keys: the least that a cooperative operand takes, and what
// the width of 128 leaves registers for.
inline AttentionMetalVariant attention_metal_variant(int64_t n_keys, int64_t d_v) {
  constexpr int kRows = 16, kKeys = 32;
  static_assert(attention_registers(kRows, kKeys, 128) <= kAttentionRegisters);
  return {kRows, kKeys, attention_width(d_v), n_keys >= kKeys};
}

}  // namespace mto
