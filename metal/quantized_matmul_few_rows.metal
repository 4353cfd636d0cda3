// Few rows: y [m, n] = x [m, k] times a packed matrix, each weight read once for up to Rows rows.
//
// Plain Metal. Weights are fma(code, scale, bias) in float32, sums are chains of fma in an order
// that depends on n and k alone, so a row has the same bits among any number of rows.

#include <metal_stdlib>

#include "formats/affine.h"
#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "tile/batch.h"
#include "tile/lanes.h"
#include "tile/packed.h"

using namespace metal;

// The matrix is [n, k]. A simdgroup has Cols columns of y; its lanes share out k, a run of 8 codes
// at a time, and add up in the end. From 16 rows on, the simdgroups of a threadgroup share x.
template <typename T, typename S, typename B, int Bits, int GroupSize, int Rows, int Cols>
[[kernel, max_total_threads_per_threadgroup(mto::few_rows_simdgroups(Rows) * 32)]] void
quantized_matmul_few_rows_t(const device T* x [[buffer(0)]], const device uint* w [[buffer(1)]],
                            const device S* scales [[buffer(2)]],
                            const device B* biases [[buffer(3)]], device T* y [[buffer(4)]],
                            constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]],
                            constant int64_t* batch [[buffer(6)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_in_group [[thread_index_in_threadgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  using Columns = vec<float, Cols>;
  constexpr int kSimdgroups = mto::few_rows_simdgroups(Rows);
  constexpr uint kStep = mto::kLanes * mto::kRun;
  constexpr uint kGroups = kStep / GroupSize;  // of a step
  static_assert(Cols * kGroups <= mto::kLanes, "a lane loads one scale of a step");
  constexpr bool kShared = mto::few_rows_share_x(Rows);
  static_assert(!kShared || kSimdgroups * 32 == kStep, "a thread loads a column of x");
  constexpr int kSharedRows = kShared ? 16 : Rows;  // 16 KiB of float32
  const uint n = params.n, k = params.k;
  const uint row = group.y * Rows, col = (group.x * kSimdgroups + simdgroup) * Cols;
  const int n_rows = min(Rows, int(params.m - row));
  const auto starts = mto::batch_offsets<4>(batch, params.n_batch_dims, group.z);
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * params.m + row) * n + col;
  const int64_t row_bytes = k / 8 * Bits, n_groups = k / GroupSize;
  const device uchar* codes = (const device uchar*)(w + starts.of[1]) + col * row_bytes;
  scales += starts.of[2] + col * n_groups;
  biases += starts.of[3] + col * n_groups;
  threadgroup T x_shared[kShared ? kSharedRows * kStep : 1];

  Columns sums[Rows];
  for (int r = 0; r < Rows; ++r) sums[r] = Columns(0.0f);
  for (uint first = 0; first < k; first += kStep) {
    // Of column lane / kGroups, group lane % kGroups.
    float2 held = float2(0.0f);
    const uint held_col = lane / kGroups, held_group = first / GroupSize + lane % kGroups;
    if (held_col < Cols && col + held_col < n && held_group < n_groups) {
      held[0] = float(scales[held_col * n_groups + held_group]);
      held[1] = float(biases[held_col * n_groups + held_group]);
    }
    const uint at = first + lane * mto::kRun;
    Columns weights[mto::kRun];
    for (int c = 0; c < Cols; ++c) {
      const uint holder = c * kGroups + lane * mto::kRun / GroupSize;
      const float2 parameters = simd_shuffle(held, ushort(holder));
      ulong run = 0;
      if (at < k && col + c < n) run = mto::load_run<Bits>(codes + c * row_bytes + at / 8 * Bits);
      for (int i = 0; i < mto::kRun; ++i) {
        weights[i][c] = fma(mto::affine_code<Bits>(run, i), parameters[0], parameters[1]);
      }
    }
    for (int block = 0; block < Rows; block += kSharedRows) {
      if (block >= n_rows) break;
      if constexpr (kShared) {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // until the last rows are used
        for (int r = 0; r < kSharedRows; ++r) {
          if (block + r >= n_rows || first + thread_in_group >= k) break;
          x_shared[r * kStep + thread_in_group] =
              x[int64_t(block + r) * k + first + thread_in_group];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (int r = 0; r < kSharedRows; ++r) {
        if (block + r >= n_rows || at >= k) break;
        for (int i = 0; i < mto::kRun; ++i) {
          float value;
          if constexpr (kShared) {
            value = float(x_shared[r * kStep + lane * mto::kRun + i]);
          } else {
            value = float(x[int64_t(r) * k + at + i]);
          }
          sums[block + r] = fma(weights[i], Columns(value), sums[block + r]);
        }
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    if (r >= n_rows) break;
    const Columns total = mto::sum_lanes(sums[r]);
    for (int c = 0; c < Cols; ++c) {
      if (int(lane) == c && col + c < n) y[int64_t(r) * n + c] = T(total[c]);
    }
  }
}

// The matrix is [k, n]. A threadgroup has 32 * Cols columns of y, a lane Cols of them; its
// simdgroups take turns at blocks of 32 rows of the matrix and add up in the end.
template <typename T, typename S, typename B, int Bits, int GroupSize, int Rows, int Cols>
[[kernel, max_total_threads_per_threadgroup(mto::kFewRowsSplits * 32)]] void
quantized_matmul_few_rows_n(const device T* x [[buffer(0)]], const device uint* w [[buffer(1)]],
                            const device S* scales [[buffer(2)]],
                            const device B* biases [[buffer(3)]], device T* y [[buffer(4)]],
                            constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]],
                            constant int64_t* batch [[buffer(6)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_in_group [[thread_index_in_threadgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kWidth = mto::kLanes * Cols;
  // Runs and groups of a row of the matrix within the width; rows for which every lane has a run.
  constexpr int kRuns = kWidth / mto::kRun, kRowsHeld = mto::kLanes / kRuns;
  constexpr int kGroups = kWidth > GroupSize ? kWidth / GroupSize : 1;
  constexpr int kBundle = Rows < 4 ? 2 : 4, kBundles = Rows / kBundle;  // rows of x in a vector
  using Bundle = vec<float, kBundle>;
  const uint n = params.n, k = params.k;
  const uint row = group.y * Rows, col = group.x * kWidth;
  const int n_rows = min(Rows, int(params.m - row));
  const auto starts = mto::batch_offsets<4>(batch, params.n_batch_dims, group.z);
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * params.m + row) * n + col;
  const int64_t row_bytes = n / 8 * Bits, n_groups = n / GroupSize;
  const uint run_col = lane % kRuns * mto::kRun, group_col = lane % kGroups * GroupSize;
  const device uchar* codes = (const device uchar*)(w + starts.of[1]) + (col + run_col) / 8 * Bits;
  scales += starts.of[2] + (col + group_col) / GroupSize;
  biases += starts.of[3] + (col + group_col) / GroupSize;

  Bundle sums[kBundles][Cols];
  for (int b = 0; b < kBundles; ++b) {
    for (int c = 0; c < Cols; ++c) sums[b][c] = Bundle(0.0f);
  }
  for (uint block = simdgroup * mto::kLanes; block < k;
       block += mto::kFewRowsSplits * mto::kLanes) {
    Bundle held_x[kBundles];
    for (int r = 0; r < Rows; ++r) {
      const bool inside = r < n_rows && block + lane < k;
      held_x[r / kBundle][r % kBundle] = inside ? float(x[int64_t(r) * k + block + lane]) : 0.0f;
    }
    for (uint first = block; first < min(block + mto::kLanes, k); first += kRowsHeld) {
      ulong held = 0;
      const int64_t run_row = first + lane / kRuns;
      if (run_row < k && col + run_col < n) held = mto::load_run<Bits>(codes + run_row * row_bytes);
      float2 held_parameters = float2(0.0f);
      const int64_t group_row = first + lane / kGroups;
      if (lane < uint(kRowsHeld * kGroups) && group_row < k && col + group_col < n) {
        held_parameters[0] = float(scales[group_row * n_groups]);
        held_parameters[1] = float(biases[group_row * n_groups]);
      }
      for (int i = 0; i < kRowsHeld; ++i) {
        if (first + i >= k) break;
        const uint at = lane * Cols, holder = i * kGroups + at / GroupSize;
        const ulong run =
            mto::shuffle_bits<Bits * mto::kRun>(held, ushort(i * kRuns + at / mto::kRun));
        const float2 parameters = simd_shuffle(held_parameters, ushort(holder));
        float weights[Cols];
        for (int c = 0; c < Cols; ++c) {
          const float code = mto::affine_code<Bits>(run, at % mto::kRun + c);
          weights[c] = fma(code, parameters[0], parameters[1]);
        }
        for (int b = 0; b < kBundles; ++b) {
          if (b * kBundle >= n_rows) break;
          const Bundle values = simd_shuffle(held_x[b], ushort(first + i - block));
          for (int c = 0; c < Cols; ++c) sums[b][c] = fma(Bundle(weights[c]), values, sums[b][c]);
        }
      }
    }
  }

  threadgroup Bundle parts[mto::kFewRowsSplits][kWidth];
  for (int b = 0; b < kBundles; ++b) {
    if (b * kBundle >= n_rows) break;
    for (int c = 0; c < Cols; ++c) parts[simdgroup][lane * Cols + c] = sums[b][c];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_in_group < uint(kWidth) && col + thread_in_group < n) {
      Bundle total = parts[0][thread_in_group];
      for (int s = 1; s < mto::kFewRowsSplits; ++s) total += parts[s][thread_in_group];
      for (int r = 0; r < kBundle; ++r) {
        if (b * kBundle + r >= n_rows) break;
        y[int64_t(b * kBundle + r) * n + thread_in_group] = T(total[r]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next rows overwrite the parts
  }
}
