#pragma once

// The five products of the gradients for bfloat16 operands, on processors that multiply tiles of
// them. Weights and derivatives of scores are rounded to bfloat16; sums are float32. d_k and d_v
// are summed transposed: a row-major block of scores is then nearly the right operand as it is.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_bf16_pack.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class Bf16GradProducts {
 public:
  static constexpr int kBlock = 2 * kTileSide;
  static constexpr int kMaxRows = 128;
  using Session = Bf16Tiles;

  Bf16GradProducts(Cutter& cutter, const AttentionGradParams& g, bool of_mask)
      : g_(&g), p_(&g.forward), of_mask_(of_mask) {
    d_ = round_up(p_->d, kTileDepth);
    d_v_ = round_up(p_->d_v, kTileDepth);
    k_ = cutter.take(kTile * d_ / 2);
    v_ = cutter.take(kTile * d_v_ / 2);
    q_ = cutter.take<uint16_t>(kMaxRows * d_);
    d_out_ = cutter.take<uint16_t>(kMaxRows * d_v_);
    sums_ = cutter.take(kBlock * kBlock);
    if (of_mask) return;
    k_rows_ = cutter.take(kTile * d_ / 2);
    q_columns_ = cutter.take<uint16_t>(d_ * kRowStride);
    d_out_columns_ = cutter.take<uint16_t>(d_v_ * kRowStride);
    weights_ = cutter.take(kMaxRows * kTile / 2);
    d_scores_ = cutter.take(kMaxRows * kTile / 2);
    d_score_rows_ = cutter.take<uint16_t>(kMaxRows * kKeyStride);
    d_k_ = cutter.take(d_ * kScoreStride);
    d_v_sums_ = cutter.take(d_v_ * kScoreStride);
  }

  void clear_key_grads() {
    std::fill_n(d_k_, d_ * kScoreStride, 0.0f);
    std::fill_n(d_v_sums_, d_v_ * kScoreStride, 0.0f);
  }

  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    auto k = rows_of(p_->k, b, kv_head, first, p_->d);
    pack_tiles_across(k, n, k_ + step * kStep * d_ / 2);
    pack_tiles_across(rows_of(p_->v, b, kv_head, first, p_->d_v), n, v_ + step * kStep * d_v_ / 2);
    if (!of_mask_) pack_tiles_along(k, n, k_rows_ + step * kStep * d_ / 2);
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    copy_left_rows(*p_, p_->q, b, kv_head, rows, p_->d, q_);
    copy_left_rows(*p_, g_->d_out, b, kv_head, rows, p_->d_v, d_out_);
    if (of_mask_) return;
    auto n = static_cast<int>(rows.end - rows.begin);
    for (int row = 0; row < n; row += kBlock) {
      transpose_halves(q_ + row * d_, std::min(kBlock, n - row), d_, q_columns_ + row);
      transpose_halves(d_out_ + row * d_v_, std::min(kBlock, n - row), d_v_, d_out_columns_ + row);
    }
  }

  MTO_FLAT void multiply(int row, int n, int step, float* scores, float* d_weights) const {
    const float* k = k_ + step * kStep * d_ / 2;
    multiply_rows(n, q_ + row * d_, d_, k, scores);
    Vec scale = broadcast(p_->scale);
    for (int r = 0; r < n; ++r, scores += kScoreStride) {
      store(scores, mul(load(scores), scale));
      store(scores + kLanes, mul(load(scores + kLanes), scale));
    }
    multiply_rows(n, d_out_ + row * d_v_, d_v_, v_ + step * kStep * d_v_ / 2, d_weights);
  }

  // Rounds scores of a block of n rows and a step of keys.
  MTO_FLAT void take_scores(int block, int n, int step, const float* weights,
                            const float* d_scores) {
    int64_t at = block * kBlock * kScoreStride + step * kStep;
    int64_t tile = (block * kSteps + step) * 2 * kTileFloats;
    pair_rows(n, weights + at, weights_ + tile);
    pair_rows(n, d_scores + at, d_scores_ + tile);
    uint16_t* rows = d_score_rows_ + block * kBlock * kKeyStride + step * kStep;
    for (int r = 0; r < n; ++r) {
      const float* row = d_scores + at + r * kScoreStride;
      _mm512_storeu_si512(rows + r * kKeyStride, bf16_from_vecs(load(row), load(row + kLanes)));
    }
  }

  void add_key_grads(int step, int, const Runs& rows, const float*, const float*) {
    add_columns(step, rows, d_out_columns_, d_v_, weights_, d_v_sums_);
    add_columns(step, rows, q_columns_, d_, d_scores_, d_k_);
  }

  MTO_FLAT void add_query_grads(int row, int n, const Runs& keys, const float*, float* d_q) {
    int64_t stride = attention_d_q_stride(p_->d);
    for (int64_t column = 0; column < d_; column += kTileDepth) {
      zero_tiles();
      for (int i = 0; i < keys.n; ++i) {
        for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kStep) {
          multiply_tiles(n > kTileSide, d_score_rows_ + row * kKeyStride + j, kKeyStride,
                         k_rows_ + j * d_ / 2 + column * kTileSide);
        }
      }
      store_tiles(n > kTileSide, sums_, kBlock);
      for (int r = 0; r < n; ++r) {
        for (int c = 0; c < kBlock && column + c < stride; c += kLanes) {
          float* at = d_q + r * stride + column + c;
          store(at, add(load(at), load(sums_ + r * kBlock + c)));
        }
      }
    }
  }

  void write_key_grads(int64_t at, int n) {
    write_columns(d_k_, p_->d, p_->scale, at, n, g_->d_k);
    write_columns(d_v_sums_, p_->d_v, 1, at, n, g_->d_v);
  }

 private:
  // Not powers of two, for the sake of the cache.
  static constexpr int64_t kRowStride = kMaxRows + kTileDepth;
  static constexpr int64_t kKeyStride = kTile + kTileDepth;

  static MTO_INLINE void multiply_rows(int n, const uint16_t* left, int64_t d, const float* right,
                                       float* out) {
    zero_tiles();
    for (int64_t c = 0; c < d; c += kTileDepth, right += 2 * kTileFloats) {
      multiply_tiles(n > kTileSide, left + c, d, right);
    }
    store_tiles(n > kTileSide, out, kScoreStride);
  }

  // n <= 32 rows, and zeros, as columns. Pairs of columns move as one float.
  static MTO_APART MTO_FLAT void transpose_halves(const uint16_t* rows, int n, int64_t d,
                                                  uint16_t* out) {
    alignas(64) static constexpr auto kEvery = [] {
      std::array<uint16_t, 64> indices{};
      for (uint16_t i = 0; i < 64; ++i) indices[i] = static_cast<uint16_t>(i % 32 * 2 + i / 32);
      return indices;
    }();
    __m512i even = _mm512_load_si512(kEvery.data()), odd = _mm512_load_si512(kEvery.data() + 32);
    for (int64_t column = 0; column < d; column += kTileDepth) {
      Vec squares[2][kTileSide];
      for (int i = 0; i < kBlock; ++i) {
        const uint16_t* row = rows + i * d + column;
        squares[i / kTileSide][i % kTileSide] =
            i < n ? _mm512_castsi512_ps(_mm512_loadu_si512(row)) : zero();
      }
      transpose(squares[0]);
      transpose(squares[1]);
      for (int i = 0; i < kTileSide; ++i) {
        __m512i first = _mm512_castps_si512(squares[0][i]);
        __m512i second = _mm512_castps_si512(squares[1][i]);
        uint16_t* at = out + (column + 2 * i) * kRowStride;
        _mm512_storeu_si512(at, _mm512_permutex2var_epi16(first, even, second));
        _mm512_storeu_si512(at + kRowStride, _mm512_permutex2var_epi16(first, odd, second));
      }
    }
  }

  // A block of n rows of scores, and zeros, as two right tiles whose depth is the rows.
  static MTO_INLINE void pair_rows(int n, const float* scores, float* out) {
    __m512i order = _mm512_load_si512(kInterleaved.data());
    for (int r = 0; r < kBlock; r += 2, scores += 2 * kScoreStride, out += kTileSide) {
      for (int c = 0; c < kBlock; c += kTileSide) {
        Vec even = r < n ? load(scores + c) : zero();
        Vec odd = r + 1 < n ? load(scores + kScoreStride + c) : zero();
        __m512i pairs = _mm512_permutexvar_epi16(order, bf16_from_vecs(even, odd));
        _mm512_storeu_si512(out + c / kTileSide * kTileFloats, pairs);
      }
    }
  }

  // sums [d, kScoreStride] += columns of rows [d, rows] x scores [rows, keys of a step].
  static MTO_APART MTO_FLAT void add_columns(int step, const Runs& rows, const uint16_t* columns,
                                             int64_t d, const float* scores, float* sums) {
    for (int64_t c = 0; c < d; c += kBlock) {
      float* at = sums + c * kScoreStride + step * kStep;
      load_tiles(at, kScoreStride);
      for (int i = 0; i < rows.n; ++i) {
        for (int row = rows.runs[i].begin; row < rows.runs[i].end; row += kBlock) {
          multiply_tiles(true, columns + c * kRowStride + row, kRowStride,
                         scores + (row / kBlock * kSteps + step) * 2 * kTileFloats);
        }
      }
      store_tiles(true, at, kScoreStride);
    }
  }

  MTO_FLAT void write_columns(const float* sums, int64_t d, float factor, int64_t at, int n,
                              void* out) {
    float* row = sums_;
    for (int key = 0; key < n; key += kTileSide) {
      for (int64_t c = 0; c < d; c += kTileSide) {
        Vec square[kTileSide];
        for (int i = 0; i < kTileSide; ++i) square[i] = load(sums + (c + i) * kScoreStride + key);
        transpose(square);
        int64_t width = std::min<int64_t>(kTileSide, d - c);
        for (int j = 0; j < std::min(kTileSide, n - key); ++j) {
          store(row, mul(square[j], broadcast(factor)));
          convert_from_float(g_->grad_type, row, width, out, (at + key + j) * d + c);
        }
      }
    }
  }

  // Halves 0, 16, 1, 17, ..
  alignas(64) static constexpr auto kInterleaved = [] {
    std::array<uint16_t, 32> indices{};
    for (uint16_t i = 0; i < 32; ++i) indices[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
    return indices;
  }();

  const AttentionGradParams* g_;
  const AttentionParams* p_;
  bool of_mask_;
  int64_t d_, d_v_;                       // rounded up
  float *k_, *v_;                         // a tile of keys and values, right tiles across
  uint16_t *q_, *d_out_;                  // a block of rows
  float* k_rows_;                         // keys, right tiles along
  uint16_t *q_columns_, *d_out_columns_;  // [d, kRowStride]
  float *weights_, *d_scores_;            // right tiles along, two for each block and step
  uint16_t* d_score_rows_;                // [kMaxRows, kKeyStride]
  float *d_k_, *d_v_sums_;                // [d, kScoreStride]
  float* sums_;
};

}  // namespace
}  // namespace mto::MTO_ISA
