#pragma once

#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_params.h"
#include "tile/attention_scores.h"
#include "tile/few_queries.h"

// Attention of few queries: what the kernels for dense and for packed keys and values have in
// common.

constant bool few_queries_split [[function_constant(8)]];

#define MTO_FEW_QUERIES_BUFFERS                                                     \
  device T *out [[buffer(9)]], device float *lse [[buffer(10)]],                    \
      constant mto::FewQueriesParams &few [[buffer(21)]],                           \
      device float *part_sums [[buffer(22), function_constant(few_queries_split)]], \
      device float2 *part_totals [[buffer(23), function_constant(few_queries_split)]]

#define MTO_FEW_QUERIES_POSITION                                                                   \
  uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]], \
      uint lane [[thread_index_in_simdgroup]]

namespace mto {

// Where a threadgroup works.
struct FewQueriesPlace {
  int split, first_row, n_rows;
  int b, kv_head;
  AttentionStarts starts;
};

template <int Rows>
inline FewQueriesPlace few_queries_place(constant AttentionParams& params,
                                         constant FewQueriesParams& few, constant int64_t* batch,
                                         uint3 group) {
  FewQueriesPlace place;
  place.split = group.x;
  place.first_row = group.y * Rows;
  place.n_rows = metal::min(Rows, few.n_rows - place.first_row);
  place.b = group.z / params.n_kv_heads;
  place.kv_head = group.z % params.n_kv_heads;
  place.starts = attention_starts(params, batch, place.b);
  return place;
}

// A row's query head and query.
struct FewQueriesRow {
  int head, i;
};

inline FewQueriesRow few_queries_row(constant AttentionParams& params,
                                     constant FewQueriesParams& few,
                                     thread const FewQueriesPlace& place, int row) {
  const int at = place.first_row + row, group = few.n_rows / params.n_q;
  return {place.kv_head * group + at / params.n_q, at % params.n_q};
}

// Among the rows of out and lse.
inline int64_t dense_row(constant AttentionParams& params, int b, FewQueriesRow row) {
  return (int64_t(b) * params.n_heads + row.head) * params.n_q + row.i;
}

// A row among the keys, for the lanes that have its pairs.
struct FewQueriesScores {
  AttentionRow row;
  AttentionScores scores;
  AttentionBlocks blocks;
  const device int* segments;  // of the keys
  int64_t segment_stride;
  float added;  // by the array mask to the pair that was asked for last

  bool sees(int key) thread {
    const int segment = attention_has_segments ? segments[key * segment_stride] : 0;
    if (!visible(blocks, row, key, segment)) return false;
    added = attention_has_mask ? masked(scores, row.index, key) : 0.0f;
    return added != -INFINITY;
  }
  float score(float product, int key) const thread {
    float tanh_of;
    float score = capped(scores, product, tanh_of);
    if (attention_has_alibi) score -= scores.slope * float(metal::abs(row.keys.aligned - key));
    return score + added;
  }
};

// Writes rows, or what a split has of them: the sink of merge_simdgroups.
template <typename T>
struct FewQueriesOutput {
  constant AttentionParams* params;
  constant FewQueriesParams* few;
  FewQueriesPlace place;
  const device float* sinks;
  const device RowKeys* rows;
  device T* out;
  device float* lse;
  device float* part_sums;
  device float2* part_totals;
  bool first_thread;

  int64_t at;  // of the row that was begun last, among all rows or all splits of rows
  float factor;

  void begin(int r, float top, float total) thread {
    const FewQueriesRow row = few_queries_row(*params, *few, place, r);
    at = dense_row(*params, place.b, row);
    if (few_queries_split) {
      at = at * few->n_splits + place.split;
      if (first_thread) part_totals[at] = float2(top, total);
      return;
    }
    float sink = 0.0f;
    if (attention_has_sinks)
      sink = sinks[head_of(*params, place.starts, kAttentionSinks, row.head)];
    const RowEnd end = end_row(top, total, attention_has_sinks, sink, bad_documents(rows));
    factor = end.factor;
    if (first_thread) lse[at] = end.lse;
  }

