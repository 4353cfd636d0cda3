#pragma once

// Which calls the Metal kernels for few queries take, and how they cut them: functions of shapes
// and windows alone.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/integers.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_params.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"

namespace mto {

// A row is a query of one of the query heads of a KV head.
//
// MLX's own limits (8 queries, 32 rows), and for its reason: a matrix unit has rows in tiles of 16,
// of which so few queries leave half or more empty, while up to 32 rows plain arithmetic keeps up
// with memory.
constexpr int64_t kFewQueriesMax = 8, kFewRowsMax = 32;

inline bool are_few_queries(int64_t n_q, int64_t group) {
  return n_q <= kFewQueriesMax && n_q * group <= kFewRowsMax;
}

struct FewQueriesVariant {
  int rows, key_columns, value_columns;  // what a simdgroup has room for
  int32_t key_begin, key_end;            // keys that any row may see
  int32_t n_splits, split_keys;

  bool operator==(const FewQueriesVariant&) const = default;
};

// Columns that lanes share out evenly: 2 a lane, 4, 8, or 20.
inline int few_queries_columns(int64_t d) {
  return d <= 64 ? 64 : d <= 128 ? 128 : d <= 256 ? 256 : 640;
}

// `n_heads` counts KV heads of all batch elements.
inline FewQueriesVariant few_queries_variant(int64_t n_heads, int64_t n_rows, int64_t d,
                                             int64_t d_v, int64_t key_begin, int64_t key_end) {
  // Of a lane's 128 registers, 64 for queries and sums leave room for 32 products and what it
  // loads.
  constexpr int64_t kValues = 64, kLanes = 32, kMaxRows = 16;
  // Threadgroups that occupy the largest GPU, and the fewest keys a split: what it writes and the
  // merge reads again stays below a tenth of what it reads.
  constexpr int64_t kThreadgroups = 128, kKeys = 256, kKeysRow = 64;
  FewQueriesVariant variant{};
  variant.key_columns = few_queries_columns(d);
  variant.value_columns = few_queries_columns(d_v);
  int64_t columns = (variant.key_columns + variant.value_columns) / kLanes;
  variant.rows = 1;
  while (variant.rows < std::min(n_rows, kMaxRows) && 2 * variant.rows * columns <= kValues) {
    variant.rows *= 2;
  }
  variant.key_begin = static_cast<int32_t>(key_begin);
  variant.key_end = static_cast<int32_t>(key_end);
  int64_t n_keys = key_end - key_begin;
  int64_t threadgroups = std::max<int64_t>(n_heads * ceil_div(n_rows, variant.rows), 1);
  int64_t n_splits = std::min(ceil_div(n_keys, std::max(kKeys, kKeysRow * variant.rows)),
                              ceil_div(kThreadgroups, threadgroups));
  n_splits = std::max<int64_t>(n_splits, 1);
  int64_t split_keys = std::max<int64_t>(ceil_div(ceil_div(n_keys, n_splits), kKeys), 1) * kKeys;
  variant.split_keys = static_cast<int32_t>(split_keys);
  variant.n_splits = static_cast<int32_t>(std::max<int64_t>(ceil_div(n_keys, split_keys), 1));
  return variant;
}

// Keys that any row may see by causality and window. Documents may move rows anywhere.
std::pair<int32_t, int32_t> few_queries_keys(int n_q, int n_k, const AttentionSettings& settings);

// The kernel `op`<types, key columns, value columns, rows> of metal/<op>.metal.
struct FewQueriesKernel {
  std::string op, types;
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
