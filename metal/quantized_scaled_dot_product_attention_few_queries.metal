// Attention of few queries to packed keys and values, which are decoded in registers: each code is
// read once for all query heads of its KV head.
//
// The kernel for dense keys (scaled_dot_product_attention_few_queries.metal) but for what a lane
// loads. Values are fma(code, scale, bias) in float32, and so is everything else.

#include <metal_stdlib>

#include "tile/attention_few_queries.h"
#include "tile/coded_groups.h"

using namespace metal;

template <typename T, typename KeyGroups, typename ValueGroups, int KeyColumns, int ValueColumns,
          int Rows>
[[kernel, max_total_threads_per_threadgroup(mto::kFewQueriesSimdgroups * 32)]] void
quantized_scaled_dot_product_attention_few_queries(
    const device T* q [[buffer(0)]], const device uint* k [[buffer(1)]],
    const device uint* v [[buffer(2)]], MTO_ATTENTION_OPTIONS,
    const device typename KeyGroups::StoredScale* k_scales [[buffer(14)]],
    const device typename KeyGroups::StoredThird* k_third [[buffer(15)]],
    const device typename ValueGroups::StoredScale* v_scales [[buffer(16)]],
    const device typename ValueGroups::StoredThird* v_third [[buffer(17)]], MTO_FEW_QUERIES_BUFFERS,
    MTO_FEW_QUERIES_POSITION) {
  threadgroup mto::FewQueriesShared<Rows, KeyColumns, ValueColumns> shared;
  const mto::FewQueriesPlace place = mto::few_queries_place<Rows>(params, few, batch, group);
  const int thread_in_group = simdgroup * mto::kLanes + lane;
  mto::load_queries(shared.queries, q, params, few, place, thread_in_group);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  mto::FewQueriesScores scores = mto::few_queries_scores<Rows>(
      params, few, place, mask, alibi, q_segments, k_segments, block_mask, rows, lane);
  mto::FewQueriesOutput<T> output{&params, &few, place,     sinks,       rows,
                                  out,     lse,  part_sums, part_totals, thread_in_group == 0};
  const int h = place.kv_head;
  const mto::PackedRows<KeyGroups, KeyColumns> keys{
      k + mto::head_of(params, place.starts, mto::kAttentionK, h),
      params.operands[mto::kAttentionK].row,
      {k_scales + mto::head_of(params, place.starts, mto::kAttentionKScales, h),
       k_third + mto::head_of(params, place.starts, mto::kAttentionKBiases, h),
       params.operands[mto::kAttentionKScales].row, params.operands[mto::kAttentionKBiases].row},
      params.d};
  const mto::PackedRows<ValueGroups, ValueColumns> values{
      v + mto::head_of(params, place.starts, mto::kAttentionV, h),
      params.operands[mto::kAttentionV].row,
      {v_scales + mto::head_of(params, place.starts, mto::kAttentionVScales, h),
       v_third + mto::head_of(params, place.starts, mto::kAttentionVBiases, h),
       params.operands[mto::kAttentionVScales].row, params.operands[mto::kAttentionVBiases].row},
      params.d_v};
  mto::few_queries<Rows>(shared, keys, values, scores, output, params, few, place, simdgroup, lane);
}
