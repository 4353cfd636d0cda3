// Many rows: y [m, n] = x [m, k] times a packed matrix, by TensorOps.
//
// A simdgroup owns a tile of Rows x Cols of y and walks along k in steps of 32. The weights of a
// step pass through threadgroup memory as they are packed, and are decoded in registers, into the
// right operand; x is read by the operation itself, from device memory. Sums are float32, rounded
// once to T. Weights are rounded to T before the product. The four simdgroups of a threadgroup have
// the same rows of x, and columns side by side.

#include <metal_stdlib>

#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "tile/affine_tile.h"
#include "tile/batch.h"
#include "tile/cooperative.h"

using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr int kStep = mto::kTileStep;
constant constexpr int kPace = 4;  // steps until simdgroups wait for each other, to share a cache

// Of a step of x: the operation checks those that are not promised.
template <typename Extents, bool WholeRows>
inline Extents extents_of(int n_rows) {
  if constexpr (WholeRows) {
    return Extents();
  } else {
    return Extents(kStep, n_rows);
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

// WholeRows: m is a multiple of Rows. WholeSteps: k is a multiple of kStep, always so if
// Transposed. Relaxed: the products of float32 may be of 11 bits.
template <typename T, typename S, typename B, int Bits, int GroupSize, bool Transposed, int Rows,
          int Cols, bool WholeRows, bool WholeSteps, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(mto::kTileSimdgroups * 32)]] void
quantized_matmul_tiles(device T* x [[buffer(0)]], const device uint* w [[buffer(1)]],
                       const device S* scales [[buffer(2)]], const device B* biases [[buffer(3)]],
                       device T* y [[buffer(4)]],
                       constant mto::QuantizedMatmulMetalParams& params [[buffer(5)]],
                       constant int64_t* batch [[buffer(6)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  using Extents = conditional_t<WholeRows, extents<int, kStep, Rows>, dextents<int, 2>>;
  using XTile = tensor<device T, Extents, tensor_inline>;
  using Weights =
      mto::AffineTile<Bits, GroupSize, Transposed ? Cols : kStep, Transposed ? kStep : Cols>;
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
  x += starts.of[0] + int64_t(row) * k;
  y += (int64_t(group.z) * m + row) * n + col;

  // Along the packed rows there are codes of k when transposed, else of n.
  const int width = Transposed ? k : n, n_groups = width / GroupSize, n_words = width / 32 * Bits;
  const int64_t first_row = Transposed ? col : 0, first_code = Transposed ? 0 : col;
  w += starts.of[1] + first_row * n_words + first_code / 32 * Bits;
  scales += starts.of[2] + first_row * n_groups + first_code / GroupSize;
  biases += starts.of[3] + first_row * n_groups + first_code / GroupSize;
  threadgroup Weights tiles[mto::kTileSimdgroups];
  threadgroup Weights& tile = tiles[simdgroup];
  threadgroup T x_tail[WholeSteps ? 1 : Rows * kStep];

  const int n_steps = k / kStep;
  for (int step = 0; step < n_steps; ++step) {
    if (step % kPace == 0) threadgroup_barrier(mem_flags::mem_none);
    if (!active) continue;
    const int rows_here = Transposed ? n_cols : kStep, cols_here = Transposed ? kStep : n_cols;
    mto::load_words(tile, w, n_words, rows_here, cols_here, lane);
    w += Transposed ? kStep / 32 * Bits : kStep * n_words;
    if (!Transposed || step % (GroupSize / kStep) == 0) {
      mto::load_parameters(tile, scales, biases, n_groups, rows_here, cols_here, lane);
      scales += Transposed ? 1 : kStep * n_groups;
      biases += Transposed ? 1 : kStep * n_groups;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    mto::decode(weights, tile, run);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // before the next step overwrites the tile
    XTile x_tile(x + step * kStep, extents_of<Extents, WholeRows>(n_rows), array<int, 2>{1, k});
    product.run(x_tile, weights, sums);
  }

  if constexpr (!WholeSteps) {
    // The operation must not see an x shorter than its k: the last columns, and zeros.
    const int tail = k - n_steps * kStep;
    load_padded<Rows>(x_tail, x + n_steps * kStep, k, n_rows, tail, simdgroup * 32 + lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (active) {
      mto::load_words(tile, w, n_words, tail, n_cols, lane);
      mto::load_parameters(tile, scales, biases, n_groups, tail, n_cols, lane);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      mto::decode(weights, tile, run);
      tensor<threadgroup T, extents<int, kStep, Rows>, tensor_inline> x_tile(
          x_tail, extents<int, kStep, Rows>());
      product.run(x_tile, weights, sums);
    }
  }
  if (active) mto::store(sums, y, n, n_rows, n_cols);
}
