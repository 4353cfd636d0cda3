#pragma once

// The five products of the gradients in float32, for operands of every type.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class FloatGradProducts {
 public:
  static constexpr int kBlock = kRows;  // rows at a time
  static constexpr int kMaxRows = 64;   // rows that are held
  struct Session {};                    // what has to live while products are made

  FloatGradProducts(Cutter& cutter, const AttentionGradParams& g, bool of_mask)
      : g_(&g), p_(&g.forward), of_mask_(of_mask) {
    int64_t d = round_up(p_->d, kWidth), d_v = round_up(p_->d_v, kWidth);
    stride_ = round_up(p_->d, kLanes);
    stride_v_ = round_up(p_->d_v, kLanes);
    k_ = cutter.take(kTile * p_->d);
    v_ = cutter.take(kTile * p_->d_v);
    q_ = cutter.take(kMaxRows * p_->d);
    d_out_ = cutter.take(kMaxRows * p_->d_v);
    if (of_mask) return;
    k_rows_ = cutter.take(kTile * d);
    q_rows_ = cutter.take(kMaxRows * d);
    d_out_rows_ = cutter.take(kMaxRows * d_v);
    d_k_ = cutter.take(kTile * stride_);
    d_v_ = cutter.take(kTile * stride_v_);
  }

  // Of a new tile.
  void clear_key_grads() {
    std::fill_n(d_k_, kTile * stride_, 0.0f);
    std::fill_n(d_v_, kTile * stride_v_, 0.0f);
  }

  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    auto k = rows_of(p_->k, b, kv_head, first, p_->d);
    auto v = rows_of(p_->v, b, kv_head, first, p_->d_v);
    pack_transposed<kWidth>(k, n, kStep, 1, k_ + step * kStep * p_->d);
    pack_transposed<kWidth>(v, n, kStep, 1, v_ + step * kStep * p_->d_v);
    if (!of_mask_) pack_rows(k, n, 1, k_rows_ + step * kStep * kWidth, kTile * kWidth);
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    pack_left_rows(*p_, p_->q, b, kv_head, rows, p_->d, p_->scale, q_);
    pack_left_rows(*p_, g_->d_out, b, kv_head, rows, p_->d_v, 1, d_out_);
    if (of_mask_) return;
    each_head(*p_, kv_head, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
      constexpr int64_t kPanel = kMaxRows * kWidth;
      int64_t at = first * kWidth;
      pack_rows(rows_of(p_->q, b, h, i, p_->d), n, p_->scale, q_rows_ + at, kPanel);
      pack_rows(rows_of(g_->d_out, b, h, i, p_->d_v), n, 1, d_out_rows_ + at, kPanel);
    });
  }

  // Of n rows and the keys of a step: scaled products of queries and keys, and those of d_out and
  // values.
  void multiply(int row, int n, int step, float* scores, float* d_weights) const {
    Runs depth, depth_v;
    depth.add(0, static_cast<int>(p_->d));
    depth_v.add(0, static_cast<int>(p_->d_v));
    product(n, kStep, left_rows(q_, row, p_->d), k_ + step * kStep * p_->d, kWidth * p_->d, depth,
            Store{scores, kScoreStride});
    product(n, kStep, left_rows(d_out_, row, p_->d_v), v_ + step * kStep * p_->d_v,
            kWidth * p_->d_v, depth_v, Store{d_weights, kScoreStride});
  }

  // From here on weights and d_scores hold all rows; `n` rows from `row` on see keys of a step.
  void take_scores(int, int, int, const float*, const float*) {}

  // d_k and d_v of the keys of a step, of which the given rows see some.
  void add_key_grads(int step, int n_keys, const Runs& rows, const float* weights,
                     const float* d_scores) {
    int key = step * kStep;
    product(n_keys, stride_v_, LeftColumns{weights + key}, d_out_rows_, kMaxRows * kWidth, rows,
            Add{d_v_ + key * stride_v_, stride_v_});
    product(n_keys, stride_, LeftColumns{d_scores + key}, q_rows_, kMaxRows * kWidth, rows,
            Add{d_k_ + key * stride_, stride_});
  }

  // d_q of n rows, not yet scaled.
  void add_query_grads(int row, int n, const Runs& keys, const float* d_scores, float* d_q) {
    product(n, stride_, LeftScores{d_scores + row * kScoreStride}, k_rows_, kTile * kWidth, keys,
            Add{d_q, attention_d_q_stride(p_->d)});
  }

  // d_k and d_v of n keys, whose first is row `at` of the gradients.
  void write_key_grads(int64_t at, int n) {
    for (int j = 0; j < n; ++j) {
      convert_from_float(g_->grad_type, d_k_ + j * stride_, p_->d, g_->d_k, (at + j) * p_->d);
      convert_from_float(g_->grad_type, d_v_ + j * stride_v_, p_->d_v, g_->d_v, (at + j) * p_->d_v);
    }
  }

 private:
  const AttentionGradParams* g_;
  const AttentionParams* p_;
  bool of_mask_;
  int64_t stride_, stride_v_;
  float *k_, *v_;                // a tile of keys and values, transposed
  float *q_, *d_out_;            // a block of rows, as left panels
  float* k_rows_;                // the tile's keys as the right operand of d_q
  float *q_rows_, *d_out_rows_;  // the block's rows as the right operands of d_k and d_v
  float *d_k_, *d_v_;            // [kTile, stride]
};

}  // namespace
}  // namespace mto::MTO_ISA
