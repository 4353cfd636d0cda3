#pragma once

#include "common/float_type.h"
#include "formats/packed_matrix.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_tiles.h"

namespace mto {

constexpr int kMaxHeadDim = 576;  // of queries and keys, and of values

// Element (b, h, i, j) of an operand is data[batch[b] + h * head + i * row + j * column], counted
// in elements of its type. A stride is 0 where the operand broadcasts, or lacks the axis.
struct AttentionOperand {
  const void* data = nullptr;
  const int64_t* batch = nullptr;
  int64_t head = 0, row = 0, column = 0;
  FloatType type = FloatType::kFloat32;

  explicit operator bool() const { return data != nullptr; }
  int64_t offset(int64_t b, int64_t h, int64_t i = 0, int64_t j = 0) const {
    return batch[b] + h * head + i * row + j * column;
  }
};

// Keys or values as quantized_matmul's packed rows: n values of `bits` bits a row. Offsets of
// `codes` count bytes. Other modes than "affine" have no biases but a decoder, and what it has to
// know of the rows of any head.
struct AttentionPacked {
  AttentionOperand codes, scales, biases;
  int bits = 0;
  int group_size = 0;
  Decoder decode = nullptr;
  const PackedMatrix* matrix = nullptr;
};

enum class MaskKind : int32_t { kNone, kBool, kAdditive };

// One call, every batch element and head of it. Operands that an option lacks are null. Axes of
// size 1 broadcast; the last axis of q, k, v, out and d_out is dense (column == 1).
struct AttentionParams {
  int64_t n_batch, n_heads, n_kv_heads;  // query head h reads KV head h / group()
  int64_t n_q, n_k, d, d_v;
  FloatType type;  // of q, k, v, out, and of the gradients unless said otherwise
  float scale;
  float softcap;  // 0: none

  AttentionOperand q;        // [b, n_heads, n_q, d]
  AttentionOperand k, v;     // [b, n_kv_heads, n_k, d or d_v]
  AttentionPacked k_packed;  // instead of k and v, where the call is a quantized one
  AttentionPacked v_packed;
  MaskKind mask_kind = MaskKind::kNone;
  AttentionOperand mask;        // [b, n_heads, n_q, n_k]; bytes when kBool, true = visible
  AttentionOperand alibi;       // float32 [b, n_heads]
  AttentionOperand sinks;       // float32 [b, n_heads]
  AttentionOperand q_segments;  // int32 [b, n_q] along `row`
  AttentionOperand k_segments;  // int32 [b, n_k] along `row`
  AttentionOperand
      block_mask;  // bytes [b, n_heads, ceil(n_q / block_rows), ceil(n_k / block_keys)]
  int32_t block_rows = 1, block_keys = 1;
  const RowKeys* rows;  // [n_q], from causality, window and documents

  // Query heads a KV head; without any head there is none.
  int64_t group() const { return n_kv_heads == 0 ? 0 : n_heads / n_kv_heads; }

  void* out;   // [n_batch, n_heads, n_q, d_v], dense
  float* lse;  // [n_batch, n_heads, n_q], dense
};

// The backward pass of the same call. Results are dense; those that are null are not wanted.
struct AttentionGradParams {
  AttentionParams forward;      // its `out` and `lse` are null
  AttentionOperand out, d_out;  // [b, n_heads, n_q, d_v]
  AttentionOperand lse, d_lse;  // float32 [b, n_heads, n_q] along `row`
  FloatType grad_type;          // of d_q, d_k, d_v: float32 where a sum over batches follows

  void* d_q;       // [n_batch, n_heads, n_q, d]
  void* d_k;       // [n_batch, n_kv_heads, n_k, d]
  void* d_v;       // [n_batch, n_kv_heads, n_k, d_v]
  float* d_alibi;  // [n_batch, n_heads]
  // float32, dense over the mask's own shape, with the mask's strides of 0: each element is the sum
  // over all that it was broadcast to.
  AttentionOperand d_mask;
};

}  // namespace mto
