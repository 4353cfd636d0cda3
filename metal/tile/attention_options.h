#pragma once

#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_params.h"
#include "tile/batch.h"

// The options of a call are function constants: one text serves all of them. The numbers are those
// of AttentionMetalOption.
constant bool attention_has_mask [[function_constant(0)]];
constant int attention_mask_type [[function_constant(1)]];
constant bool attention_has_softcap [[function_constant(2)]];
constant bool attention_has_alibi [[function_constant(3)]];
constant bool attention_has_sinks [[function_constant(4)]];
constant bool attention_has_segments [[function_constant(5)]];
constant bool attention_has_documents [[function_constant(6)]];
constant bool attention_has_blocks [[function_constant(7)]];

// The parameters of a kernel for what the options bring along; numbers of AttentionMetalOperand.
#define MTO_ATTENTION_OPTIONS                                                                \
  const device uchar *mask [[buffer(3), function_constant(attention_has_mask)]],             \
      const device float *alibi [[buffer(4), function_constant(attention_has_alibi)]],       \
      const device float *sinks [[buffer(5), function_constant(attention_has_sinks)]],       \
      const device int *q_segments [[buffer(6), function_constant(attention_has_segments)]], \
      const device int *k_segments [[buffer(7), function_constant(attention_has_segments)]], \
      const device uchar *block_mask [[buffer(8), function_constant(attention_has_blocks)]], \
      constant mto::ScaledDotProductAttentionMetalParams &params [[buffer(18)]],             \
      constant int64_t *batch [[buffer(19)]],                                                \
      const device mto::RowKeys *rows [[buffer(20), function_constant(attention_has_documents)]]

namespace mto {

using AttentionParams = ScaledDotProductAttentionMetalParams;
// Of each operand in one batch element.
using AttentionStarts = BatchOffsets<kAttentionOperands>;

inline AttentionStarts attention_starts(constant AttentionParams& params, constant int64_t* batch,
                                        uint b) {
  return batch_offsets<kAttentionOperands>(batch, params.n_batch_dims, b);
}

// Where head h of an operand starts.
inline int64_t head_of(constant AttentionParams& params, thread const AttentionStarts& starts,
                       int operand, int h) {
  return starts.of[operand] + params.operands[operand].start + h * params.operands[operand].head;
}

inline int kv_head_of(constant AttentionParams& params, int h) {
  return h / (params.n_heads / params.n_kv_heads);
}

}  // namespace mto
