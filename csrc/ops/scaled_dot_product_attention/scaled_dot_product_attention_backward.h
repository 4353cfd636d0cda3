#pragma once

// The gradients, in one pass over tiles of keys and, for each, blocks of rows: five products a
// pair of them. d_k and d_v of a tile are done when its rows are; d_q is added to in memory.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_grad.h"

namespace mto::MTO_ISA {
namespace {

struct BackwardScratch {
  GradScratch tile;
  float* k_rows;               // the tile's keys as the right operand of d_q
  float *q_rows, *d_out_rows;  // the block's rows as the right operands of d_k and d_v
  float *d_k, *d_v;            // [kTile, stride]
  float* d_alibi;              // a float a query head of the KV head

  static BackwardScratch cut(Cutter& cutter, const AttentionParams& p) {
    BackwardScratch s;
    s.tile = GradScratch::cut(cutter, p);
    int64_t d = round_up(p.d, kWidth), d_v = round_up(p.d_v, kWidth);
    s.k_rows = cutter.take(kTile * d);
    s.q_rows = cutter.take(kGradRows * d);
    s.d_out_rows = cutter.take(kGradRows * d_v);
    s.d_k = cutter.take(kTile * round_up(p.d, kLanes));
    s.d_v = cutter.take(kTile * round_up(p.d_v, kLanes));
    s.d_alibi = cutter.take(p.n_heads / p.n_kv_heads);
    return s;
  }
};

class Backward {
 public:
  // d_q: float32 [heads of the KV head * n_q, attention_d_q_stride], added to and not yet scaled.
  Backward(const AttentionGradParams& g, const float* constants, int64_t b, int64_t kv_head,
           float* d_q)
      : g_(g),
        p_(g.forward),
        b_(b),
        kv_head_(kv_head),
        d_q_(d_q),
        s_(scratch([&](Cutter& cutter) { return BackwardScratch::cut(cutter, g.forward); })),
        tile_(g, constants, b, kv_head, s_.tile) {}

  // d_alibi gets a float a query head of the KV head: the tile's part in it.
  void run(int64_t index, float* d_alibi) {
    int64_t group = p_.n_heads / p_.n_kv_heads, n_rows = group * p_.n_q;
    tile_.take_keys(index);
    for (int s = 0; s < tile_.n_steps(); ++s) {
      auto k = rows_of(p_.k, b_, kv_head_, tile_.tile().first_key(s), p_.d);
      pack_rows(k, tile_.tile().n_keys(s), 1, s_.k_rows + s * kStep * kWidth, kTile * kWidth);
    }
    std::fill_n(s_.d_k, kTile * stride_, 0.0f);
    std::fill_n(s_.d_v, kTile * stride_v_, 0.0f);
    std::fill_n(s_.d_alibi, group, 0.0f);
    for (int64_t row = 0; row < n_rows; row += kGradRows) {
      add_rows({row, std::min<int64_t>(row + kGradRows, n_rows)});
    }
    write(g_.d_k, s_.d_k, stride_, p_.d);
    write(g_.d_v, s_.d_v, stride_v_, p_.d_v);
    if (g_.d_alibi) std::copy_n(s_.d_alibi, group, d_alibi);
  }

 private:
  void add_rows(AttentionRange rows) {
    if (!tile_.take_rows(rows)) return;
    tile_.compute(true, g_.d_alibi ? s_.d_alibi : nullptr);
    pack_right_rows(p_.q, rows, p_.d, p_.scale, s_.q_rows);
    pack_right_rows(g_.d_out, rows, p_.d_v, 1, s_.d_out_rows);
    for (int s = 0; s < tile_.n_steps(); ++s) {
      Runs seeing;
      for (int block = 0; block < tile_.n_blocks(); ++block) {
        int row = block * kRows;
        if (tile_.seen(block, s)) seeing.add(row, row + tile_.block_rows(block));
      }
      int key = s * kStep, n = tile_.tile().n_keys(s);
      product(n, stride_v_, LeftColumns{tile_.weights() + key}, s_.d_out_rows, kGradRows * kWidth,
              seeing, Add{s_.d_v + key * stride_v_, stride_v_});
      product(n, stride_, LeftColumns{tile_.d_scores() + key}, s_.q_rows, kGradRows * kWidth,
              seeing, Add{s_.d_k + key * stride_, stride_});
    }
    for (int block = 0; block < tile_.n_blocks(); ++block) {
      Runs seen;
      for (int s = 0; s < tile_.n_steps(); ++s) {
        if (tile_.seen(block, s)) seen.add(s * kStep, s * kStep + tile_.tile().n_keys(s));
      }
      int row = block * kRows;
      int64_t stride = attention_d_q_stride(p_.d);
      product(tile_.block_rows(block), stride_, LeftScores{tile_.d_scores() + row * kScoreStride},
              s_.k_rows, kTile * kWidth, seen, Add{d_q_ + (rows.begin + row) * stride, stride});
    }
  }

