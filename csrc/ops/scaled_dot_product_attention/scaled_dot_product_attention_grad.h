#pragma once

// What both gradient kernels need: the weights of a block of rows and a tile of keys, and the
// derivatives of its scores.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

// Keys and values of one KV head, a tile at a time, against rows of the query heads that read it,
// Products::kMaxRows at a time.
template <typename Products>
class GradTile {
 public:
  static constexpr int kBlock = Products::kBlock;
  static constexpr int kMaxRows = Products::kMaxRows;

  // For d_mask, or for all other gradients.
  GradTile(const AttentionGradParams& g, const float* constants, int64_t b, int64_t kv_head,
           bool of_mask)
      : g_(g),
        p_(g.forward),
        constants_(constants),
        b_(b),
        kv_head_(kv_head),
        of_mask_(of_mask),
        s_(scratch([&](Cutter& cutter) { return Scratch(cutter, g, of_mask); })),
        scores_(g.forward, b) {
    if (!of_mask) find_spans();
  }

  void take_keys(int64_t index) {
    tile_ = key_tile(p_, b_, index);
    for (int s = 0; s < tile_.n_steps(); ++s) {
      s_.products.take_keys(b_, kv_head_, s, tile_.first_key(s), tile_.n_keys(s));
    }
  }

  // Whether kMaxRows rows from `row` on, a multiple of that, may see keys of the tile: most may not
  // where there is a window, and they have to cost next to nothing. Not for d_mask.
  bool reached_by(int64_t row) const {
    const auto& span = s_.spans[row / kMaxRows];
    return span.begin < tile_.end && tile_.begin < span.end;
  }

  // False where none of the rows sees a key of the tile.
  bool take_rows(AttentionRange rows) {
    n_rows_ = static_cast<int>(rows.end - rows.begin);
    bool any = false;
    fill_rows(p_, b_, kv_head_, rows, rows_);
    for (int block = 0; block < n_blocks(); ++block) {
      const auto* block_begin = rows_ + block * kBlock;
      auto extremes = scores_.extremes(block_begin, block_rows(block));
      for (int s = 0; s < tile_.n_steps(); ++s) {
        visibility_[block][s] =
            scores_.of_step(block_begin, block_rows(block), extremes, tile_.steps[s]);
        any = any || seen(block, s);
      }
    }
    if (any) s_.products.take_rows(b_, kv_head_, rows);
    return any;
  }

  // Weights, and derivatives of scores: of those that the mask is added to, for d_mask, else of the
  // products. d_alibi, where not null, is added to: a float a query head of the KV head.
  void compute(float* d_alibi) {
    for (int block = 0; block < n_blocks(); ++block) {
      for (int s = 0; s < tile_.n_steps(); ++s) {
        if (!seen(block, s)) continue;
        int64_t at = block * kBlock * kScoreStride + s * kStep;
        s_.products.multiply(block * kBlock, block_rows(block), s, s_.weights + at,
                             s_.d_scores + at);
        for (int r = 0; r < block_rows(block); ++r) weigh_step(block, r, s, d_alibi);
      }
    }
  }

  bool seen(int block, int step) const { return visibility_[block][step] != Visibility::kNone; }
  int n_blocks() const { return (n_rows_ + kBlock - 1) / kBlock; }
  int block_rows(int block) const { return std::min(kBlock, n_rows_ - block * kBlock); }
  const KeyTile& tile() const { return tile_; }
  Products& products() { return s_.products; }
  const float* weights() const { return s_.weights; }
  const float* d_scores() const { return s_.d_scores; }

 private:
  struct Scratch {
    Scratch(Cutter& cutter, const AttentionGradParams& g, bool of_mask)
        : products(cutter, g, of_mask) {
      weights = cutter.take(kMaxRows * kScoreStride);
      d_scores = cutter.take(kMaxRows * kScoreStride);
      slopes = cutter.take(kStep);
      int64_t n_rows = of_mask ? 0 : g.forward.group() * g.forward.n_q;
      spans = cutter.take<AttentionRange>((n_rows + kMaxRows - 1) / kMaxRows);
    }
    Products products;
    float *weights, *d_scores;  // [kMaxRows, kScoreStride]
    float* slopes;              // [kStep]
    AttentionRange* spans;      // the keys that rows see by their ranges, kMaxRows at a time
  };

  void find_spans() {
    int64_t n_rows = p_.group() * p_.n_q;
    for (int64_t row = 0; row < n_rows; row += kMaxRows) {
      TileRows all;
      each_head(p_, kv_head_, row, std::min<int64_t>(row + kMaxRows, n_rows),
                [&](int, int n, int64_t, int64_t i) {
                  for (int r = 0; r < n; ++r) all.add(p_.rows[i + r]);
                });
      s_.spans[row / kMaxRows] = {all.begin_min, all.end_max};
    }
  }

  void weigh_step(int block, int block_row, int s, float* d_alibi) {
    int r = block * kBlock + block_row;
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
      if (!of_mask_ && p_.softcap > 0) d_score = mul(d_score, load(s_.slopes + j));
      store(scores + j, weight);
      store(d_scores + j, d_score);
    }
    if (d_alibi) d_alibi[row.h % p_.group()] -= total(moment);
  }

  [[no_unique_address]] typename Products::Session session_;
  const AttentionGradParams& g_;
  const AttentionParams& p_;
  const float* constants_;
  int64_t b_, kv_head_;
  bool of_mask_;
  Scratch s_;
  Scores scores_;
  KeyTile tile_;
  int n_rows_ = 0;
  QueryRow rows_[kMaxRows];
  Visibility visibility_[kMaxRows / kBlock][kSteps];
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
