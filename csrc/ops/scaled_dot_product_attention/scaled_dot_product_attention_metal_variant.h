#pragma once

// Which Metal kernel makes the forward pass of many rows, and what a simdgroup has of it: a
// function of the shape alone. It is one for every generation of GPUs: all have as many registers
// and as much threadgroup memory, and whether they have matrix units is the operations' affair.

#include <cstdint>

#include "common/integers.h"

namespace mto {

struct AttentionMetalVariant {
  enum Kind { kRows, kWide };
  Kind kind;
  int rows, keys;  // of a tile
  int width;       // columns of the output that a simdgroup has
  // kRows: weights may stay in registers between the products. kWide: q is kept in threadgroup
  // memory.
  bool registers, share_q;
  int splits;  // simdgroups that share rows

  bool operator==(const AttentionMetalVariant&) const = default;
};

// 16 rows: taller tiles read K and V less often, but hold their output in registers, and a diagonal
// or a window cuts off more of them. 32 keys: the least that a cooperative operand takes, and what
// a width of 128 leaves registers for.
constexpr int kAttentionTileRows = 16, kAttentionTileKeys = 32;

// 32-bit registers of a lane for a tile: scores, their copy as weights (an operation may make one),
// output, and four values a row, each of which a lane may hold for the two rows that it has part
// of.
constexpr int64_t attention_registers(int64_t rows, int64_t keys, int64_t width) {
  return (2 * rows * keys + rows * width) / 32 + 4 * 2;
}
// A thread of Apple's GPUs has 128 before it spills, of which some hold addresses and constants.
constexpr int64_t kAttentionRegisters = 112;

// The widths that kernels are made for: those of common heads, for what is padded is computed.
constexpr int kAttentionWidths[] = {32, 64, 96, 128};
constexpr int kAttentionWidthMax = 128;
static_assert(attention_registers(kAttentionTileRows, kAttentionTileKeys, kAttentionWidthMax) <=
              kAttentionRegisters);

constexpr int attention_width(int64_t n_columns) {
  for (int width : kAttentionWidths) {
    if (n_columns <= width) return width;
  }
  return kAttentionWidthMax;
}

// Bytes of threadgroup memory of the wide kernel, beside q: facts of rows, weights, maxima and
// sums.
constexpr int64_t attention_wide_memory(int64_t splits) {
  constexpr int64_t kRow = 20, kFloat = 4;
  return splits * kAttentionTileRows * (kRow + kAttentionTileKeys * kFloat + 2 * kFloat) + 64;
}
constexpr int64_t kThreadgroupMemory = 32 * 1024;

inline AttentionMetalVariant attention_metal_variant(int64_t n_keys, int64_t d, int64_t d_v,
                                                     int64_t item_bytes) {
  constexpr int kRows = kAttentionTileRows, kKeys = kAttentionTileKeys;
  if (d_v <= kAttentionWidthMax) {
    // An operand in registers has whole tiles of keys: the last one is moved back.
    return {AttentionMetalVariant::kRows,
            kRows,
            kKeys,
            attention_width(d_v),
            n_keys >= kKeys,
            false,
            1};
  }
  int splits = static_cast<int>(ceil_div(d_v, kAttentionWidthMax));
  bool share_q = kRows * d * item_bytes + attention_wide_memory(splits) <= kThreadgroupMemory;
  return {AttentionMetalVariant::kWide,
          kRows,
          kKeys,
          attention_width(ceil_div(d_v, splits)),
          false,
          share_q,
          splits};
}

}  // namespace mto
