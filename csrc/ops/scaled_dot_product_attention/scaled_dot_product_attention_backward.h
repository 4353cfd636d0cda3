#pragma once

// The gradients, in one pass over tiles of keys and, for each, blocks of rows: five products a
// pair of them. d_k and d_v of a tile are done when its rows are; d_q is added to in memory.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_grad.h"

namespace mto::MTO_ISA {
namespace {

template <typename Products>
class Backward {
 public:
  // d_q is added to and not yet scaled.
  Backward(const AttentionGradParams& g, const float* constants, int64_t b, int64_t kv_head,
           AttentionQueryGrads d_q)
      : g_(g), b_(b), kv_head_(kv_head), d_q_(d_q), tile_(g, constants, b, kv_head, false) {}

  // d_alibi gets a float a query head of the KV head: the tile's part in it.
  void run(int64_t index, float* d_alibi) {
    const auto& p = g_.forward;
    int64_t group = p.group(), n_rows = group * p.n_q;
    tile_.take_keys(index);
    tile_.products().clear_key_grads();
    if (g_.d_alibi) std::fill_n(d_alibi, group, 0.0f);
    for (int64_t row = 0; row < n_rows; row += kMaxRows) {
      if (!tile_.reached_by(row)) continue;
      AttentionRange rows{row, std::min<int64_t>(row + kMaxRows, n_rows)};
      if (!tile_.take_rows(rows)) continue;
      touch(rows);
      tile_.compute(g_.d_alibi ? d_alibi : nullptr);
      add_rows(row);
    }
    const auto& tile = tile_.tile();
    int64_t at = (b_ * p.n_kv_heads + kv_head_) * p.n_k + tile.begin;
    tile_.products().write_key_grads(at, static_cast<int>(tile.end - tile.begin));
  }

 private:
  static constexpr int kBlock = Products::kBlock;
  static constexpr int kMaxRows = Products::kMaxRows;
  static_assert(kMaxRows % kAttentionGradRows == 0);

  // Sums that are added to for the first time start as zeros.
  void touch(AttentionRange rows) {
    int64_t stride = attention_d_q_stride(g_.forward.d);
    for (int64_t row = rows.begin; row < rows.end; row += kAttentionGradRows) {
      uint8_t& touched = d_q_.touched[row / kAttentionGradRows];
      int64_t n = std::min(kAttentionGradRows, rows.end - row);
      if (!touched) std::fill_n(d_q_.sums + row * stride, n * stride, 0.0f);
      touched = 1;
    }
  }

  void add_rows(int64_t first_row) {
    for (int block = 0; block < tile_.n_blocks(); ++block) {
      add_to_query_grads(block, first_row + block * kBlock);
    }
    const auto& tile = tile_.tile();
    for (int s = 0; s < tile.n_steps(); ++s) {
      Runs seeing;
      for (int block = 0; block < tile_.n_blocks(); ++block) {
        int row = block * kBlock;
        if (tile_.seen(block, s)) seeing.add(row, row + tile_.block_rows(block));
      }
      if (seeing.n == 0) continue;
      tile_.products().add_key_grads(s, tile.n_keys(s), seeing, tile_.weights(), tile_.d_scores());
    }
  }

  void add_to_query_grads(int block, int64_t row) {
    const auto& tile = tile_.tile();
    int n = tile_.block_rows(block);
    Runs keys;
    for (int s = 0; s < tile.n_steps(); ++s) {
      if (!tile_.seen(block, s)) continue;
      keys.add(s * kStep, s * kStep + tile.n_keys(s));
      tile_.products().take_scores(block, n, s, tile_.weights(), tile_.d_scores());
    }
    if (keys.n == 0) return;
    tile_.products().add_query_grads(block * kBlock, n, keys, tile_.d_scores(),
                                     d_q_.sums + row * attention_d_q_stride(g_.forward.d));
  }

  const AttentionGradParams& g_;
  int64_t b_, kv_head_;
  AttentionQueryGrads d_q_;
  GradTile<Products> tile_;
};

MTO_APART void write_d_q(const AttentionGradParams& g, AttentionRange rows,
                         AttentionQueryGrads parts, int64_t n_parts, int64_t part_floats,
                         int64_t part_bytes) {
  const auto& p = g.forward;
  int64_t stride = attention_d_q_stride(p.d);
  auto* sums = static_cast<float*>(thread_scratch(stride * sizeof(float)));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t c = 0; c < stride; c += kLanes) {
      Vec sum = zero();
      for (int64_t part = 0; part < n_parts; ++part) {
        if (!parts.touched[part * part_bytes]) continue;
        sum = add(sum, load(parts.sums + part * part_floats + row * stride + c));
      }
      store(sums + c, mul(sum, broadcast(p.scale)));
    }
    convert_from_float(g.grad_type, sums, p.d, g.d_q, row * p.d);
  }
}

// d_mask, all that one head adds to it at some rows and keys of that head.
template <typename Products>
void add_mask_grad(const AttentionGradParams& g, const float* constants, int64_t b, int64_t h,
                   AttentionRange rows, AttentionRange keys) {
  constexpr int kMaxRows = Products::kMaxRows;
  const auto& p = g.forward;
  auto* d_mask = const_cast<float*>(static_cast<const float*>(g.d_mask.data));
  int64_t group = p.group(), first_row = h % group * p.n_q;
  GradTile<Products> block(g, constants, b, h / group, true);
  for (int64_t key = keys.begin; key < keys.end; key += kTile) {
    block.take_keys(key / kTile);
    const auto& tile = block.tile();
    for (int64_t i = rows.begin; i < rows.end; i += kMaxRows) {
      int64_t end = std::min<int64_t>(i + kMaxRows, rows.end);
      if (!block.take_rows({first_row + i, first_row + end})) continue;
      block.compute(nullptr);
      for (int r = 0; r < end - i; ++r) {
        for (int s = 0; s < tile.n_steps(); ++s) {
          if (!block.seen(r / Products::kBlock, s)) continue;
          const float* d_scores = block.d_scores() + r * kScoreStride + s * kStep;
          int64_t at = g.d_mask.offset(b, h, i + r, key + s * kStep);
          for (int j = 0; j < tile.n_keys(s); ++j) {
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

template <typename Products>
void mask_grad(const AttentionGradParams& g, const float* constants, int64_t b, int64_t h,
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
      add_mask_grad<Products>(g, constants, other, head, spread(rows, g.d_mask.row, p.n_q),
                              spread(keys, g.d_mask.column, p.n_k));
    }
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
