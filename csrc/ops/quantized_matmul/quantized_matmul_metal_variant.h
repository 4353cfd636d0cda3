#pragma once

// Which Metal kernel multiplies, and how much of y a simdgroup has: a function of the shape alone.

#include <algorithm>
#include <cstdint>

#include "common/integers.h"

namespace mto {

struct QuantizedMatmulVariant {
  enum Kind { kFewRows, kTiles };
  Kind kind;
  int rows;
  int cols;  // of a lane, where the kernel is kFewRows and the matrix is not transposed

  bool operator==(const QuantizedMatmulVariant&) const = default;
};

// Up to here a weight is read once for all rows, and a row has the same bits among any number.
constexpr int64_t kMetalFewRowsMax = 32;
// Offsets within a tile have 32 bits; beyond this many columns of x or y they could overflow.
constexpr int64_t kMetalTileColsMax = (int64_t{1} << 31) / 64 - 1;
// To decode a weight costs about as much as this many rows of products with it: some five
// operations, beside products on matrix units that are a few times faster. An estimate.
constexpr int64_t kMetalDecodeRows = 16;

inline QuantizedMatmulVariant quantized_matmul_variant(int64_t m, int64_t n, int64_t k,
                                                       bool transpose) {
  if (m <= kMetalFewRowsMax || std::max(n, k) > kMetalTileColsMax) {
    // The fewest rows that hold all, for a lane's work is theirs. 64 sums are what a lane has
    // registers for, beside weights and x; so many columns as that leaves share each load of x.
    int rows = transpose ? 1 : 2;
    while (rows < std::min(m, kMetalFewRowsMax)) rows *= 2;
    return {QuantizedMatmulVariant::kFewRows, rows, rows <= 16 ? 4 : 2};
  }
  // Again 64 sums a lane. A taller tile decodes less, unless half of the last one were empty.
  auto cost = [&](int64_t rows) { return ceil_div(m, rows) * (rows + kMetalDecodeRows); };
  bool tall = cost(64) <= cost(32);
  return {QuantizedMatmulVariant::kTiles, tall ? 64 : 32, tall ? 32 : 64};
}

}  // namespace mto
