#pragma once

// Arrays of any strides, as kernels read them where they lie.

#include <utility>
#include <vector>

#include "metal/encoder.h"

namespace mto::metal {

// The elements begin .. end, counted from the first, between which an array lies.
std::pair<int64_t, int64_t> span_of(const mx::array& a);

// The stride along each of the batch dimensions, to which all but the last n_own axes broadcast; 0
// where the array has one element, or no such axis.
std::vector<int64_t> batch_strides(const mx::array& a, const mx::Shape& batch, int n_own);

// The rows of metal/tile/batch.h's table for dimensions of `batch`, of operands with such strides.
// Dimensions that all operands step through evenly are one.
std::vector<int64_t> batch_table(const mx::Shape& batch,
                                 const std::vector<std::vector<int64_t>>& strides);

// A row-contiguous copy, which lives until the kernels dispatched with it are done.
mx::array dense_copy(Encoder& encoder, const mx::array& a);

}  // namespace mto::metal
