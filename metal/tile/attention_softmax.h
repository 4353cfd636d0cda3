#pragma once

#include "tile/attention_scores.h"
#include "tile/cooperative_rows.h"

// The softmax of tiles of scores, key tile by key tile. What is excluded has the score -infinity,
// and weight 0.

namespace mto {

// Keys first .. first + (tile's columns), of which those from `lo` to `hi` are to be counted.
struct AttentionKeys {
  int first, lo, hi;
};

// The facts of one query head, and of the rows that a simdgroup has of it.
struct AttentionFacts {
  AttentionScores scores;
  AttentionBlocks blocks;
  const threadgroup AttentionRow* rows;
  const device int* k_segments;
  int64_t k_segment_stride;
};

inline AttentionFacts attention_facts(constant AttentionParams& params,
                                      thread const AttentionStarts& starts, int h,
                                      const device uchar* mask, const device float* alibi,
                                      const device uchar* block_mask, const device int* k_segments,
                                      const threadgroup AttentionRow* rows) {
  AttentionFacts facts;
  facts.scores = attention_scores(params, starts, h, mask, alibi);
  facts.blocks = attention_blocks(params, starts, h, block_mask);
  facts.rows = rows;
  facts.k_segments = k_segments;
  if (attention_has_segments) facts.k_segments += head_of(params, starts, kAttentionKSegments, 0);
  facts.k_segment_stride = params.operands[kAttentionKSegments].row;
  return facts;
}

// Puts the facts of a tile's rows into threadgroup memory, for the lanes of this simdgroup.
template <int Rows>
inline TileRows load_rows(threadgroup AttentionRow* memory, constant AttentionParams& params,
                          thread const AttentionStarts& starts, const device RowKeys* rows,
                          const device int* q_segments, int first_row, int n_rows, int lane) {
  static_assert(Rows <= 32, "a row a lane");
  AttentionRow row = no_row(first_row + lane);
  if (lane < n_rows) row = attention_row(params, starts, rows, q_segments, first_row + lane);
  if (lane < Rows) memory[lane] = row;
  simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  return tile_rows(row, lane < n_rows);
}

// Of rows first_row .. first_row + n_rows, against the keys of a tile that count.
inline Visibility visibility_of(thread const AttentionFacts& facts, TileRows rows, int first_row,
                                int n_rows, AttentionKeys keys, int lane) {
  TileKeys tile = tile_keys(keys.first + keys.lo, keys.first + keys.hi, facts.k_segments,
                            facts.k_segment_stride, lane);
  return tile_visibility(facts.blocks, rows, tile, first_row, first_row + n_rows);
}

// A sink is a score without a value.
inline float sink_of(constant AttentionParams& params, thread const AttentionStarts& starts, int h,
                     const device float* sinks) {
  return attention_has_sinks ? sinks[head_of(params, starts, kAttentionSinks, h)] : -INFINITY;
}

template <typename T>
inline void fill_rows(device T* out, int stride, int n_rows, int n_cols, T value, int lane) {
  for (int i = lane; i < n_rows * n_cols; i += 32) out[i / n_cols * stride + i % n_cols] = value;
}

inline bool counts(thread const AttentionFacts& facts, AttentionRow row, AttentionKeys keys,
                   int column) {
  if (column < keys.lo || column >= keys.hi) return false;
  int j = keys.first + column, segment = 0;
  if (attention_has_segments) segment = facts.k_segments[j * facts.k_segment_stride];
  return visible(facts.blocks, row, j, segment);
}

// Makes scores of a tile of products. `all`: every key counts for every row, but for an array mask.
template <typename Tile>
inline void score_tile(thread Tile& tile, thread const AttentionFacts& facts, AttentionKeys keys,
                       bool all) {
  if (all && !attention_has_alibi && !attention_has_mask) {
    float tanh_of;
    MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
      if (tile.is_valid_element(i)) tile[i] = capped(facts.scores, tile[i], tanh_of);
    }
    return;
  }
  MTO_UNROLL for (ushort i = 0; i < tile.get_capacity(); ++i) {
    if (!tile.is_valid_element(i)) continue;
    auto at = tile.get_multidimensional_index(i);
    AttentionRow row = facts.rows[at[1]];
    bool seen = all || counts(facts, row, keys, at[0]);
    tile[i] = seen ? score_of(facts.scores, row, keys.first + at[0], tile[i]) : -INFINITY;
  }
}

// The maximum of a row that has seen nothing: no score but -infinity is less.
constant constexpr float kLowest = -FLT_MAX;

// exp(x) for x <= 0, at least -kVanishing. Errors of fast::exp2 grow with x, beyond what float32
// results may have.
constant constexpr float kVanishing = 1e4f;
template <bool Exact>
inline float exp_of(float x) {
  float power = x * M_LOG2E_F;
  return Exact ? metal::precise::exp2(power) : metal::fast::exp2(power);
}

// What earlier sums are multiplied by where the maximum moves; 1 where it does not.
template <bool Exact>
inline float rescaling(float before, float now) {
  return exp_of<Exact>(metal::max(before - now, -kVanishing));
}

template <bool Exact>
inline float weight_of(float score, float row_max) {
  if (score == -INFINITY) return 0.0f;
  float difference = score - row_max;  // a NaN stays one
  return exp_of<Exact>(difference < -kVanishing ? -kVanishing : difference);
}

// The maximum and the sum of a row that has seen but a sink, a score without a value.
inline float first_max(float sink) { return metal::max(sink, kLowest); }
inline float first_sum(float sink) { return sink == -INFINITY ? 0.0f : 1.0f; }

// Of a row's sum. One that is 0 has nothing but zeros to multiply; all others are about 1 or more.
inline float inverse(float row_sum) { return 1.0f / metal::max(row_sum, FLT_MIN); }

// Makes weights of a tile of scores, relative to the rows' maxima, which may move: earlier sums are
// then to be multiplied by `rescale`. True where one of them has to, in any lane. `scratch` is
// another tensor of row values. A slot of these without a row holds anything, which decides
// nothing.
template <bool Exact, typename Tile, typename Rows>
inline bool weigh_tile(thread Tile& tile, thread Rows& row_max, thread Rows& row_sum,
                       thread Rows& rescale, thread Rows& scratch) {
  using mpp::tensor_ops::reduce_rows;
  using Reduction = mpp::tensor_ops::reduction_operation;
  // Identities are passed: the default is 0, whatever the operation.
  reduce_rows(tile, scratch, Reduction::max, kLowest);
  MTO_UNROLL for (ushort i = 0; i < row_max.get_capacity(); ++i) {
    float before = row_max[i];
    row_max[i] = metal::max(before, scratch[i]);
    rescale[i] = rescaling<Exact>(before, row_max[i]);
  }
  bool moved = false;
  MTO_UNROLL for (auto it = tile.begin(); it != tile.end(); ++it) {
    if (!it.is_valid_element()) continue;
    *it = weight_of<Exact>(*it, *row_max.map_iterator(it));
    moved = moved || *rescale.map_iterator(it) != 1.0f;
  }
  reduce_rows(tile, scratch, Reduction::sum, 0.0f);
  MTO_UNROLL for (ushort i = 0; i < row_sum.get_capacity(); ++i) {
    row_sum[i] = metal::fma(row_sum[i], rescale[i], scratch[i]);
  }
  return metal::simd_any(moved);
}

}  // namespace mto
