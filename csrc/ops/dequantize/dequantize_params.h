#pragma once

#include "common/float_type.h"
#include "formats/packed_matrix.h"

namespace mto {

// out [n_rows, n_cols] = decoded w; everything row-contiguous, groups along a row.
struct DequantizeParams {
  const uint8_t* w;
  const void* scales;
  const void* biases;
  void* out;
  FloatType scales_type;
  FloatType biases_type;
  FloatType out_type;
  int64_t n_rows, n_cols;
  int bits;
  int group_size;
};

struct DecodedRow {
  PackedMatrix matrix;
  Decoder decode;
  void* out;
  FloatType out_type;
};

}  // namespace mto
