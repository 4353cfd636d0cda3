// Attention of few queries, as in decoding: each key and value is read once for all query heads of
// its KV head.
//
// Plain Metal, bound by memory. A threadgroup has up to Rows rows (queries of the query heads of
// one KV head) and one split of the keys; its simdgroups take turns at chunks of keys. A lane has a
// few columns of each row in registers, and of each chunk the score of one row and key. Everything
// is float32; the output is rounded once. Splits depend on shapes alone and are merged in order.

#include <metal_stdlib>

#include "tile/attention_few_queries.h"

using namespace metal;

template <typename T, int KeyColumns, int ValueColumns, int Rows>
[[kernel, max_total_threads_per_threadgroup(mto::kFewQueriesSimdgroups * 32)]] void
scaled_dot_product_attention_few_queries(const device T* q [[buffer(0)]],
                                         const device T* k [[buffer(1)]],
                                         const device T* v [[buffer(2)]], MTO_ATTENTION_OPTIONS,
                                         MTO_FEW_QUERIES_BUFFERS, MTO_FEW_QUERIES_POSITION) {
  threadgroup mto::FewQueriesShared<Rows, KeyColumns, ValueColumns> shared;
  const mto::FewQueriesPlace place = mto::few_queries_place<Rows>(params, few, batch, group);
  const int thread_in_group = simdgroup * mto::kLanes + lane;
  mto::load_queries(shared.queries, q, params, few, place, thread_in_group);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  mto::FewQueriesScores scores = mto::few_queries_scores<Rows>(
      params, few, place, mask, alibi, q_segments, k_segments, block_mask, rows, lane);
  mto::FewQueriesOutput<T> output{&params, &few, place,     sinks,       rows,
                                  out,     lse,  part_sums, part_totals, thread_in_group == 0};
  const mto::DenseRows<T, KeyColumns> keys{
      k + mto::head_of(params, place.starts, mto::kAttentionK, place.kv_head),
      params.operands[mto::kAttentionK].row, params.d, bool(few.aligned_keys)};
  const mto::DenseRows<T, ValueColumns> values{
      v + mto::head_of(params, place.starts, mto::kAttentionV, place.kv_head),
      params.operands[mto::kAttentionV].row, params.d_v, bool(few.aligned_values)};
  mto::few_queries<Rows>(shared, keys, values, scores, output, params, few, place, simdgroup, lane);
}

// Adds up the splits of a row, in order. A threadgroup has a row, its threads share out columns.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(mto::kFewQueriesMergeThreads)]] void
scaled_dot_product_attention_few_queries_merge(
    const device float* sinks [[buffer(5), function_constant(attention_has_sinks)]],
    device T* out [[buffer(9)]], device float* lse [[buffer(10)]],
    constant mto::ScaledDotProductAttentionMetalParams& params [[buffer(18)]],
    constant int64_t* batch [[buffer(19)]],
    const device mto::RowKeys* rows [[buffer(20), function_constant(attention_has_documents)]],
    constant mto::FewQueriesParams& few [[buffer(21)]],
    const device float* part_sums [[buffer(22)]], const device float2* part_totals [[buffer(23)]],
    uint row [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float2 totals[mto::kFewQueriesMaxSplits];
  if (int(at) < few.n_splits) totals[at] = part_totals[int64_t(row) * few.n_splits + at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float top = -INFINITY, total = 0.0f;
  for (int s = 0; s < few.n_splits; ++s) top = max(top, totals[s][0]);
  for (int s = 0; s < few.n_splits; ++s) {
    total += totals[s][1] * mto::relative_to(top, totals[s][0]);
  }
  float sink = 0.0f;
  if (attention_has_sinks) {
    const uint head = row / params.n_q;
    const auto starts = mto::attention_starts(params, batch, head / params.n_heads);
    sink = sinks[mto::head_of(params, starts, mto::kAttentionSinks, head % params.n_heads)];
  }
  const mto::RowEnd end =
      mto::end_row(top, total, attention_has_sinks, sink, mto::bad_documents(rows));
  if (at == 0) lse[row] = end.lse;
  for (int column = at; column < params.d_v; column += mto::kFewQueriesMergeThreads) {
    float sum = 0.0f;
    for (int s = 0; s < few.n_splits; ++s) {
      const float factor = mto::relative_to(top, totals[s][0]);
      sum += part_sums[(int64_t(row) * few.n_splits + s) * params.d_v + column] * factor;
    }
    out[int64_t(row) * params.d_v + column] = T(sum * end.factor);
  }
}
