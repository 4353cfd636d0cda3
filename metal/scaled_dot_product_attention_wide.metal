// The forward pass of attention whose output is too wide for the registers of one simdgroup.
//
// A threadgroup owns Rows query rows of one head, each of its simdgroups Width columns of their
// output. In a step each simdgroup weighs a tile of Keys keys, and all add the products with all of
// these tiles' weights, which pass through threadgroup memory. So nothing is computed twice. Lane r
// of every simdgroup knows the maximum and the sum of row r.

#include <metal_stdlib>

#include "tile/attention_softmax.h"

using namespace metal;
using namespace mpp::tensor_ops;

using Matrix = dextents<int, 2>;

// What the simdgroups of a threadgroup tell each other.
template <int Rows, int Keys, int Splits>
struct Shared {
  mto::AttentionRow rows[Splits][Rows];
  float weights[Rows][Splits * Keys];
  float maxima[Splits][Rows];  // of the rows, in a simdgroup's tile of a step
  float sums[Splits][Rows];
  bool seen[2][Splits];  // whether the tile was; of two steps in turn
};

// Multiplies each row of a tile by the factor that the lane of the row's number holds.
template <typename Tile>
inline void scale_rows(thread Tile& tile, float factor) {
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    bool valid = tile.is_valid_element(i);
    ushort row = valid ? tile.get_multidimensional_index(i)[1] : 0;
    float of_row = simd_shuffle(factor, row);
    if (valid) tile[i] *= of_row;
  }
}

// Makes weights of a tile of scores. `row_max` is held as above.
template <bool Exact, typename Tile>
inline void weigh(thread Tile& tile, float row_max) {
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    bool valid = tile.is_valid_element(i);
    ushort row = valid ? tile.get_multidimensional_index(i)[1] : 0;
    float of_row = simd_shuffle(row_max, row);
    if (valid) tile[i] = mto::weight_of<Exact>(tile[i], of_row);
  }
}

template <typename Rows1, int Rows>
inline void store_rows(thread Rows1& values, threadgroup float (&memory)[Rows]) {
  using Extents = extents<int, Rows>;
  values.store(tensor<threadgroup float, Extents, tensor_inline>(&memory[0], Extents()));
}

