#pragma once

#include "cpu/isa.h"
#include "ops/dequantize/dequantize_params.h"

namespace mto {

struct DequantizeKernels {
  // Groups begin .. end of the whole array, counted row by row.
  void (*groups)(const DequantizeParams& params, int64_t begin, int64_t end);
  // A row of a matrix of any format, to elements of the output from `first` on.
  void (*row)(const DecodedRow& decoded, int64_t row, int64_t first);
};

MTO_DECLARE_KERNELS(DequantizeKernels, dequantize_kernels)

}  // namespace mto
