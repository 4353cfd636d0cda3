#pragma once

// The geometry of a packed matrix, as Metal kernels get it. C++ and Metal.

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace mto {

struct PackedParams {
  int64_t row_bytes, scales_stride;  // of a row of w, and of scales
  int32_t n_rows, n_cols;
  int32_t group_rows, group_cols;
};

}  // namespace mto