  void pack_right_rows(const AttentionOperand& operand, AttentionRange rows, int64_t d,
                       float factor, float* out) {
    each_head(p_, kv_head_, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
      pack_rows(rows_of(operand, b_, h, i, d), n, factor, out + first * kWidth, kGradRows * kWidth);
    });
  }

  void write(void* out, const float* sums, int64_t stride, int64_t d) {
    const auto& tile = tile_.tile();
    int64_t at = (b_ * p_.n_kv_heads + kv_head_) * p_.n_k;
    for (int64_t j = tile.begin; j < tile.end; ++j, sums += stride) {
      convert_from_float(g_.grad_type, sums, d, out, (at + j) * d);
    }
  }

  const AttentionGradParams& g_;
  const AttentionParams& p_;
  int64_t b_, kv_head_;
  float* d_q_;
  BackwardScratch s_;
  GradTile tile_;
  int64_t stride_ = round_up(p_.d, kLanes), stride_v_ = round_up(p_.d_v, kLanes);
};

// d_q of some rows of the batch elements' heads, from n_parts sums that are `part_floats` apart.
MTO_APART void write_d_q(const AttentionGradParams& g, AttentionRange rows, const float* parts,
                         int64_t n_parts, int64_t part_floats) {
  const auto& p = g.forward;
  int64_t stride = attention_d_q_stride(p.d);
  auto* sums = static_cast<float*>(thread_scratch(stride * sizeof(float)));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* first = parts + row * stride;
    for (int64_t c = 0; c < stride; c += kLanes) {
      Vec sum = load(first + c);
      for (int64_t part = 1; part < n_parts; ++part) {
        sum = add(sum, load(first + part * part_floats + c));
      }
      store(sums + c, mul(sum, broadcast(p.scale)));
    }
    convert_from_float(g.grad_type, sums, p.d, g.d_q, row * p.d);
  }
}

// d_mask, all that one head adds to it at some rows and keys of that head.
MTO_APART void add_mask_grad(const AttentionGradParams& g, const float* constants, int64_t b,
                             int64_t h, AttentionRange rows, AttentionRange keys) {
  const auto& p = g.forward;
  auto* d_mask = const_cast<float*>(static_cast<const float*>(g.d_mask.data));
  int64_t group = p.n_heads / p.n_kv_heads, first_row = h % group * p.n_q;
  GradTile tile(g, constants, b, h / group,
                scratch([&](Cutter& cutter) { return GradScratch::cut(cutter, p); }));
  for (int64_t key = keys.begin; key < keys.end; key += kTile) {
    tile.take_keys(key / kTile);
    for (int64_t i = rows.begin; i < rows.end; i += kGradRows) {
      int64_t end = std::min<int64_t>(i + kGradRows, rows.end);
      if (!tile.take_rows({first_row + i, first_row + end})) continue;
      tile.compute(false, nullptr);
      for (int r = 0; r < end - i; ++r) {
        for (int s = 0; s < tile.n_steps(); ++s) {
          if (!tile.seen(r / kRows, s)) continue;
          const float* d_scores = tile.d_scores() + r * kScoreStride + s * kStep;
          int64_t at = g.d_mask.offset(b, h, i + r, key + s * kStep);
          for (int j = 0; j < tile.tile().n_keys(s); ++j) {
            d_mask[at + j * g.d_mask.column] += d_scores[j];
          }
        }
      }
    }
  }
}

// A range of the mask's own indices along an axis of n, spread over the axis where it broadcasts.
inline AttentionRange spread(AttentionRange own, int64_t stride, int64_t n) {
  return stride == 0 ? AttentionRange{0, n} : own;
}

MTO_APART void mask_grad(const AttentionGradParams& g, const float* constants, int64_t b, int64_t h,
                         AttentionRange rows, AttentionRange keys) {
  const auto& p = g.forward;
  auto* d_mask = const_cast<float*>(static_cast<const float*>(g.d_mask.data));
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    for (int64_t j = keys.begin; j < keys.end; ++j) d_mask[g.d_mask.offset(b, h, i, j)] = 0;
  }
  auto heads = spread({h, h + 1}, g.d_mask.head, p.n_heads);
  for (int64_t other = b; other < p.n_batch; ++other) {
    if (g.d_mask.batch[other] != g.d_mask.batch[b]) continue;
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      add_mask_grad(g, constants, other, head, spread(rows, g.d_mask.row, p.n_q),
                    spread(keys, g.d_mask.column, p.n_k));
    }
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
