#pragma once

// What both gradient kernels need: the weights of a block of rows and a tile of keys, and the
// derivatives of its scores.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kGradRows = 64;
constexpr int kGradBlocks = kGradRows / kRows;

struct GradScratch {
  float *k, *v;                        // a tile of keys and values, transposed
  float *q, *d_out;                    // a block of rows, as left panels
  float *weights, *d_scores, *slopes;  // [kGradRows, kScoreStride]

  static GradScratch cut(Cutter& cutter, const AttentionParams& p) {
    GradScratch s;
    s.k = cutter.take(kTile * p.d);
    s.v = cutter.take(kTile * p.d_v);
    s.q = cutter.take(kGradRows * p.d);
    s.d_out = cutter.take(kGradRows * p.d_v);
    s.weights = cutter.take(kGradRows * kScoreStride);
    s.d_scores = cutter.take(kGradRows * kScoreStride);
    s.slopes = cutter.take(p.softcap > 0 ? kScoreStride : 0);
    return s;
  }
};

// Keys and values of one KV head, a tile at a time, against rows of the query heads that read it, a
// block at a time.
class GradTile {
 public:
  GradTile(const AttentionGradParams& g, const float* constants, int64_t b, int64_t kv_head,
           GradScratch scratch)
      : g_(g),
        p_(g.forward),
        constants_(constants),
        b_(b),
        kv_head_(kv_head),
        s_(scratch),
        scores_(g.forward, b) {}

  void take_keys(int64_t index) {
    tile_ = key_tile(p_, b_, index);
    for (int s = 0; s < tile_.n_steps(); ++s) {
      auto k = rows_of(p_.k, b_, kv_head_, tile_.first_key(s), p_.d);
      auto v = rows_of(p_.v, b_, kv_head_, tile_.first_key(s), p_.d_v);
      pack_transposed<kWidth>(k, tile_.n_keys(s), kStep, 1, s_.k + s * kStep * p_.d);
      pack_transposed<kWidth>(v, tile_.n_keys(s), kStep, 1, s_.v + s * kStep * p_.d_v);
    }
  }

  // False where none of the rows sees a key of the tile.
  bool take_rows(AttentionRange rows) {
    range_ = rows;
    n_rows_ = static_cast<int>(rows.end - rows.begin);
    bool seen = false;
    for (int r = 0; r < n_rows_; ++r) rows_[r] = query_row(p_, b_, kv_head_, rows.begin + r);
    for (int block = 0; block < n_blocks(); ++block) {
      const auto* block_begin = rows_ + block * kRows;
      auto extremes = scores_.extremes(block_begin, block_rows(block));
      for (int s = 0; s < tile_.n_steps(); ++s) {
        visibility_[block][s] =
            scores_.of_step(block_begin, block_rows(block), extremes, tile_.steps[s]);
        seen = seen || visibility_[block][s] != Visibility::kNone;
      }
    }
    if (!seen) return false;
    pack_left_rows(p_, p_.q, b_, kv_head_, rows, p_.d, p_.scale, s_.q);
    pack_left_rows(p_, g_.d_out, b_, kv_head_, rows, p_.d_v, 1, s_.d_out);
    return true;
  }

  // Weights, and derivatives of scores: of those that the mask is added to, else of the products
  // times the scale. d_alibi, where not null, is added to: a float a query head of the KV head.
  void compute(bool of_products, float* d_alibi) {
    for (int block = 0; block < n_blocks(); ++block) {
      int row = block * kRows;
      multiply_block(block);
      for (int r = row; r < row + block_rows(block); ++r) {
        for (int s = 0; s < tile_.n_steps(); ++s) {
          if (seen(block, s)) weigh_step(r, block, s, of_products, d_alibi);
        }
      }
    }
  }

