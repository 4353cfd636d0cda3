// Few rows: y [m, n] = x [m, k] times a packed matrix of any format.
//
// Plain Metal. Sums are chains of fma in float32, in an order that depends on n and k alone, so a
// row has the same bits among any number of rows.

#include <metal_stdlib>

#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "tile/batch.h"
#include "tile/format_values.h"
#include "tile/lanes.h"

using namespace metal;

constant constexpr int kColumns = 4;  // of y, that a simdgroup has

// The matrix is [n, k]. The lanes of a simdgroup share out k, a run of 8 values at a time, and add
// up in the end.
template <typename Format, typename T, int Rows>
[[kernel, max_total_threads_per_threadgroup(mto::kFormatSimdgroups * 32)]] void
quantized_matmul_format_few_rows_t(
    const device uchar* w [[buffer(0)]], const device uchar* scales [[buffer(1)]],
    const device uchar* third [[buffer(2)]], constant mto::PackedParams& packed [[buffer(3)]],
    constant int64_t* batch [[buffer(4)]],
    constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]], const device T* x [[buffer(6)]],
    device T* y [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint n = params.n, k = params.k;
  const uint row = group.y * Rows, col = (group.x * mto::kFormatSimdgroups + simdgroup) * kColumns;
  const int n_rows = min(Rows, int(params.m - row)), n_cols = min(kColumns, int(n) - int(col));
  const auto starts = mto::batch_offsets<4>(batch, params.n_batch_dims, group.z);
  const mto::PackedView view = mto::packed_view<Format>(w, scales, third, packed, starts.of + 1);
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * params.m + row) * n + col;

  float4 sums[Rows];
  for (int r = 0; r < Rows; ++r) sums[r] = float4(0.0f);
  for (uint at = lane * mto::kRun; at < k; at += mto::kLanes * mto::kRun) {
    const int n_values = min(mto::kRun, int(k - at));
    float4 weights[mto::kRun];
    for (int c = 0; c < kColumns; ++c) {
      float values[mto::kRun];
      if (c < n_cols) {
        mto::values_within<Format, mto::kRun>(view, col + c, at, n_values, values);
      }
      for (int i = 0; i < mto::kRun; ++i) weights[i][c] = c < n_cols ? values[i] : 0.0f;
    }
    for (int r = 0; r < Rows; ++r) {
      if (r >= n_rows) break;
      for (int i = 0; i < n_values; ++i) {
        sums[r] = fma(weights[i], float4(float(x[int64_t(r) * k + at + i])), sums[r]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    if (r >= n_rows) break;
    const float4 total = mto::sum_lanes(sums[r]);
    for (int c = 0; c < kColumns; ++c) {
      if (int(lane) == c && c < n_cols) y[int64_t(r) * n + c] = T(total[c]);
    }
  }
}

// The matrix is [k, n]. A lane has a run of 8 columns of y; the simdgroups of a threadgroup take
// turns at the rows of the matrix and add up in the end.
template <typename Format, typename T, int Rows>
[[kernel, max_total_threads_per_threadgroup(mto::kFewRowsSplits * 32)]] void
quantized_matmul_format_few_rows_n(
    const device uchar* w [[buffer(0)]], const device uchar* scales [[buffer(1)]],
    const device uchar* third [[buffer(2)]], constant mto::PackedParams& packed [[buffer(3)]],
    constant int64_t* batch [[buffer(4)]],
    constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]], const device T* x [[buffer(6)]],
    device T* y [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kWidth = mto::kLanes * mto::kRun;
  static_assert(kWidth == mto::kFewRowsSplits * 32, "a thread adds up a column");
  const uint n = params.n, k = params.k;
  const uint row = group.y * Rows, first_col = group.x * kWidth;
  const int n_rows = min(Rows, int(params.m - row));
  const auto starts = mto::batch_offsets<4>(batch, params.n_batch_dims, group.z);
  const mto::PackedView view = mto::packed_view<Format>(w, scales, third, packed, starts.of + 1);
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * params.m + row) * n + first_col;
  const uint col = first_col + lane * mto::kRun;
  const int n_cols = min(mto::kRun, int(n) - int(col));

  float sums[Rows][mto::kRun];
  for (int r = 0; r < Rows; ++r) {
    for (int i = 0; i < mto::kRun; ++i) sums[r][i] = 0.0f;
  }
  for (uint at = simdgroup; at < k && n_cols > 0; at += mto::kFewRowsSplits) {
    float weights[mto::kRun];
    mto::values_within<Format, mto::kRun>(view, at, col, n_cols, weights);
    for (int r = 0; r < Rows; ++r) {
      if (r >= n_rows) break;
      const float value = float(x[int64_t(r) * k + at]);
      for (int i = 0; i < mto::kRun; ++i) sums[r][i] = fma(weights[i], value, sums[r][i]);
    }
  }

  threadgroup float parts[mto::kFewRowsSplits][kWidth];
  for (int r = 0; r < Rows; ++r) {
    if (r >= n_rows) break;
    for (int i = 0; i < mto::kRun; ++i) parts[simdgroup][lane * mto::kRun + i] = sums[r][i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (int s = 0; s < mto::kFewRowsSplits; ++s) total += parts[s][thread_in_group];
    if (first_col + thread_in_group < n) y[int64_t(r) * n + thread_in_group] = T(total);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next row overwrites the parts
  }
}
