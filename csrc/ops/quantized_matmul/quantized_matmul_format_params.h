#pragma once

#include "formats/packed_matrix.h"
#include "ops/quantized_matmul/quantized_matmul_params.h"

namespace mto {

// One product with a matrix of any format. Of `product` the packed matrix is not used.
struct FormatProduct {
  QuantizedMatmulParams product;
  PackedMatrix matrix;
  Decoder decode;
};

}  // namespace mto
