#pragma once

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

// Attention by MLX's ops: out and lse of canonical inputs, with every option, differentiable to any
// order. Memory is quadratic. Shapes follow the inputs under mx.compile(shapeless=True).
std::vector<mx::array> attention_graph(const std::vector<mx::array>& inputs,
                                       const AttentionSettings& settings, mx::Stream s);

}  // namespace mto