// ShareQ: the rows of q are read once, into threadgroup memory; they may not fit there.
template <typename T, int Rows, int Keys, int Width, int Splits, bool ShareQ, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(Splits * 32)]] void attention_forward_wide(
    device T* q [[buffer(0)]], device T* k [[buffer(1)]], device T* v [[buffer(2)]],
    device T* out [[buffer(9)]], device float* lse [[buffer(10)]], MTO_ATTENTION_OPTIONS,
    threadgroup T* q_memory [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  using Mode = matmul2d_descriptor::mode;
  using Reduction = reduction_operation;
  using Tile = tensor<device T, Matrix, tensor_inline>;
  using Weights = tensor<threadgroup float, Matrix, tensor_inline>;
  constexpr int kDynamic = dynamic_length_v<int>, kStep = Splits * Keys;
  constexpr bool kExact = is_same_v<T, float>;
  constexpr auto kScores =
      matmul2d_descriptor(Rows, Keys, kDynamic, false, true, Relaxed, Mode::multiply);
  constexpr auto kValues =
      matmul2d_descriptor(Rows, Width, kDynamic, false, false, Relaxed, Mode::multiply_accumulate);
  matmul2d<kScores, execution_simdgroup> of_keys;
  matmul2d<kValues, execution_simdgroup> of_values;
  threadgroup Shared<Rows, Keys, Splits> shared;

  const int first_row = int(group.x) * Rows, column = int(simdgroup) * Width;
  const int n_rows = min(Rows, params.n_q - first_row), n_cols = min(Width, params.d_v - column);
  const int h = group.y, kv_head = mto::kv_head_of(params, h), row = lane;
  const int64_t out_row = (int64_t(group.z) * params.n_heads + h) * params.n_q + first_row;
  out += out_row * params.d_v + column;
  lse += out_row;
  if (mto::bad_documents(rows)) {
    mto::fill_rows(out, params.d_v, n_rows, n_cols, T(NAN), lane);
    if (simdgroup == 0) mto::fill_rows(lse, 1, n_rows, 1, float(NAN), lane);
    return;
  }

  const auto starts = mto::attention_starts(params, batch, group.z);
  const int q_stride = params.operands[mto::kAttentionQ].row,
            k_stride = params.operands[mto::kAttentionK].row,
            v_stride = params.operands[mto::kAttentionV].row;
  q += mto::head_of(params, starts, mto::kAttentionQ, h) + int64_t(first_row) * q_stride;
  k += mto::head_of(params, starts, mto::kAttentionK, kv_head);
  v += mto::head_of(params, starts, mto::kAttentionV, kv_head) + column;
  const auto facts = mto::attention_facts(params, starts, h, mask, alibi, block_mask, k_segments,
                                          shared.rows[simdgroup]);
  const mto::TileRows tile_rows = mto::load_rows<Rows>(shared.rows[simdgroup], params, starts, rows,
                                                       q_segments, first_row, n_rows, lane);
  if constexpr (ShareQ) {
    for (int i = simdgroup * 32 + lane; i < Rows * params.d; i += Splits * 32) {
      int at = i / params.d;
      q_memory[i] = at < n_rows ? q[int64_t(at) * q_stride + i % params.d] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  auto score = of_keys.template get_destination_cooperative_tensor<Tile, Tile, float>();
  auto of_rows =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto sums = of_values.template get_destination_cooperative_tensor<Weights, Tile, float>();
  mto::clear(sums);
  const float sink = mto::sink_of(params, starts, h, sinks);
  float row_max = mto::first_max(sink), row_sum = mto::first_sum(sink);

  const int end = min(params.n_k, tile_rows.end_max);
  int turn = 0;
  for (int first = max(0, tile_rows.begin_min) / Keys * Keys; first < end; first += kStep) {
    const int own = first + int(simdgroup) * Keys;
    const mto::AttentionKeys keys{own, 0, min(Keys, params.n_k - own)};
    auto visibility = mto::Visibility::kNone;
    if (own < end) {
      visibility = mto::visibility_of(facts, tile_rows, first_row, n_rows, keys, lane);
    }
    const bool seen = visibility != mto::Visibility::kNone;
    if (lane == 0) shared.seen[turn][simdgroup] = seen;
    if (seen) {
      Tile k_tile(k + int64_t(own) * k_stride, Matrix(params.d, keys.hi),
                  array<int, 2>{1, k_stride});
      if (params.d == 0) {
        mto::clear(score);
      } else if constexpr (ShareQ) {
        tensor<threadgroup T, Matrix, tensor_inline> q_tile(q_memory, Matrix(params.d, Rows));
        of_keys.run(q_tile, k_tile, score);
      } else {
        Tile q_tile(q, Matrix(params.d, n_rows), array<int, 2>{1, q_stride});
        of_keys.run(q_tile, k_tile, score);
      }
      const bool all = visibility == mto::Visibility::kAll && keys.hi == Keys && n_rows == Rows;
      mto::score_tile(score, facts, keys, all);
      reduce_rows(score, of_rows, Reduction::max, mto::kLowest);
      store_rows(of_rows, shared.maxima[simdgroup]);
    } else if (row < Rows) {
      shared.maxima[simdgroup][row] = mto::kLowest;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float now = row_max;
    for (int i = 0; row < Rows && i < Splits; ++i) now = max(now, shared.maxima[i][row]);
    const float rescale = mto::rescaling<kExact>(row_max, now);
    row_max = now;
    if (simd_any(rescale != 1.0f)) scale_rows(sums, rescale);
    if (seen) {
      weigh<kExact>(score, row_max);
      mto::store_as<float>(score, &shared.weights[0][simdgroup * Keys], kStep, Rows, Keys);
      reduce_rows(score, of_rows, Reduction::sum, 0.0f);
      store_rows(of_rows, shared.sums[simdgroup]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    row_sum *= rescale;
    for (int i = 0; i < Splits; ++i) {
      if (!shared.seen[turn][i]) continue;
      if (row < Rows) row_sum += shared.sums[i][row];
      const int there = first + i * Keys, n_keys = min(Keys, params.n_k - there);
      Weights left(&shared.weights[0][i * Keys], Matrix(n_keys, Rows), array<int, 2>{1, kStep});
      Tile v_tile(v + int64_t(there) * v_stride, Matrix(n_cols, n_keys),
                  array<int, 2>{1, v_stride});
      of_values.run(left, v_tile, sums);
    }
    turn = 1 - turn;
  }

  scale_rows(sums, mto::inverse(row_sum));
  mto::store(sums, out, params.d_v, n_rows, n_cols);
  if (simdgroup == 0 && row < n_rows) {
    lse[row] = row_max + log(row_sum);
  }
}
