#pragma once

#include "cpu/isa.h"
#include "ops/quantize/quantize_format_params.h"

namespace mto {

struct QuantizeFormatKernels {
  // The groups of rows begin .. end of groups. w_q is zero before.
  void (*groups)(const QuantizeFormatParams& params, int64_t begin, int64_t end);
};

MTO_DECLARE_KERNELS(QuantizeFormatKernels, quantize_format_kernels)

}  // namespace mto
