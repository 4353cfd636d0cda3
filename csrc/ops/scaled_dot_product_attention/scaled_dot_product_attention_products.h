#pragma once

// The two products of the forward pass in float32, for operands of every type.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class FloatProducts {
 public:
  static constexpr int kBlock = kRows;  // rows at a time
  struct Session {};                    // what has to live while products are made

  FloatProducts(Cutter& cutter, const AttentionParams& p, int64_t n_rows)
      : p_(&p), n_columns_(attention_padded(p.d_v)) {
    q_ = cutter.take(round_up(n_rows, kLeftWidth) * p.d);
    k_ = cutter.take(kTile * p.d);
    v_ = cutter.take(kPanel * (round_up(p.d_v, kWidth) / kWidth));
    decoded_ = cutter.take(p.k_packed.codes ? kStep * std::max(p.d, p.d_v) : 0);
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    pack_left_rows(*p_, p_->q, b, kv_head, rows, p_->d, p_->scale, q_);
  }

  // Keys and values of one step of a tile.
  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    KeyRows keys{p_->k, p_->k_packed, b, kv_head, p_->d, decoded_};
    pack_transposed<kWidth>(keys.rows(first, n), n, kStep, 1, k_ + step * kStep * p_->d);
    KeyRows values{p_->v, p_->v_packed, b, kv_head, p_->d_v, decoded_};
    pack_rows(values.rows(first, n), n, 1, v_ + step * kStep * kWidth, kPanel);
  }

  // Scaled products of n rows and the keys of a step.
  void multiply_keys(int row, int n, int step, float* scores) const {
    Runs depth;
    depth.add(0, static_cast<int>(p_->d));
    product(n, kStep, left_rows(q_, row, p_->d), k_ + step * kStep * p_->d, kWidth * p_->d, depth,
            Store{scores, kScoreStride});
  }

  // Merges the values under the weights of n rows.
  void multiply_values(int n, const float* weights, const Runs& keys, const Merge& merge) const {
    product(n, n_columns_, LeftScores{weights}, v_, kPanel, keys, merge);
  }

 private:
  static constexpr int64_t kPanel = kTile * kWidth;

  const AttentionParams* p_;
  int64_t n_columns_;
  float *q_, *k_, *v_, *decoded_;
};

}  // namespace
}  // namespace mto::MTO_ISA
