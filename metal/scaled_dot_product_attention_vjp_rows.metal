// Small sums of the backward pass: what it needs to know of a row, and d_alibi.

#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_vjp_metal_params.h"
#include "tile/attention_options.h"
#include "tile/lanes.h"

using namespace metal;

// Of each row, by a simdgroup: d_out . out - d_lse, which is taken from products d_out . v.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(mto::kGradRowSimdgroups * 32)]] void
attention_grad_rows(const device T* out [[buffer(9)]], const device T* d_out [[buffer(11)]],
                    const device float* d_lse [[buffer(12)]],
                    constant mto::AttentionParams& params [[buffer(18)]],
                    constant int64_t* batch [[buffer(19)]], device float* constants [[buffer(21)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  const int i = int(group.x) * mto::kGradRowSimdgroups + int(simdgroup), h = group.y;
  if (i >= params.n_q) return;
  const auto starts = mto::attention_starts(params, batch, group.z);
  auto row_at = [&](int operand) {
    return mto::head_of(params, starts, operand, h) + i * params.operands[operand].row;
  };
  out += row_at(mto::kAttentionOut);
  d_out += row_at(mto::kAttentionDOut);
  float sum = 0.0f;
  for (int c = lane; c < params.d_v; c += mto::kLanes) {
    sum = fma(float(out[c * params.operands[mto::kAttentionOut].column]), float(d_out[c]), sum);
  }
  sum = mto::sum_lanes(sum);
  const int64_t row = (int64_t(group.z) * params.n_heads + h) * params.n_q + i;
  if (lane == 0) constants[row] = sum - d_lse[row_at(mto::kAttentionDLse)];
}

// Of each of n_heads, by a simdgroup: the sum of n_parts.
template <int Simdgroups>
[[kernel, max_total_threads_per_threadgroup(Simdgroups * 32)]] void attention_alibi_grad(
    const device float* parts [[buffer(0)]], device float* d_alibi [[buffer(1)]],
    constant int& n_heads [[buffer(2)]], constant int& n_parts [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int head = int(group) * Simdgroups + int(simdgroup);
  if (head >= n_heads) return;
  float sum = 0.0f;
  for (int i = lane; i < n_parts; i += mto::kLanes) sum += parts[int64_t(head) * n_parts + i];
  sum = mto::sum_lanes(sum);
  if (lane == 0) d_alibi[head] = sum;
}
