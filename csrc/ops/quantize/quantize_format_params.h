#pragma once

#include "common/float_type.h"
#include "formats/packed_matrix.h"

namespace mto {

// w_q and scales of w [n_rows, n_cols], a matrix of any format but affine.
struct QuantizeFormatParams {
  const void* w;
  uint8_t* w_q;
  void* scales;  // uint8 or float32
  FloatType type;
  PackedMatrix matrix;  // its geometry
  Coding coding;
  Scales scale_kind;
  bool of_mlx;
};

}  // namespace mto
