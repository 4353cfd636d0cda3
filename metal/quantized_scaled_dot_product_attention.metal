// Attention of many queries to packed keys and values, by TensorOps.
//
// The forward pass of scaled_dot_product_attention.metal, with right operands that are decoded in
// registers; nothing of them goes to memory. A simdgroup owns 16 rows of one query head and Width
// columns of their output, and walks over tiles of 32 keys. Codes of keys are multiplied as they
// are, exactly, group by group; scales and biases are applied to the products: q . k is the sum of
// scale * (q . codes) + bias * (sum of q). Values are rounded to T before the product, weights are
// float32.

#include <metal_stdlib>

#include "tile/attention_softmax.h"
#include "tile/packed_operand.h"

using namespace metal;
using namespace mpp::tensor_ops;

using Matrix = dextents<int, 2>;

constant constexpr int kRows = 16, kKeys = 32, kStep = 32, kMaxColumns = 576;

// The sums of each group of columns of the rows of q.
template <int GroupSize, int Groups, typename T>
inline void load_sums(threadgroup float (&sums)[kRows][Groups], const device T* q, int stride,
                      int n_rows, int n_groups, int lane) {
  for (int n = lane; n < kRows * n_groups; n += mto::kLanes) {
    const int row = n / n_groups, group = n % n_groups;
    float sum = 0.0f;
    for (int i = 0; i < GroupSize && row < n_rows; ++i) {
      sum += float(q[int64_t(row) * stride + group * GroupSize + i]);
    }
    sums[row][group] = sum;
  }
}

// Adds to scores what a group's products make of them. Lane j has the scale and the bias of key j.
template <typename Tile, int Groups>
inline void add_group(thread Tile& score, thread Tile& products, float2 parameters,
                      const threadgroup float (&sums)[kRows][Groups], int group) {
  MTO_UNROLL for (ushort i = 0; i < score.get_capacity(); ++i) {
    const auto at = score.get_multidimensional_index(i);
    const float2 of_key = simd_shuffle(parameters, ushort(at[0] % kKeys));
    if (!score.is_valid_element(i)) continue;
    score[i] += fma(products[i], of_key[0], sums[at[1]][group] * of_key[1]);
  }
}

