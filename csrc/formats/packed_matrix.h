#pragma once

// A packed matrix as kernels see it.

#include "formats/formats.h"

namespace mto {

// What a scale is stored as.
enum class ScaleType : int32_t { kFloat32, kFloat16, kBFloat16, kE8M0, kE4M3 };

struct PackedMatrix {
  const uint8_t* w = nullptr;
  const void* scales = nullptr;  // [ceil(n_rows / group_rows), ceil(n_cols / group_cols)]
  const void* biases = nullptr;  // of the shape of scales, or null
  const float* global_scale = nullptr;
  ScaleType scale_type = ScaleType::kFloat32, bias_type = ScaleType::kFloat32;
  int64_t n_rows = 0, n_cols = 0;
  int64_t row_bytes = 0;
  int64_t group_rows = 1, group_cols = 1;
  int64_t scales_stride = 0;  // of a row of scales
  int bits = 0;
  Layout layout = Layout::kLowFirst;
  const Levels* levels = nullptr;
  int block = 0, block_bytes = 0;
  void (*decode_block)(const uint8_t* block, float* values) = nullptr;  // of a user's format
};

// Writes the values first .. first + n of a row, n a multiple of 32 and zeros beyond the end of the
// row: the i-th vector of the instruction set to out + i * step.
using Decoder = void (*)(const PackedMatrix& matrix, int64_t row, int64_t first, int64_t n,
                         float* out, int64_t step);

}  // namespace mto
