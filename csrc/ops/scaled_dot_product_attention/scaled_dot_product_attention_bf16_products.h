#pragma once

// The two products of the forward pass for bfloat16 operands, on processors that multiply tiles of
// them. Weights are rounded to bfloat16; sums are float32.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_bf16_pack.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class Bf16Products {
 public:
  static constexpr int kBlock = 2 * kTileSide;
  using Session = Bf16Tiles;

  Bf16Products(Cutter& cutter, const AttentionParams& p, int64_t n_rows)
      : p_(&p), d_(round_up(p.d, kTileDepth)), d_v_(round_up(p.d_v, kTileDepth)) {
    q_ = cutter.take<uint16_t>(round_up(n_rows, kBlock) * d_);
    k_ = cutter.take(kTile * d_ / 2);
    v_ = cutter.take(kTile * d_v_ / 2);
    weights_ = cutter.take<uint16_t>(kBlock * kWeightStride);
    sums_ = cutter.take(kBlock * kBlock);
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    copy_left_rows(*p_, p_->q, b, kv_head, rows, p_->d, q_);
  }

  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    pack_tiles_across(rows_of(p_->k, b, kv_head, first, p_->d), n, k_ + step * kStep * d_ / 2);
    pack_tiles_along(rows_of(p_->v, b, kv_head, first, p_->d_v), n, v_ + step * kStep * d_v_ / 2);
  }

  MTO_FLAT void multiply_keys(int row, int n, int step, int n_steps, float* scores) const {
    bool two = n > kTileSide;
    const float* k = k_ + step * kStep * d_ / 2;
    Vec scale = broadcast(p_->scale);
    for (int s = 0; s < n_steps; ++s, scores += kStep) {
      zero_tiles();
      for (int64_t c = 0; c < d_; c += kTileDepth, k += 2 * kTileFloats) {
        multiply_tiles(two, q_ + row * d_ + c, d_, k);
      }
      store_tiles(two, scores, kScoreStride);
      for (int r = 0; r < n; ++r) {
        float* at = scores + r * kScoreStride;
        store(at, mul(load(at), scale));
        store(at + kLanes, mul(load(at + kLanes), scale));
      }
    }
  }

  MTO_FLAT void multiply_values(int n, const float* weights, const Runs& keys,
                                const Merge& merge) const {
    bool two = n > kTileSide;
    for (int i = 0; i < keys.n; ++i) {
      for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kStep) round(n, weights, j);
    }
    int64_t n_columns = attention_padded(p_->d_v);
    for (int64_t column = 0; column < n_columns; column += kTileDepth) {
      zero_tiles();
      for (int i = 0; i < keys.n; ++i) {
        for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kStep) {
          multiply_tiles(two, weights_ + j, kWeightStride, v_ + j * d_v_ / 2 + column * kTileSide);
        }
      }
      store_tiles(two, sums_, kBlock);
      for (int r = 0; r < n; ++r) {
        merge(r, column, load(sums_ + r * kBlock));
        if (column + kLanes < n_columns) {
          merge(r, column + kLanes, load(sums_ + r * kBlock + kLanes));
        }
      }
    }
  }

 private:
  // Not a power of two, for the sake of the cache.
  static constexpr int64_t kWeightStride = kTile + kTileDepth;

  void round(int n, const float* weights, int key) const {
    for (int r = 0; r < n; ++r) {
      const float* at = weights + r * kScoreStride + key;
      _mm512_storeu_si512(weights_ + r * kWeightStride + key,
                          bf16_from_vecs(load(at), load(at + kLanes)));
    }
  }

  const AttentionParams* p_;
  int64_t d_, d_v_;  // rounded up
  uint16_t* q_;
  float *k_, *v_;
  uint16_t* weights_;
  float* sums_;
};

}  // namespace
}  // namespace mto::MTO_ISA
