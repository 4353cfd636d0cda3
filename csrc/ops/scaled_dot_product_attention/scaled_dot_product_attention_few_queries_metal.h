#pragma once

// Attention of few queries on Metal, as both ops launch it.

#include <string>
#include <utility>
#include <vector>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_variant.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"

namespace mto {

// Keys that any row may see by causality and window. Documents may move rows anywhere.
std::pair<int32_t, int32_t> few_queries_keys(int n_q, int n_k, const AttentionSettings& settings);

// The kernel `op`<types, key columns, value columns, rows> of metal/<op>.metal.
struct FewQueriesKernel {
  std::string op, types;
  int64_t key_bytes;  // of a key and its value
  bool aligned_keys = false, aligned_values = false;
};
// Launches it, and the merge.
void launch_few_queries(metal::Encoder& encoder, AttentionMetalBinding& binding,
                        const AttentionSettings& settings, const FewQueriesKernel& kernel,
                        std::vector<mx::array>& outputs);

// Dense keys and values, bound.
void eval_few_queries(metal::Encoder& encoder, AttentionMetalBinding& binding,
                      const std::vector<mx::array>& inputs, const AttentionSettings& settings,
                      std::vector<mx::array>& outputs);

}  // namespace mto
