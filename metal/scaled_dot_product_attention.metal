// The forward pass of attention for many rows, by TensorOps.
//
// A simdgroup owns Rows query rows of one head, whose output has no more than Width columns, and
// walks over tiles of Keys keys. Nothing is shared between simdgroups: there is no threadgroup
// barrier, and one without rows may leave. Q, K and V are read by the operations, from device
// memory.
//
// Which lane holds which element is asked, never assumed. Three answers decide at run time, and all
// have another way: whether the weights may stay in registers for the second product, whether row
// values fit the output's slots, and which rows and columns a slot has.

#include <metal_stdlib>

#include "tile/attention_softmax.h"

using namespace metal;
using namespace mpp::tensor_ops;

using Matrix = dextents<int, 2>;

// Registers: weights stay in registers where they can, so that k is static, and no tile may have
// less than Keys keys: the last one is moved back, and n_keys is at least Keys. Else they go
// through threadgroup memory, and k is what there is. They are float32 beside 16-bit values, too:
// half would underflow beside a large sink.
template <typename T, int Rows, int Keys, int Width, bool Registers, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(mto::kAttentionSimdgroups * 32)]] void
attention_forward(device T* q [[buffer(0)]], device T* k [[buffer(1)]], device T* v [[buffer(2)]],
                  device T* out [[buffer(9)]], device float* lse [[buffer(10)]],
                  MTO_ATTENTION_OPTIONS, uint3 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  using Mode = matmul2d_descriptor::mode;
  using Tile = tensor<device T, Matrix, tensor_inline>;
  using Weights = tensor<threadgroup float, Matrix, tensor_inline>;
  constexpr int kDynamic = dynamic_length_v<int>;
  constexpr auto kScores =
      matmul2d_descriptor(Rows, Keys, kDynamic, false, true, Relaxed, Mode::multiply);
  constexpr auto kValues = matmul2d_descriptor(Rows, Width, Registers ? Keys : kDynamic, false,
                                               false, Relaxed, Mode::multiply_accumulate);
  matmul2d<kScores, execution_simdgroup> of_keys;
  matmul2d<kValues, execution_simdgroup> of_values;

  threadgroup float weights[mto::kAttentionSimdgroups][Rows * Keys];
  threadgroup mto::AttentionRow facts_of_rows[mto::kAttentionSimdgroups][Rows];
  threadgroup float* memory = weights[simdgroup];  // of row values, too, in turn

  const int first_row = (int(group.x) * mto::kAttentionSimdgroups + int(simdgroup)) * Rows;
  if (first_row >= params.n_q) return;
  const int n_rows = min(Rows, params.n_q - first_row);
  const int d_v = params.d_v, n_keys = params.n_k;
  const int h = group.y, kv_head = mto::kv_head_of(params, h);
  const int64_t out_row = (int64_t(group.z) * params.n_heads + h) * params.n_q + first_row;
  out += out_row * d_v;
  lse += out_row;
  if (mto::bad_documents(rows)) {
    mto::fill_rows(out, d_v, n_rows, d_v, T(NAN), lane);
    mto::fill_rows(lse, 1, n_rows, 1, float(NAN), lane);
    return;
  }

  const auto starts = mto::attention_starts(params, batch, group.z);
  const int q_stride = params.operands[mto::kAttentionQ].row,
            k_stride = params.operands[mto::kAttentionK].row,
            v_stride = params.operands[mto::kAttentionV].row;
  q += mto::head_of(params, starts, mto::kAttentionQ, h) + int64_t(first_row) * q_stride;
  k += mto::head_of(params, starts, mto::kAttentionK, kv_head);
  v += mto::head_of(params, starts, mto::kAttentionV, kv_head);
  const auto facts = mto::attention_facts(params, starts, h, mask, alibi, block_mask, k_segments,
                                          facts_of_rows[simdgroup]);
  const mto::TileRows tile_rows = mto::load_rows<Rows>(facts_of_rows[simdgroup], params, starts,
                                                       rows, q_segments, first_row, n_rows, lane);

  auto score = of_keys.template get_destination_cooperative_tensor<Tile, Tile, float>();
  auto sums = of_values.template get_destination_cooperative_tensor<Weights, Tile, float>();
  auto row_max =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto row_sum =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto rescale =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto scratch =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  const float sink = mto::sink_of(params, starts, h, sinks);
  mto::clear(sums);
  mto::fill(row_max, mto::first_max(sink));
  mto::fill(row_sum, mto::first_sum(sink));

  Tile q_tile(q, Matrix(params.d, n_rows), array<int, 2>{1, q_stride});
  const int end = min(n_keys, tile_rows.end_max);
  for (int begin = max(0, tile_rows.begin_min) / Keys * Keys; begin < end; begin += Keys) {
    mto::AttentionKeys keys;
    keys.first = Registers ? min(begin, n_keys - Keys) : begin;
    keys.lo = begin - keys.first;
    keys.hi = min(Keys, n_keys - keys.first);
    const auto visibility = mto::visibility_of(facts, tile_rows, first_row, n_rows, keys, lane);
    if (visibility == mto::Visibility::kNone) continue;

    if (params.d == 0) {
      mto::clear(score);
    } else {
      Tile k_tile(k + int64_t(keys.first) * k_stride, Matrix(params.d, keys.hi),
                  array<int, 2>{1, k_stride});
      of_keys.run(q_tile, k_tile, score);
    }
    const bool all =
        visibility == mto::Visibility::kAll && keys.lo == 0 && keys.hi == Keys && n_rows == Rows;
    mto::score_tile(score, facts, keys, all);
    constexpr bool kExact = is_same_v<T, float>;
    if (mto::weigh_tile<kExact>(score, row_max, row_sum, rescale, scratch)) {
      mto::scale_rows<Rows>(sums, rescale, memory);  // else every factor is 1
    }

    Tile v_tile(v + int64_t(keys.first) * v_stride, Matrix(d_v, keys.hi),
                array<int, 2>{1, v_stride});
    if constexpr (Registers) {
      if (of_values.template is_compatible_as_left_input<float, T, float>(score)) {
        auto left = of_values.template get_left_input_cooperative_tensor<float, T, float>(score);
        of_values.run(left, v_tile, sums);
        continue;
      }
    }
    mto::store_as<float>(score, memory, Keys, Rows, Keys);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    Weights left(memory, Matrix(keys.hi, Rows), array<int, 2>{1, Keys});
    of_values.run(left, v_tile, sums);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // before the next tile overwrites it
  }

  MTO_UNROLL for (ushort i = 0; i < row_sum.get_capacity(); ++i) {
    rescale[i] = mto::inverse(row_sum[i]);
    scratch[i] = row_max[i] + log(row_sum[i]);
  }
  mto::scale_rows<Rows>(sums, rescale, memory);
  mto::store(sums, out, d_v, n_rows, d_v);
  using Vector = dextents<int, 1>;
  scratch.store(tensor<device float, Vector, tensor_inline>(lse, Vector(n_rows)));
}
