#pragma once

#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_vjp_metal_params.h"
#include "tile/attention_scores.h"
#include "tile/cooperative.h"
#include "tile/lanes.h"

// What the kernels of the backward pass share: weights and derivatives of scores of a tile.

namespace mto {

// One batch element of a call.
struct GradCall {
  constant AttentionParams* params;
  AttentionStarts starts;
  const device RowKeys* rows;
  const device int* q_segments;
  const device int* k_segments;
  const device uchar* mask;
  const device uchar* block_mask;
  const device float* alibi;
  const device float* lse;
  const device float* constants;  // [n_batch, n_heads, n_q], see attention_grad_rows
  int64_t batch;
};

// Of a tile of queries, in threadgroup memory, as any lane may hold any of their scores.
template <int N>
struct GradQueries {
  static_assert(N <= kLanes, "one lane loads a row");
  AttentionRow rows[N];
  float lse[N], constants[N];
};

template <int N>
struct GradKeys {
  int segments[N];
};

// Rows of one batch element of an operand, `depth` elements each.
template <typename T>
struct GradRows {
  device T* start;
  int64_t head;
  int row, depth;
};

template <typename T>
inline GradRows<T> grad_rows(thread const GradCall& call, int operand, device T* data, int depth) {
  auto strides = call.params->operands[operand];
  return {data + head_of(*call.params, call.starts, operand, 0), strides.head, int(strides.row),
          depth};
}

template <typename T>
inline device T* row_of(GradRows<T> rows, int h, int i) {
  return rows.start + h * rows.head + int64_t(i) * rows.row;
}

template <int N>
inline TileRows load_rows(threadgroup GradQueries<N>& queries, thread const GradCall& call,
                          int begin, int n, int lane) {
  AttentionRow row = no_row(begin + lane);
  if (lane < n) {
    row = attention_row(*call.params, call.starts, call.rows, call.q_segments, begin + lane);
    queries.rows[lane] = row;
  }
  return tile_rows(row, lane < n);
}

template <int N>
inline void load_statistics(threadgroup GradQueries<N>& queries, thread const GradCall& call, int h,
                            int begin, int n, int lane) {
  if (lane >= n) return;
  int64_t at = (call.batch * call.params->n_heads + h) * call.params->n_q + begin + lane;
  queries.constants[lane] = call.constants[at];
  queries.lse[lane] = call.lse[head_of(*call.params, call.starts, kAttentionLse, h) +
                               (begin + lane) * call.params->operands[kAttentionLse].row];
}

template <int N>
inline TileKeys load_keys(threadgroup GradKeys<N>& keys, thread const GradCall& call, int begin,
                          int n, int lane) {
  const device int* segments = call.k_segments;
  int64_t stride = call.params->operands[kAttentionKSegments].row;
  if (attention_has_segments) {
    segments += head_of(*call.params, call.starts, kAttentionKSegments, 0);
    if (lane < n) keys.segments[lane] = segments[(begin + lane) * stride];
  }
  return tile_keys(begin, begin + n, segments, stride, lane);
}

// tile = left . right, of n_left rows and n_right.
template <typename T, typename Product, typename Tile>
inline void multiply_rows(thread Product& product, device T* left, int n_left, GradRows<T> of_left,
                          device T* right, int n_right, GradRows<T> of_right, thread Tile& tile) {
  using Ext = metal::dextents<int, 2>;
  using Memory = metal::tensor<device T, Ext, metal::tensor_inline>;
  if (of_left.depth == 0) return clear(tile);
  Memory a(left, Ext(of_left.depth, n_left), metal::array<int, 2>{1, of_left.row});
  Memory b(right, Ext(of_right.depth, n_right), metal::array<int, 2>{1, of_right.row});
  product.run(a, b, tile);
}

// A tile of scores of one query head, and the part of it that counts, in its own coordinates.
struct GradScores {
  AttentionScores scores;
  AttentionBlocks blocks;
  bool all_visible;
  int key;  // the first
  int row_begin, row_end, key_begin, key_end;
};

inline GradScores grad_scores(thread const GradCall& call, int h, int key, Visibility visibility) {
  GradScores tile;
  tile.scores = attention_scores(*call.params, call.starts, h, call.mask, call.alibi);
  tile.blocks = attention_blocks(*call.params, call.starts, h, call.block_mask);
  tile.all_visible = visibility == Visibility::kAll;
  tile.key = key;
  return tile;
}

// Makes weights of products q . k, and derivatives of scores of products d_out . v: of the scores
// that the mask was added to where `OfMask`, else of the products. Queries: they are the rows of
// the tiles. Returns the lane's part of -d_alibi.
template <bool Queries, bool OfMask, typename Tile, int N, int NKeys>
inline float weigh(thread Tile& weights, thread Tile& d_scores, thread const GradScores& tile,
                   const threadgroup GradQueries<N>& queries,
                   const threadgroup GradKeys<NKeys>& keys) {
  float moment = 0.0f;
  MTO_UNROLL for (ushort slot = 0; slot < weights.get_capacity(); ++slot) {
    if (!weights.is_valid_element(slot)) continue;
    auto at = weights.get_multidimensional_index(slot);
    const int r = at[Queries ? 1 : 0], c = at[Queries ? 0 : 1], j = tile.key + c;
    float weight = 0.0f, d_score = 0.0f;
    if (r >= tile.row_begin && r < tile.row_end && c >= tile.key_begin && c < tile.key_end) {
      const AttentionRow row = queries.rows[r];
      const int segment = attention_has_segments ? keys.segments[c] : 0;
      float capped_at, score = -INFINITY;
      if (tile.all_visible || visible(tile.blocks, row, j, segment)) {
        score = score_of(tile.scores, row, j, weights[slot], capped_at);
      }
      if (score > -INFINITY || score != score) {
        weight = metal::precise::exp(score - queries.lse[r]);
        d_score = weight * (d_scores[slot] - queries.constants[r]);
        if (attention_has_alibi) moment += d_score * float(metal::abs(row.keys.aligned - j));
        if (attention_has_softcap && !OfMask) d_score *= 1.0f - capped_at * capped_at;
      }
    }
    weights[slot] = weight;
    d_scores[slot] = d_score;
  }
  return moment;
}

// Writes a tile to threadgroup memory, `stride` elements a row.
template <typename Tile, typename H>
inline void hand_over(thread Tile& tile, threadgroup H* memory, int stride) {
  MTO_UNROLL for (ushort slot = 0; slot < tile.get_capacity(); ++slot) {
    if (!tile.is_valid_element(slot)) continue;
    auto at = tile.get_multidimensional_index(slot);
    memory[at[1] * stride + at[0]] = H(tile[slot]);
  }
}

}  // namespace mto
