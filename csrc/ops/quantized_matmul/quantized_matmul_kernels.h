#pragma once

#include "cpu/isa.h"
#include "ops/quantized_matmul/quantized_matmul_format_params.h"

namespace mto {

struct Range {
  int64_t begin, end;
};

// The CPU kernels of one instruction set. All of them add the products of one output in the same
// order over k, so which one computes an output, and beside which other rows, does not change its
// bits.
struct QuantizedMatmulKernels {
  // At most `few_rows` rows; x_f32 is x as float32 [m, k]; computes the columns of `n`.
  void (*few_rows)(const QuantizedMatmulParams& params, const float* x_f32, Range n);
  // A tile of the output of at most kTileRows x kTileCols.
  void (*tile)(const QuantizedMatmulParams& params, Range m, Range n);
  void (*convert)(FloatType type, const void* x, int64_t n, float* out);
  // The same for a matrix of any format. The rows of x_f32 are `stride` floats apart, and end with
  // zeros if k is not a multiple of 32.
  void (*few_rows_format)(const FormatProduct& product, const float* x_f32, int64_t stride,
                          Range n);
  void (*tile_format)(const FormatProduct& product, Range m, Range n);
  int few_rows_max;
};

MTO_DECLARE_KERNELS(QuantizedMatmulKernels, quantized_matmul_kernels)

}  // namespace mto