template <typename T, typename KeyGroups, typename ValueGroups, int Width, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(mto::kAttentionSimdgroups * 32)]] void
quantized_scaled_dot_product_attention(
    device T* q [[buffer(0)]], const device uint* k [[buffer(1)]],
    const device uint* v [[buffer(2)]], device T* out [[buffer(9)]],
    device float* lse [[buffer(10)]],
    const device typename KeyGroups::StoredScale* k_scales [[buffer(14)]],
    const device typename KeyGroups::StoredThird* k_third [[buffer(15)]],
    const device typename ValueGroups::StoredScale* v_scales [[buffer(16)]],
    const device typename ValueGroups::StoredThird* v_third [[buffer(17)]], MTO_ATTENTION_OPTIONS,
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Weight = float;
  using Mode = matmul2d_descriptor::mode;
  using Tile = tensor<device T, Matrix, tensor_inline>;
  using WeightTile = tensor<threadgroup Weight, Matrix, tensor_inline>;
  constexpr int kKeyGroup = KeyGroups::kGroupSize,
                kGroups = (kMaxColumns + kKeyGroup - 1) / kKeyGroup;
  constexpr int kParts = Width / kStep;
  constexpr auto kScores =
      matmul2d_descriptor(kRows, kKeys, kStep, false, true, Relaxed, Mode::multiply_accumulate);
  constexpr auto kValues =
      matmul2d_descriptor(kRows, kStep, kKeys, false, false, Relaxed, Mode::multiply_accumulate);
  matmul2d<kScores, execution_simdgroup> of_keys;
  matmul2d<kValues, execution_simdgroup> of_values;

  threadgroup Weight weights[mto::kAttentionSimdgroups][kRows * kKeys];
  threadgroup mto::AttentionRow facts_of_rows[mto::kAttentionSimdgroups][kRows];
  threadgroup float sums_of_q[mto::kAttentionSimdgroups][kRows][kGroups];
  threadgroup mto::PackedTile<KeyGroups> key_tiles[mto::kAttentionSimdgroups];
  threadgroup mto::PackedTile<ValueGroups> value_tiles[mto::kAttentionSimdgroups];
  threadgroup Weight* weight_memory = weights[simdgroup];
  threadgroup float* row_memory = (threadgroup float*)weight_memory;  // in turn
  threadgroup mto::PackedTile<KeyGroups>& key_tile = key_tiles[simdgroup];
  threadgroup mto::PackedTile<ValueGroups>& value_tile = value_tiles[simdgroup];

  const int d = params.d, d_v = params.d_v, n_chunks = (d_v + Width - 1) / Width;
  const int column = int(group.x) % n_chunks * Width;
  const int first_row =
      (int(group.x) / n_chunks * mto::kAttentionSimdgroups + int(simdgroup)) * kRows;
  if (first_row >= params.n_q) return;
  const int n_rows = min(kRows, params.n_q - first_row), n_cols = min(Width, d_v - column);
  const int h = group.y, kv_head = mto::kv_head_of(params, h);
  const int64_t out_row = (int64_t(group.z) * params.n_heads + h) * params.n_q + first_row;
  out += out_row * d_v + column;
  lse += out_row;
  if (mto::bad_documents(rows)) {
    mto::fill_rows(out, d_v, n_rows, n_cols, T(NAN), lane);
    if (column == 0) mto::fill_rows(lse, 1, n_rows, 1, float(NAN), lane);
    return;
  }

  const auto starts = mto::attention_starts(params, batch, group.z);
  const int q_stride = params.operands[mto::kAttentionQ].row;
  q += mto::head_of(params, starts, mto::kAttentionQ, h) + int64_t(first_row) * q_stride;
  const mto::PackedOperand<KeyGroups> packed_keys{
      k + mto::head_of(params, starts, mto::kAttentionK, kv_head),
      params.operands[mto::kAttentionK].row,
      {k_scales + mto::head_of(params, starts, mto::kAttentionKScales, kv_head),
       k_third + mto::head_of(params, starts, mto::kAttentionKBiases, kv_head),
       params.operands[mto::kAttentionKScales].row, params.operands[mto::kAttentionKBiases].row}};
  const mto::PackedOperand<ValueGroups> packed_values{
      v + mto::head_of(params, starts, mto::kAttentionV, kv_head),
      params.operands[mto::kAttentionV].row,
      {v_scales + mto::head_of(params, starts, mto::kAttentionVScales, kv_head),
       v_third + mto::head_of(params, starts, mto::kAttentionVBiases, kv_head),
       params.operands[mto::kAttentionVScales].row, params.operands[mto::kAttentionVBiases].row}};
  const auto facts = mto::attention_facts(params, starts, h, mask, alibi, block_mask, k_segments,
                                          facts_of_rows[simdgroup]);
  load_sums<kKeyGroup>(sums_of_q[simdgroup], q, q_stride, n_rows, d / kKeyGroup, lane);
  const mto::TileRows tile_rows = mto::load_rows<kRows>(facts_of_rows[simdgroup], params, starts,
                                                        rows, q_segments, first_row, n_rows, lane);

  auto score = of_keys.template get_destination_cooperative_tensor<Tile, Tile, float>();
  auto products = of_keys.template get_destination_cooperative_tensor<Tile, Tile, float>();
  auto codes = of_keys.template get_right_input_cooperative_tensor<T, T, float>();
  auto values = of_values.template get_right_input_cooperative_tensor<Weight, T, float>();
  auto sums0 = of_values.template get_destination_cooperative_tensor<WeightTile, Tile, float>();
  auto sums1 = of_values.template get_destination_cooperative_tensor<WeightTile, Tile, float>();
  auto sums2 = of_values.template get_destination_cooperative_tensor<WeightTile, Tile, float>();
  auto sums3 = of_values.template get_destination_cooperative_tensor<WeightTile, Tile, float>();
  auto each_part = [&](auto f) {
    f(sums0, 0);
    if constexpr (kParts > 1) f(sums1, kStep);
    if constexpr (kParts > 2) f(sums2, 2 * kStep);
    if constexpr (kParts > 3) f(sums3, 3 * kStep);
  };
  auto row_max =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto row_sum =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto rescale =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  auto scratch =
      of_keys.template get_row_reduction_destination_cooperative_tensor<Tile, Tile, float>();
  const float sink = mto::sink_of(params, starts, h, sinks);
  each_part([&](thread auto& sums, int) { mto::clear(sums); });
  mto::fill(row_max, sink);
  mto::fill(row_sum, sink == -INFINITY ? 0.0f : 1.0f);
  const int code_run = mto::run_length(codes), value_run = mto::run_length(values);

  const int end = min(params.n_k, tile_rows.end_max);
  for (int begin = max(0, tile_rows.begin_min) / kKeys * kKeys; begin < end; begin += kKeys) {
    const mto::AttentionKeys keys{begin, 0, min(kKeys, params.n_k - begin)};
    const auto visibility = mto::visibility_of(facts, tile_rows, first_row, n_rows, keys, lane);
    if (visibility == mto::Visibility::kNone) continue;

    mto::clear(score);
    for (int g = 0; g < d / kKeyGroup; ++g) {
      mto::clear(products);
      const int first = g * kKeyGroup, last = first + kKeyGroup;
      for (int at = first / kStep * kStep; at < last; at += kStep) {
        if (first % kStep == 0) packed_keys.load_codes(key_tile, begin, keys.hi, at, lane);
        mto::take_group(key_tile, first % kStep / kKeyGroup, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        mto::decode_packed(codes, key_tile, code_run);
        simdgroup_barrier(mem_flags::mem_threadgroup);  // before the next codes overwrite these
        Tile q_tile(q + at, Matrix(kStep, n_rows), array<int, 2>{1, q_stride});
        of_keys.run(q_tile, codes, products);
      }
      const float2 parameters = packed_keys.parameters(begin, keys.hi, g, lane);
      add_group(score, products, parameters, sums_of_q[simdgroup], g);
    }
    const bool all = visibility == mto::Visibility::kAll && keys.hi == kKeys && n_rows == kRows;
    mto::score_tile(score, facts, keys, all);
    constexpr bool kExact = is_same_v<T, float>;
    if (mto::weigh_tile<kExact>(score, row_max, row_sum, rescale, scratch)) {
      each_part([&](thread auto& sums, int) {
        mto::scale_rows<kRows>(sums, rescale, row_memory);  // else every factor is 1
      });
    }

    auto add_values = [&](thread auto& left) {
      each_part([&](thread auto& sums, int part) {
        if (part >= n_cols) return;
        packed_values.load_codes(value_tile, begin, keys.hi, column + part, lane);
        packed_values.load_parameters(value_tile, begin, keys.hi, column + part, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        mto::decode_packed(values, value_tile, value_run);
        simdgroup_barrier(mem_flags::mem_threadgroup);  // before the next codes overwrite these
        of_values.run(left, values, sums);
      });
    };
    if (of_values.template is_compatible_as_left_input<Weight, T, float>(score)) {
      auto left = of_values.template get_left_input_cooperative_tensor<Weight, T, float>(score);
      add_values(left);
    } else {
      // The barriers between codes are between these weights and their use, too.
      mto::store_as<Weight>(score, weight_memory, kKeys, kRows, kKeys);
      WeightTile left(weight_memory, Matrix(kKeys, kRows), array<int, 2>{1, kKeys});
      add_values(left);
      simdgroup_barrier(mem_flags::mem_threadgroup);  // before row values overwrite them
    }
  }

  MTO_UNROLL for (ushort i = 0; i < row_sum.get_capacity(); ++i) {
    rescale[i] = row_sum[i] == 0.0f ? 0.0f : 1.0f / row_sum[i];
    scratch[i] = row_sum[i] == 0.0f ? -INFINITY : row_max[i] + log(row_sum[i]);
  }
  each_part([&](thread auto& sums, int part) {
    mto::scale_rows<kRows>(sums, rescale, row_memory);
    mto::store(sums, out + part, d_v, n_rows, n_cols - part);
  });
  if (column == 0) {
    using Vector = dextents<int, 1>;
    scratch.store(tensor<device float, Vector, tensor_inline>(lse, Vector(n_rows)));
  }
}
