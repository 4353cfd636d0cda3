#pragma once

#include "cpu/matrices.h"
#include "formats/packed_matrix.h"

namespace mto {

// Points a packed matrix at the `index`-th matrices of the operands from `first` on: w, scales,
// biases or the global scale.
inline void point_at_operands(PackedMatrix& matrix, const std::vector<Matrices>& operands,
                              size_t first, bool affine, int64_t index) {
  matrix.w = static_cast<const uint8_t*>(operands[first][index]);
  if (operands.size() > first + 1) matrix.scales = operands[first + 1][index];
  if (operands.size() <= first + 2) return;
  const void* third = operands[first + 2][index];
  if (affine) {
    matrix.biases = third;
  } else {
    matrix.global_scale = static_cast<const float*>(third);
  }
}

}  // namespace mto
