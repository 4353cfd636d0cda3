#pragma once

// What the Metal kernels for few queries and their launch share. C++ and Metal.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_params.h"

namespace mto {

// Rows are the queries of all query heads of a KV head: row = head within the group * n_q + i. A
// threadgroup has up to Rows of them and one split of the keys key_begin .. key_end.
struct FewQueriesParams {
  int32_t n_rows;
  int32_t key_begin, key_end;
  int32_t n_splits, split_keys;
  // Whether a lane's run of dense keys, and of values, may be loaded as a vector.
  int32_t aligned_keys, aligned_values;
};

enum {
  // Of a threadgroup, which share out its keys. Loads in flight hide the latency of memory: with 8
  // there are enough where a call has but 32 threadgroups.
  kFewQueriesSimdgroups = 8,
  kFewQueriesMaxSplits = 128,  // as many threadgroups as occupy the largest GPU
  kFewQueriesMergeThreads = kFewQueriesMaxSplits,
};

// Buffers beside those of all attention kernels.
enum {
  kFewQueriesParams = kAttentionOwn,
  kFewQueriesSums,    // float [rows of all heads, splits, d_v], relative to exp of the first of
  kFewQueriesTotals,  // float2 [rows of all heads, splits]: the highest score, and the total
};

// Function constants beside those of all attention kernels.
enum {
  kFewQueriesSplit = kAttentionOptions,  // whether there are several splits
};

}  // namespace mto
