#include <metal_stdlib>

#include "tile/batch.h"
#include "tile/format_values.h"

using namespace metal;

// out [n_batch, n_rows, n_cols] = decoded w, rounded once to T. A thread decodes one run of a row.
template <typename Format, typename T>
[[kernel]] void dequantize_format(
    const device uchar* w [[buffer(0)]], const device uchar* scales [[buffer(1)]],
    const device uchar* third [[buffer(2)]], constant mto::PackedParams& packed [[buffer(3)]],
    constant int64_t* batch [[buffer(4)]], constant int32_t& n_batch_dims [[buffer(5)]],
    device T* out [[buffer(6)]], constant int64_t& n_runs [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_index_in_threadgroup]],
    uint n_threads [[threads_per_threadgroup]]) {
  const int64_t i = int64_t(group) * n_threads + thread_in_group;
  if (i >= n_runs) return;
  const uint n_cols = packed.n_cols, runs = (n_cols + mto::kRun - 1) / mto::kRun;
  const int64_t row = i / runs;
  const uint col = uint(i % runs) * mto::kRun;
  const auto starts = mto::batch_offsets<3>(batch, n_batch_dims, uint(row / packed.n_rows));
  const mto::PackedView view = mto::packed_view<Format>(w, scales, third, packed, starts.of);
  float values[mto::kRun];
  const int n = min(mto::kRun, int(n_cols - col));
  mto::values_within<Format, mto::kRun>(view, uint(row % packed.n_rows), col, n, values);
  for (int j = 0; j < n; ++j) out[row * n_cols + col + j] = T(values[j]);
}
