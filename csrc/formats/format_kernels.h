#pragma once

#include "cpu/isa.h"
#include "formats/packed_matrix.h"

namespace mto {

// The decoders of one instruction set.
struct FormatKernels {
  Decoder (*decoder)(std::string_view mode, int bits, Layout layout);
};

MTO_DECLARE_KERNELS(FormatKernels, format_kernels)

}  // namespace mto
