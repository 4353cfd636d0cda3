#pragma once

// The two products of the forward pass in float32, for operands of every type and quantized ones.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_decode.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_direct.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class FloatProducts {
 public:
  static constexpr int kBlock = kRows;  // rows at a time
  struct Session {};                    // what has to live while products are made

  FloatProducts(Cutter& cutter, const AttentionParams& p, int64_t n_rows)
      : p_(&p),
        n_columns_(attention_padded(p.d_v)),
        direct_(!p.k_packed.codes && n_rows <= kDirectRows) {
    q_ = cutter.take(round_up(n_rows, kLeftWidth) * p.d);
    if (direct_) return;
    k_ = cutter.take(kTile * p.d);
    v_ = cutter.take(kPanel * (round_up(p.d_v, kWidth) / kWidth));
    decoding_ =
        cutter.take(std::max(decoding_floats(p.k_packed, p.d), decoding_floats(p.v_packed, p.d_v)));
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    pack_left_rows(*p_, p_->q, b, kv_head, rows, p_->d, p_->scale, q_);
  }

  // Keys and values of one step of a tile.
  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    if (direct_) {
      tile_ = {b, kv_head, first - step * kStep};
      return;
    }
    float* k = k_ + step * kStep * p_->d;
    float* v = v_ + step * kStep * kWidth;
    if (p_->k_packed.codes && !p_->k_packed.decode) {
      GroupScales groups(p_->k_packed, b, kv_head, first, n, p_->d, decoding_);
      dispatch_affine_bits(p_->k_packed.bits, [&]<int Bits>() {
        decode_transposed<Bits>(p_->k_packed, b, kv_head, first, n, p_->d, groups, k);
      });
    } else {
      auto keys = rows(p_->k, p_->k_packed, b, kv_head, first, n, p_->d);
      pack_transposed<kWidth>(keys, n, kStep, 1, k);
    }
    if (p_->v_packed.codes && !p_->v_packed.decode) {
      GroupScales groups(p_->v_packed, b, kv_head, first, n, p_->d_v, decoding_);
      dispatch_affine_bits(p_->v_packed.bits, [&]<int Bits>() {
        decode_panels<Bits>(p_->v_packed, b, kv_head, first, n, p_->d_v, groups, v, kPanel);
      });
    } else {
      pack_rows(rows(p_->v, p_->v_packed, b, kv_head, first, n, p_->d_v), n, 1, v, kPanel);
    }
  }

  // Scaled products of n rows and the keys of n_steps steps.
  void multiply_keys(int row, int n, int step, int n_steps, float* scores) const {
    for (int s = step; direct_ && s < step + n_steps; ++s, scores += kStep) {
      int64_t first = tile_.first_key + s * kStep;
      auto n_keys = static_cast<int>(std::min<int64_t>(kStep, p_->n_k - first));
      with_rows<kDirectRows>(n, [&](auto rows) {
        multiply_keys_directly<rows.value>(left_rows(q_, row, p_->d), tile_rows(p_->k, s, p_->d),
                                           n_keys, scores);
      });
    }
    if (direct_) return;
    Runs depth;
    depth.add(0, static_cast<int>(p_->d));
    any_product(n, n_steps * kStep, left_rows(q_, row, p_->d), k_ + step * kStep * p_->d,
                kWidth * p_->d, depth, Store{scores, kScoreStride});
  }

  // Merges the values under the weights of n rows.
  void multiply_values(int n, const float* weights, const Runs& keys, const Merge& merge) const {
    if (direct_) {
      return with_rows<kDirectRows>(n, [&](auto rows) {
        multiply_values_directly<rows.value>(weights, tile_rows(p_->v, 0, p_->d_v), keys, merge);
      });
    }
    any_product(n, n_columns_, LeftScores{weights}, v_, kPanel, keys, merge);
  }

 private:
  static constexpr int64_t kPanel = kTile * kWidth;

  template <typename L, typename Finish>
  static void any_product(int n_rows, int64_t n_columns, L left, const float* panels,
                          int64_t panel_stride, const Runs& runs, Finish finish) {
    constexpr int kPanels = kRegisters == 32 ? 4 : 2;
    auto chosen = n_rows <= kFewRows ? few_rows_product<kPanels, L, Finish> : product<L, Finish>;
    chosen(n_rows, n_columns, left, panels, panel_stride, runs, finish);
  }

  // Where the keys of a step lie, or the values.
  RowSource tile_rows(const AttentionOperand& operand, int step, int64_t d) const {
    return rows_of(operand, tile_.b, tile_.kv_head, tile_.first_key + step * kStep, d);
  }

  static int64_t decoding_floats(const AttentionPacked& packed, int64_t d) {
    if (packed.decode) return decoded_floats(d);
    return packed.codes ? GroupScales::n_floats(d / packed.group_size) : 0;
  }

  // Where they lie, or decoded.
  RowSource rows(const AttentionOperand& dense, const AttentionPacked& packed, int64_t b, int64_t h,
                 int64_t first, int n, int64_t d) const {
    if (packed.decode) return decode_rows(packed, b, h, first, n, d, decoding_);
    return rows_of(dense, b, h, first, d);
  }

  struct Tile {
    int64_t b, kv_head, first_key;
  };

  const AttentionParams* p_;
  int64_t n_columns_;
  bool direct_;
  Tile tile_{};
  float *q_, *k_, *v_, *decoding_;
};

}  // namespace
}  // namespace mto::MTO_ISA
