#pragma once

// What the Metal kernels of the backward pass and their launch share, beside what the forward pass
// has. C++ and Metal.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_params.h"

namespace mto {

enum {
  kGradRows = 16,           // of a tile of queries, or of keys, that has an owner
  kGradApart = 4,           // simdgroups of a threadgroup, where each owns a tile
  kGradRowSimdgroups = 8,   // of a threadgroup, where each sums up a row
  kGradMaskKeys = 32,       // of a tile of scores
  kGradMaskSimdgroups = 4,  // that share out the tiles that a tile of the mask was added to
};

// Buffers. Of kernels that own tiles of keys `first` is d_k, of the others d_q.
enum {
  kGradConstants = kAttentionOwn,
  kGradFirst,
  kGradValues,
  kGradAlibi,  // parts, one a simdgroup that owns queries
  kGradMask,
  kGradMaskParams,
  kGradMaskBatch,
};

// Function constants.
enum {
  kGradWantsAlibi = kAttentionOptions,
  kGradWantsValues,  // where keys are owned
};

// Of an additive mask: each axis with its size, 1 where it broadcasts. Beside it the kernel gets
// two tables of metal/tile/batch.h that make a batch element of an index: of the dimensions that
// the mask has, and behind it of those that it broadcasts over.
struct AttentionMaskGradParams {
  int32_t n_heads, n_q, n_k;
  int32_t n_own_dims, n_shared_dims;
  int32_t n_shared;  // batch elements to a mask
};

}  // namespace mto
