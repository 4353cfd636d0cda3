#pragma once

// What the Metal kernels of attention and their launch share. C++ and Metal.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_tiles.h"

namespace mto {

// Operands, by the index of their buffers.
enum AttentionMetalOperand {
  kAttentionQ,
  kAttentionK,
  kAttentionV,
  kAttentionMask,       // bytes; see AttentionMaskType
  kAttentionAlibi,      // float
  kAttentionSinks,      // float
  kAttentionQSegments,  // int, along `row`
  kAttentionKSegments,  // int, along `row`
  kAttentionBlockMask,  // bytes
  kAttentionOut,        // an output of the forward pass, an input of the backward pass
  kAttentionLse,        // float, along `row`; the same
  kAttentionDOut,
  kAttentionDLse,  // float, along `row`
  kAttentionDMask,
  // Of packed keys and values, whose codes stand in for k and v.
  kAttentionKScales,
  kAttentionKBiases,
  kAttentionVScales,
  kAttentionVBiases,
  kAttentionOperands,  // so many
};

// The other buffers. Those from kAttentionOwn on are a kernel's own.
enum {
  kAttentionParams = kAttentionOperands,
  kAttentionBatch,  // the table of metal/tile/batch.h for all operands
  kAttentionRows,   // RowKeys of each row, where there are documents
  kAttentionOwn,
};

// Function constants: the numbers in metal/tile/attention_options.h.
enum AttentionMetalOption {
  kAttentionHasMask,
  kAttentionMaskTypeOption,
  kAttentionHasSoftcap,
  kAttentionHasAlibi,
  kAttentionHasSinks,
  kAttentionHasSegments,
  kAttentionHasDocuments,
  kAttentionHasBlocks,
  kAttentionOptions,  // so many
};

enum {
  kAttentionSimdgroups = 4,  // of a threadgroup, each with rows of its own
};

enum AttentionMaskType { kBoolMask, kFloatMask, kHalfMask, kBFloatMask };

// Element (b, h, i, j) is at start + (offset of b in the table) + h * head + i * row + j * column,
// in elements. A stride is 0 where the operand broadcasts, or lacks the axis. `row` of an operand
// that a tensor operation reads is positive and has 32 bits, and its `column` is 1.
struct AttentionMetalStrides {
  int64_t start, head, row, column;
};

struct ScaledDotProductAttentionMetalParams {
  int32_t n_batch, n_batch_dims;
  int32_t n_heads, n_kv_heads;  // query head h reads KV head h / (n_heads / n_kv_heads)
  int32_t n_q, n_k, d, d_v;
  float scale, softcap;
  int32_t window_left, window_right;
  int32_t block_rows, block_keys;
  AttentionMetalStrides operands[kAttentionOperands];
};

// cu_seqlens of queries and keys, for the kernel that makes RowKeys of them.
struct AttentionDocumentsMetalParams {
  int64_t q_start, q_stride, k_start, k_stride;
  int32_t n_documents, n_q, n_k;
  int32_t window_left, window_right;
};

}  // namespace mto
