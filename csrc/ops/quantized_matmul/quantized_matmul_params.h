#pragma once

#include "common/float_type.h"

namespace mto {

// One matrix product: y [m, n] = x [m, k] times a quantized matrix, everything row-contiguous.
// The packed matrix is [n, k] when transposed, else [k, n]; groups run along its last axis.
struct QuantizedMatmulParams {
  const void* x;
  const uint8_t* w;
  const void* scales;
  const void* biases;
  void* y;
  FloatType x_type;  // also that of y
  FloatType scales_type;
  FloatType biases_type;
  int64_t m, n, k;
  int bits;
  int group_size;
  bool transpose;
};

}  // namespace mto
