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

enum {
  kTileSimdgroups = 4,     // side by side, with the same rows of x
  kFewRowsSimdgroups = 4,  // side by side (transposed)
  kFewRowsSplits = 8,      // that share out k (not transposed)
};

}  // namespace mto
