#pragma once

#include "cpu/isa.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_params.h"

namespace mto {

struct AttentionRange {
  int64_t begin, end;
};

struct ScaledDotProductAttentionKernels {
  // out and lse of some rows of query head h of batch element b.
  void (*forward)(const AttentionParams& params, int64_t b, int64_t h, AttentionRange rows);
  // d_q, d_k, d_v and d_alibi of batch element b, as far as KV head kv_head and the query heads
  // that read it have a part in them. sums has [n_batch, n_kv_heads, n_k, d + d_v] for d_k and d_v.
  void (*backward)(const AttentionGradParams& params, int64_t b, int64_t kv_head, float* sums);
  // d_mask at rows and keys of the mask (its only one where it broadcasts), of head h of it and of
  // the batch elements that share the mask of batch element b.
  void (*mask_grad)(const AttentionGradParams& params, int64_t b, int64_t h, AttentionRange rows,
                    AttentionRange keys);
};

MTO_DECLARE_KERNELS(ScaledDotProductAttentionKernels, scaled_dot_product_attention_kernels)

}  // namespace mto
