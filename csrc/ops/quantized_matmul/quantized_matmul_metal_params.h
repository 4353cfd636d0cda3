#pragma once

// What the Metal kernels and their launch share. C++ and Metal.

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace mto {

// y [m, n] = x [m, k] times a packed matrix, [n, k] when transposed, else [k, n]. Beside it the
// kernels get the table of metal/tile/batch.h for x, w, scales and biases. y is dense.
struct QuantizedMatmulMetalParams {
  int32_t m, n, k;
  int32_t n_batch_dims;
};

// Simdgroups of a threadgroup.
enum {
  kTileSimdgroups = 4,  // side by side, with the same rows of x
  kTileStep = 32,       // of k; what a cooperative operand takes, and divides a group
  kFewRowsSplits = 8,   // that share out k (not transposed)
  // Of any format: side by side, and the rows of x that share a decoded weight at most.
  kFormatSimdgroups = 4,
  kFormatRowsMax = 8,
};

// Whether simdgroups share x in threadgroup memory (few rows, transposed). So many rows are more
// than a cache keeps until the next simdgroup wants them; fewer are not worth a barrier.
constexpr bool few_rows_share_x(int rows) { return rows >= 16; }
// Side by side: twice as many share as a small product needs to occupy a GPU.
constexpr int few_rows_simdgroups(int rows) { return few_rows_share_x(rows) ? 8 : 4; }

}  // namespace mto
