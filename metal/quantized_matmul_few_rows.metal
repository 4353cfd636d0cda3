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

// The weights of the run at column `at` of the first `n_cols` of Cols rows of the matrix. `held` is
// the scale and the bias that the lane has loaded of the step.
template <int Bits, int GroupSize, int Cols>
inline void decode_runs(thread vec<float, Cols>* weights, const device uchar* codes,
                        int64_t row_bytes, uint at, int n_cols, float2 held, uint lane) {
  constexpr uint kGroups = mto::kLanes * mto::kRun / GroupSize;
  for (int c = 0; c < Cols; ++c) {
    const uint holder = c * kGroups + lane * mto::kRun / GroupSize;
    const float2 parameters = simd_shuffle(held, ushort(holder));
    ulong run = 0;
    if (c < n_cols) run = mto::load_run<Bits>(codes + c * row_bytes + at / 8 * Bits);
    for (int i = 0; i < mto::kRun; ++i) {
      weights[i][c] = fma(mto::affine_code<Bits>(run, i), parameters[0], parameters[1]);
    }
  }
}

// Adds the products of a run of a row of x, in device or threadgroup memory.
template <typename Columns, typename X>
inline void add_run(thread Columns& sums, const thread Columns* weights, X x) {
  for (int i = 0; i < mto::kRun; ++i) sums = fma(weights[i], Columns(float(x[i])), sums);
}

// The sums of all lanes, to `n_rows` rows and `n_cols` columns of y.
template <int Rows, int Cols, typename T>
inline void store_sums(const thread vec<float, Cols>* sums, int n_rows, int n_cols, device T* y,
                       uint n, int lane) {
  for (int r = 0; r < Rows; ++r) {
    if (r >= n_rows) break;
    const vec<float, Cols> total = mto::sum_lanes(sums[r]);
    for (int c = 0; c < Cols; ++c) {
      if (lane == c && c < n_cols) y[int64_t(r) * n + c] = T(total[c]);
    }
  }
}

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
  const int n_rows = min(Rows, int(params.m - row)), n_cols = min(Cols, int(n) - int(col));
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
    decode_runs<Bits, GroupSize, Cols>(weights, codes, row_bytes, at, at < k ? n_cols : 0, held,
                                       lane);
    for (int block = 0; block < Rows; block += kSharedRows) {
      if (block >= n_rows) break;
      const int rows_here = min(kSharedRows, n_rows - block);
      if constexpr (kShared) {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // until the last rows are used
        const uint x_col = first + thread_in_group;
        for (int r = 0; r < rows_here && x_col < k; ++r) {
          x_shared[r * kStep + thread_in_group] = x[int64_t(block + r) * k + x_col];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (int r = 0; r < kSharedRows; ++r) {
        if (r >= rows_here || at >= k) break;
        if constexpr (kShared) {
          add_run(sums[block + r], weights, x_shared + r * kStep + lane * mto::kRun);
        } else {
          add_run(sums[block + r], weights, x + int64_t(r) * k + at);
        }
      }
    }
  }
  store_sums<Rows, Cols>(sums, n_rows, n_cols, y, n, lane);
}

// Adds up what the simdgroups have of a bundle of rows of a column of y.
template <typename Bundle, typename T>
inline void store_bundle(const threadgroup Bundle* parts, int stride, device T* y, uint n,
                         int n_rows) {
  Bundle total = parts[0];
  for (int s = 1; s < mto::kFewRowsSplits; ++s) total += parts[s * stride];
  for (int r = 0; r < int(sizeof(Bundle) / sizeof(float)); ++r) {
    if (r >= n_rows) break;
    y[int64_t(r) * n] = T(total[r]);
  }
}

// What a lane holds of a bundle of rows of the matrix, for all lanes to take turns with: a run of
// codes, a scale and a bias.
struct HeldRows {
  ulong run;
  float2 parameters;
};

// Adds to the sums the products with a row of the matrix, the `i`-th of those held.
template <int Bits, int GroupSize, int Cols, int Bundles, int Bundle>
inline void add_row(thread vec<float, Bundle> (&sums)[Bundles][Cols],
                    const thread vec<float, Bundle>* held_x, ushort x_lane, HeldRows held, int i,
                    int n_rows, uint lane) {
  constexpr int kWidth = mto::kLanes * Cols, kRuns = kWidth / mto::kRun;
  constexpr int kGroups = kWidth > GroupSize ? kWidth / GroupSize : 1;
  const uint at = lane * Cols, holder = i * kGroups + at / GroupSize;
  const ulong run =
      mto::shuffle_bits<Bits * mto::kRun>(held.run, ushort(i * kRuns + at / mto::kRun));
  const float2 parameters = simd_shuffle(held.parameters, ushort(holder));
  float weights[Cols];
  for (int c = 0; c < Cols; ++c) {
    const float code = mto::affine_code<Bits>(run, at % mto::kRun + c);
    weights[c] = fma(code, parameters[0], parameters[1]);
  }
  for (int b = 0; b < Bundles; ++b) {
    if (b * Bundle >= n_rows) break;
    const vec<float, Bundle> values = simd_shuffle(held_x[b], x_lane);
    for (int c = 0; c < Cols; ++c) {
      sums[b][c] = fma(vec<float, Bundle>(weights[c]), values, sums[b][c]);
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
      HeldRows held = {0, float2(0.0f)};
      const int64_t run_row = first + lane / kRuns, group_row = first + lane / kGroups;
      if (run_row < k && col + run_col < n) {
        held.run = mto::load_run<Bits>(codes + run_row * row_bytes);
      }
      if (lane < uint(kRowsHeld * kGroups) && group_row < k && col + group_col < n) {
        held.parameters[0] = float(scales[group_row * n_groups]);
        held.parameters[1] = float(biases[group_row * n_groups]);
      }
      for (int i = 0; i < kRowsHeld && first + i < k; ++i) {
        const ushort x_lane = first + i - block;
        add_row<Bits, GroupSize>(sums, held_x, x_lane, held, i, n_rows, lane);
      }
    }
  }

  threadgroup Bundle parts[mto::kFewRowsSplits][kWidth];
  for (int b = 0; b < kBundles; ++b) {
    if (b * kBundle >= n_rows) break;
    for (int c = 0; c < Cols; ++c) parts[simdgroup][lane * Cols + c] = sums[b][c];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_in_group < uint(kWidth) && col + thread_in_group < n) {
      store_bundle(&parts[0][thread_in_group], kWidth,
                   y + int64_t(b * kBundle) * n + thread_in_group, n, n_rows - b * kBundle);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next rows overwrite the parts
  }
}