  bool seen(int block, int step) const { return visibility_[block][step] != Visibility::kNone; }
  int n_blocks() const { return (n_rows_ + kRows - 1) / kRows; }
  int block_rows(int block) const { return std::min(kRows, n_rows_ - block * kRows); }
  int n_steps() const { return tile_.n_steps(); }
  const KeyTile& tile() const { return tile_; }
  const QueryRow& row(int r) const { return rows_[r]; }
  const float* weights() const { return s_.weights; }
  const float* d_scores() const { return s_.d_scores; }

 private:
  void multiply_block(int block) {
    int row = block * kRows, n = block_rows(block);
    Runs depth, depth_v;
    depth.add(0, static_cast<int>(p_.d));
    depth_v.add(0, static_cast<int>(p_.d_v));
    auto q = left_rows(s_.q, row, p_.d), d_out = left_rows(s_.d_out, row, p_.d_v);
    for (int s = 0; s < tile_.n_steps(); ++s) {
      if (!seen(block, s)) continue;
      int64_t at = row * kScoreStride + s * kStep;
      product(n, kStep, q, s_.k + s * kStep * p_.d, kWidth * p_.d, depth,
              Store{s_.weights + at, kScoreStride});
      product(n, kStep, d_out, s_.v + s * kStep * p_.d_v, kWidth * p_.d_v, depth_v,
              Store{s_.d_scores + at, kScoreStride});
    }
  }

  void weigh_step(int r, int block, int s, bool of_products, float* d_alibi) {
    const auto& row = rows_[r];
    float* scores = s_.weights + r * kScoreStride + s * kStep;
    float* d_scores = s_.d_scores + r * kScoreStride + s * kStep;
    int64_t key = tile_.first_key(s);
    auto visibility = visibility_[block][s];
    if (!scores_.plain(visibility)) scores_.apply(row, key, visibility, scores, s_.slopes);
    float lse = static_cast<const float*>(g_.lse.data)[g_.lse.offset(b_, row.h, row.i)];
    Vec base = broadcast(lse == -kInfinity ? kInfinity : lse);
    Vec constant = broadcast(constants_[(b_ * p_.n_heads + row.h) * p_.n_q + row.i]);
    Vec moment = zero();
    for (int j = 0; j < kStep; j += kLanes) {
      Vec weight = exp(sub(load(scores + j), base));
      Vec d_score = mul(weight, sub(load(d_scores + j), constant));
      if (d_alibi) moment = fma(d_score, Scores::distances(row, key + j), moment);
      if (of_products && p_.softcap > 0) d_score = mul(d_score, load(s_.slopes + j));
      store(scores + j, weight);
      store(d_scores + j, d_score);
    }
    if (d_alibi) d_alibi[row.h % (p_.n_heads / p_.n_kv_heads)] -= total(moment);
  }

  const AttentionGradParams& g_;
  const AttentionParams& p_;
  const float* constants_;
  int64_t b_, kv_head_;
  GradScratch s_;
  Scores scores_;
  KeyTile tile_;
  AttentionRange range_;
  int n_rows_ = 0;
  QueryRow rows_[kGradRows];
  Visibility visibility_[kGradBlocks][kSteps];
};

// A constant a row: d_score = weight * (d_out . v - constant), constant = d_out . out - d_lse.
MTO_APART void grad_constants(const AttentionGradParams& g, int64_t b, int64_t h,
                              AttentionRange rows, float* constants) {
  const auto& p = g.forward;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    Vec sum = zero();
    int64_t out = g.out.offset(b, h, i), d_out = g.d_out.offset(b, h, i);
    for (int64_t c = 0; c < p.d_v; c += kLanes) {
      sum = fma(load_part(g.out.type, g.out.data, out + c, p.d_v - c),
                load_part(g.d_out.type, g.d_out.data, d_out + c, p.d_v - c), sum);
    }
    float d_lse = static_cast<const float*>(g.d_lse.data)[g.d_lse.offset(b, h, i)];
    constants[(b * p.n_heads + h) * p.n_q + i] = total(sum) - d_lse;
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