  void store(int, int column, float sum) const thread {
    if (few_queries_split) {
      part_sums[at * params->d_v + column] = sum;
    } else {
      out[at * params->d_v + column] = T(sum * factor);
    }
  }
};

// Threadgroup memory of a kernel.
template <int Rows, int KeyColumns, int ValueColumns>
struct FewQueriesShared {
  float queries[Rows][KeyColumns];
  RowsShared<Rows, ValueColumns, kFewQueriesSimdgroups> rows;
};

// Behind the last row and column are zeros.
template <int Rows, int KeyColumns, typename T>
inline void load_queries(threadgroup float (&queries)[Rows][KeyColumns], const device T* q,
                         constant AttentionParams& params, constant FewQueriesParams& few,
                         thread const FewQueriesPlace& place, int thread_in_group) {
  constexpr int kThreads = kFewQueriesSimdgroups * kLanes;
  for (int n = thread_in_group; n < Rows * KeyColumns; n += kThreads) {
    const int r = n / KeyColumns, column = n % KeyColumns;
    float value = 0.0f;
    if (r < place.n_rows && column < params.d) {
      const FewQueriesRow row = few_queries_row(params, few, place, r);
      value = float(q[head_of(params, place.starts, kAttentionQ, row.head) +
                      row.i * params.operands[kAttentionQ].row + column]);
    }
    queries[r][column] = value;
  }
}

// What the lane's row sees and how it scores.
template <int Rows>
inline FewQueriesScores few_queries_scores(
    constant AttentionParams& params, constant FewQueriesParams& few,
    thread const FewQueriesPlace& place, const device uchar* mask, const device float* alibi,
    const device int* q_segments, const device int* k_segments, const device uchar* block_mask,
    const device RowKeys* rows, uint lane) {
  FewQueriesScores result;
  const int r = int(lane) / (kLanes / Rows);
  const FewQueriesRow row = few_queries_row(params, few, place, r < place.n_rows ? r : 0);
  result.row = attention_row(params, place.starts, rows, q_segments, row.i);
  if (r >= place.n_rows) result.row = no_row(row.i);
  result.scores = attention_scores(params, place.starts, row.head, mask, alibi);
  result.blocks = attention_blocks(params, place.starts, row.head, block_mask);
  result.segments = k_segments;
  if (attention_has_segments) {
    result.segments += head_of(params, place.starts, kAttentionKSegments, 0);
  }
  result.segment_stride = params.operands[kAttentionKSegments].row;
  return result;
}

// One threadgroup's work, from its queries in threadgroup memory on. `keys` and `values` are the
// KV head's.
template <int Rows, typename Keys, typename Values, typename T, int KeyColumns, int ValueColumns>
inline void few_queries(threadgroup FewQueriesShared<Rows, KeyColumns, ValueColumns>& shared,
                        const thread Keys& keys, const thread Values& values,
                        thread FewQueriesScores& scores, thread FewQueriesOutput<T>& output,
                        constant AttentionParams& params, constant FewQueriesParams& few,
                        thread const FewQueriesPlace& place, uint simdgroup, uint lane) {
  float queries[Rows][LaneColumns<KeyColumns>::kCount];
  for (int r = 0; r < Rows; ++r) {
    for (int n = 0; n < LaneColumns<KeyColumns>::kCount; ++n) {
      queries[r][n] = shared.queries[r][LaneColumns<KeyColumns>::column(n, lane)];
    }
  }
  RunningRows<Rows, ValueColumns> running;
  running.clear();
  const TileRows seen = tile_rows(scores.row, true);
  const int begin = few.key_begin + place.split * few.split_keys;
  const int end = metal::min(metal::min(begin + few.split_keys, few.key_end), seen.end_max);
  // Chunks are counted from the split's begin: what is skipped leaves the others as they are.
  constexpr int kTurn = kFewQueriesSimdgroups * RunningRows<Rows, ValueColumns>::kChunk;
  const int skipped = metal::max(seen.begin_min - begin, 0) / kTurn * kTurn;
  if (seen.begin_min < end) {
    take_keys<Rows>(running, queries, keys, values, scores, begin + skipped, end, int(simdgroup),
                    kFewQueriesSimdgroups, lane);
  }
  merge_simdgroups(running, shared.rows, output, place.n_rows, params.d_v, simdgroup, lane);
}

}  // namespace mto
