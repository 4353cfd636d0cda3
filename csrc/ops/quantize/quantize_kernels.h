#pragma once

#include "cpu/isa.h"
#include "ops/quantize/quantize_params.h"

namespace mto {

struct QuantizeKernels {
  void (*groups)(const QuantizeParams& params, int64_t begin, int64_t end);
};

MTO_DECLARE_KERNELS(QuantizeKernels, quantize_kernels)

}  // namespace mto
