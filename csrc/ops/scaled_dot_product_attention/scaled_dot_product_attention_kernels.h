#pragma once

#include "cpu/isa.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_params.h"

namespace mto {

struct AttentionRange {
  int64_t begin, end;
};

// Query rows of one KV head: those of the first query head that reads it, and so on. No more at a
// time than this.
constexpr int64_t kMaxAttentionRows = 192;
// Keys are taken in tiles, which can be done apart.
constexpr int64_t kAttentionTile = 256;

constexpr int64_t kAttentionPadding = 16;  // in floats; the longest vector
constexpr int64_t attention_padded(int64_t n) {
  return (n + kAttentionPadding - 1) / kAttentionPadding * kAttentionPadding;
}
// The sums of n_rows rows over a part of the keys: highest score, total, and values.
constexpr int64_t attention_sums_floats(int64_t n_rows, int64_t d_v) {
  return 2 * (attention_padded(n_rows) + kAttentionPadding) + n_rows * attention_padded(d_v);
}

// Floats between rows of the sums of d_q.
constexpr int64_t attention_d_q_stride(int64_t d) { return attention_padded(d); }

// Rows of a KV head whose sums of d_q are kept, or not, together.
constexpr int64_t kAttentionGradRows = 64;

// Sums of d_q [rows, attention_d_q_stride] of one KV head over some of the keys. Rows that see none
// of them have none: `touched` has a byte for each kAttentionGradRows rows.
struct AttentionQueryGrads {
  float* sums;
  uint8_t* touched;
};

struct ScaledDotProductAttentionKernels {
  // out and lse of some rows.
  void (*forward)(const AttentionParams& params, int64_t b, int64_t kv_head, AttentionRange rows);
  // The sums of some rows over one tile of keys; merge makes out and lse of those of all tiles, to
  // the same bits as forward.
  void (*forward_tile)(const AttentionParams& params, int64_t b, int64_t kv_head,
                       AttentionRange rows, int64_t tile, float* sums);
  void (*merge)(const AttentionParams& params, int64_t b, int64_t kv_head, AttentionRange rows,
                float* sums, int64_t n_tiles);

  // The constants of some rows of a query head, in [n_batch, n_heads, n_q].
  void (*grad_constants)(const AttentionGradParams& params, int64_t b, int64_t h,
                         AttentionRange rows, float* constants);
  // d_k and d_v of some tiles of keys of a KV head, d_q over these keys, and d_alibi [tiles, heads
  // of the KV head], all tiles', of these.
  void (*backward)(const AttentionGradParams& params, const float* constants, int64_t b,
                   int64_t kv_head, AttentionRange tiles, AttentionQueryGrads d_q, float* d_alibi);
  // d_q of kAttentionGradRows rows or fewer of [n_batch * n_heads * n_q], from n_parts sums that
  // are `part_floats` apart, and bytes that tell which there are, `part_bytes` apart.
  void (*write_d_q)(const AttentionGradParams& params, AttentionRange rows,
                    AttentionQueryGrads parts, int64_t n_parts, int64_t part_floats,
                    int64_t part_bytes);
  // d_mask at rows and keys (a tile of them at most) of the mask, its only one where it broadcasts,
  // of head h of it and of the batch elements that share the mask of batch element b.
  void (*mask_grad)(const AttentionGradParams& params, const float* constants, int64_t b, int64_t h,
                    AttentionRange rows, AttentionRange keys);
};

MTO_DECLARE_KERNELS(ScaledDotProductAttentionKernels, scaled_dot_product_attention_kernels)

}  // namespace mto
