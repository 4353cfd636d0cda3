#pragma once

// Which calls the Metal kernels for few queries take, and how they cut them: functions of shapes
// alone.

#include <algorithm>
#include <cstdint>

#include "common/integers.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_params.h"

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

struct FewQueriesShape {
  int64_t n_heads;    // of keys, of all batch elements
  int64_t n_rows;     // a KV head
  int64_t n_keys;     // that any row may see
  int64_t d, d_v;     // of keys, and of values
  int64_t key_bytes;  // of a key and its value, in memory
};

struct FewQueriesVariant {
  int rows, key_columns, value_columns;  // what a simdgroup has room for
  int64_t n_splits, split_keys;

  bool operator==(const FewQueriesVariant&) const = default;
};

// Columns that lanes share out evenly: 2 a lane, 4, 8, or 20.
inline int few_queries_columns(int64_t d) {
  return d <= 64 ? 64 : d <= 128 ? 128 : d <= 256 ? 256 : 640;
}

inline FewQueriesVariant few_queries_variant(const FewQueriesShape& shape) {
  // Of a lane's 128 registers, 64 for queries and sums leave room for 32 products and what it
  // loads.
  constexpr int64_t kValues = 64, kLanes = 32, kMaxRows = 16;
  // Splits are whole turns of a threadgroup's simdgroups, whatever the rows. What one writes and
  // the merge reads again, 8 bytes a row and column, stays below a 20th of what it reads.
  constexpr int64_t kTurn = 256, kMergedBytes = 8 * 20;
  FewQueriesVariant variant{1, few_queries_columns(shape.d), few_queries_columns(shape.d_v), 1, 0};
  int64_t columns = (variant.key_columns + variant.value_columns) / kLanes;
  while (variant.rows < std::min(shape.n_rows, kMaxRows) && 2 * variant.rows * columns <= kValues) {
    variant.rows *= 2;
  }
  int64_t least =
      ceil_div(kMergedBytes * variant.rows * shape.d_v, std::max<int64_t>(shape.key_bytes, 1));
  int64_t blocks = shape.n_heads * ceil_div(shape.n_rows, variant.rows);
  int64_t wanted = ceil_div(int64_t{kFewQueriesMaxSplits}, std::max<int64_t>(blocks, 1));
  int64_t keys = std::max({ceil_div(shape.n_keys, wanted), least, int64_t{1}});
  variant.split_keys = ceil_div(keys, kTurn) * kTurn;
  variant.n_splits = std::max<int64_t>(ceil_div(shape.n_keys, variant.split_keys), 1);
  return variant;
}

}  // namespace mto
