// Many rows: y [m, n] = x [m, k] times a packed matrix of any format, by TensorOps.
//
// As quantized_matmul.metal, but that the weights are decoded straight into the right operand, from
// device memory. Weights are rounded to T before the product, sums are float32.

#include <metal_stdlib>

#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "tile/batch.h"
#include "tile/cooperative.h"
#include "tile/format_values.h"

using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr int kStep = mto::kTileStep;

// Makes the elements [column, row] of an operand those of the matrix from (row, col) on, and zeros
// beyond n_rows x n_cols.
template <typename Format, int Run, typename Operand>
inline void decode_runs(thread Operand& operand, const thread mto::PackedView& view, int row,
                        int col, int n_rows, int n_cols) {
  using T = typename Operand::value_type;
  MTO_UNROLL for (ushort i = 0; i < operand.get_capacity(); i += Run) {
    if (!operand.is_valid_element(i)) continue;
    auto at = operand.get_multidimensional_index(i);
    float values[Run];
    int n = at[1] < n_rows ? max(0, min(Run, n_cols - int(at[0]))) : 0;
    mto::values_within<Format, Run>(view, row + at[1], col + at[0], n, values);
    for (ushort j = 0; j < Run; ++j) operand[i + j] = T(values[j]);
  }
}

template <typename Format, typename Operand>
inline void decode_format(thread Operand& operand, const thread mto::PackedView& view, int row,
                          int col, int n_rows, int n_cols, int run) {
  if (run == 4) {
    decode_runs<Format, 4>(operand, view, row, col, n_rows, n_cols);
  } else if (run == 2) {
    decode_runs<Format, 2>(operand, view, row, col, n_rows, n_cols);
  } else {
    decode_runs<Format, 1>(operand, view, row, col, n_rows, n_cols);
  }
}

// The first n_rows x n_cols of a tile of x, and zeros; by all threads of a threadgroup.
template <int Rows, typename T>
inline void load_padded(threadgroup T* tile, const device T* x, int stride, int n_rows, int n_cols,
                        int thread_in_group) {
  for (int i = thread_in_group; i < Rows * kStep; i += mto::kTileSimdgroups * 32) {
    int row = i / kStep, col = i % kStep;
    tile[i] = row < n_rows && col < n_cols ? x[int64_t(row) * stride + col] : T(0.0f);
  }
}

// WholeSteps: k is a multiple of kStep. Relaxed: the products of float32 may be of 11 bits.
template <typename Format, typename T, bool Transposed, int Rows, int Cols, bool WholeSteps,
          bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(mto::kTileSimdgroups * 32)]] void
quantized_matmul_format_tiles(
    const device uchar* w [[buffer(0)]], const device uchar* scales [[buffer(1)]],
    const device uchar* third [[buffer(2)]], constant mto::PackedParams& packed [[buffer(3)]],
    constant int64_t* batch [[buffer(4)]],
    constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]], device T* x [[buffer(6)]],
    device T* y [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  using XTile = tensor<device T, dextents<int, 2>, tensor_inline>;
  constexpr auto kProduct = matmul2d_descriptor(Rows, Cols, kStep, false, Transposed, Relaxed,
                                                matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<kProduct, execution_simdgroup> product;
  auto sums = product.template get_destination_cooperative_tensor<XTile, XTile, float>();
  auto weights = product.template get_right_input_cooperative_tensor<T, T, float>();
  mto::clear(sums);
  const int run = mto::run_length(weights);

  const int m = params.m, n = params.n, k = params.k;
  const int row = int(group.y) * Rows,
            col = (int(group.x) * mto::kTileSimdgroups + int(simdgroup)) * Cols;
  const int n_rows = min(Rows, m - row), n_cols = min(Cols, n - col);
  const bool active = n_cols > 0;  // the others stay for the barriers
  const auto starts = mto::batch_offsets<4>(batch, params.n_batch_dims, group.z);
  const mto::PackedView view = mto::packed_view<Format>(w, scales, third, packed, starts.of + 1);
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * m + row) * n + col;
  threadgroup T x_tail[WholeSteps ? 1 : Rows * kStep];

  const int n_steps = k / kStep;
  for (int step = 0; step < n_steps && active; ++step) {
    const int at = step * kStep;
    if constexpr (Transposed) {
      decode_format<Format>(weights, view, col, at, n_cols, kStep, run);
    } else {
      decode_format<Format>(weights, view, at, col, kStep, n_cols, run);
    }
    XTile x_tile(x + at, dextents<int, 2>(kStep, n_rows), array<int, 2>{1, k});
    product.run(x_tile, weights, sums);
  }
  if constexpr (!WholeSteps) {
    // The operation must not see an x shorter than its k: the last columns, and zeros.
    const int at = n_steps * kStep, tail = k - at;
    load_padded<Rows>(x_tail, x + at, k, n_rows, tail, simdgroup * 32 + lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (active) {
      if constexpr (Transposed) {
        decode_format<Format>(weights, view, col, at, n_cols, tail, run);
      } else {
        decode_format<Format>(weights, view, at, col, tail, n_cols, run);
      }
      tensor<threadgroup T, extents<int, kStep, Rows>, tensor_inline> x_tile(
          x_tail, extents<int, kStep, Rows>());
      product.run(x_tile, weights, sums);
    }
  }
  if (active) mto::store(sums, y, n, n_rows, n_cols);
}
