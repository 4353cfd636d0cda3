#pragma once

#include <vector>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_params.h"

namespace mto {

// The mask's own shape, where d_mask is wanted, and of the batch elements that share a mask the
// first.
struct AttentionGradMask {
  int64_t n_heads = 0, n_rows = 0, n_keys = 0;
  std::vector<int64_t> batches;
};

// Both passes on all cores. Work is cut by shapes alone, and where its parts add up, by
// the ranges of rows; results do not depend on the cuts of the forward pass. A workspace has the
// given number of floats.
int64_t attention_workspace(const AttentionParams& params);
void attention_forward(const AttentionParams& params, float* workspace);

int64_t attention_grad_workspace(const AttentionGradParams& params);
void attention_backward(const AttentionGradParams& params, const AttentionGradMask& mask,
                        float* workspace);

}  // namespace mto
