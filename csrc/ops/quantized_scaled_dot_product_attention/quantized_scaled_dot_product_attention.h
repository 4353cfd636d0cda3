#pragma once

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

// Keys or values as quantize() returns them, and how. Groups run along the last axis.
struct QuantizedOperand {
  std::vector<mx::array> arrays;  // packed codes, scales, and biases where the mode has them
  std::optional<int> group_size, bits;
  std::string mode;
};

// The output in q's dtype, and the logsumexp of each row.
std::pair<mx::array, mx::array> quantized_scaled_dot_product_attention(
    const mx::array& q, const QuantizedOperand& k, const QuantizedOperand& v, double scale,
    const AttentionOptions& options, mx::StreamOrDevice s);

}  // namespace mto
