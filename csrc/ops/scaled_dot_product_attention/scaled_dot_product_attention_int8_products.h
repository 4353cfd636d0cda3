#pragma once

// The two products of the forward pass over quantized keys and values, for 16-bit queries, on
// processors that multiply tiles of bytes. Codes are the right operands as they are. Queries, and
// weights times scales, are whole numbers of 24 bits relative to the greatest of a group; their
// sums with codes are exact, whatever rows are beside them. Scales and biases are applied to sums
// over groups. What that takes from float32 results is more than they may lose; 16-bit ones do not
// show it.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_int8_pack.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scratch.h"

namespace mto::MTO_ISA {
namespace {

class Int8Products {
 public:
  static constexpr int kBlock = Int8Tiles::kMaxRows;
  struct Session {};  // what has to live while products are made: tiles_

  Int8Products(Cutter& cutter, const AttentionParams& p, int64_t n_rows)
      : p_(&p),
        k_groups_(p.d / p.k_packed.group_size),
        v_groups_(p.d_v / p.v_packed.group_size),
        k_depth_(std::min(p.k_packed.group_size, Int8Tiles::kMaxDepth)) {
    int64_t n_blocks = (n_rows + kBlock - 1) / kBlock;
    q_ = cutter.take<uint8_t>(n_blocks * q_block_bytes());
    q_facts_ = cutter.take(n_blocks * kBlock * k_groups_ * 2);
    k_ = cutter.take<uint8_t>(kTile * p.d);
    v_ = cutter.take<uint8_t>(kTile * p.d_v);
    k_scales_ = cutter.take(2 * k_groups_ * kTile);
    v_scales_ = cutter.take(2 * v_groups_ * kTile);
    zeros_ = cutter.take<uint8_t>(v_groups_ * kTile);
    rows_ = cutter.take(kStep * std::max({k_groups_, v_groups_, p.d / kStep}));
    weights_ = cutter.take<uint8_t>(kParts * kBlock * kWeightStride);
    sums_ = cutter.take<int32_t>(2 * kHalfSums);
  }

  void take_rows(int64_t b, int64_t kv_head, AttentionRange rows) {
    n_rows_ = static_cast<int>(rows.end - rows.begin);
    dispatch_affine_bits(p_->k_packed.bits, [&]<int Bits>() {
      each_head(*p_, kv_head, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
        for (int r = 0; r < n; ++r) take_row<Bits == 4>(first + r, p_->q.offset(b, h, i + r));
      });
    });
  }

  void take_keys(int64_t b, int64_t kv_head, int step, int64_t first, int n) {
    take_operand(p_->k_packed, b, kv_head, step, first, n, k_groups_, k_scales_);
    take_operand(p_->v_packed, b, kv_head, step, first, n, v_groups_, v_scales_);
    for (int64_t g = 0, at = step * kStep; g < v_groups_; ++g, at += kTile) {
      take_zeros(v_scales_ + at, v_scales_ + v_groups_ * kTile + at, p_->v_packed.bits,
                 zeros_ + at);
    }
    CodeRows keys(p_->k_packed, b, kv_head, first, p_->d);
    dispatch_affine_bits(p_->k_packed.bits, [&]<int Bits>() {
      pack_codes_across<Bits>(keys, n, k_ + step * kStep * p_->d);
    });
    CodeRows values(p_->v_packed, b, kv_head, first, p_->d_v);
    // Two steps fill the depth of a tile.
    uint8_t* tiles = v_ + step / 2 * 2 * kStep * p_->d_v + step % 2 * kByteTile / 2;
    dispatch_affine_bits(p_->v_packed.bits,
                         [&]<int Bits>() { pack_codes_along<Bits>(values, n, tiles); });
  }

  // Scaled products of n rows and the keys of n_steps steps.
  void multiply_keys(int row, int n, int step, int n_steps, float* scores) {
    tiles_.shape(tile_rows(n), k_depth_);
    for (int s = 0; s < n_steps; ++s) multiply_step(row, n, step + s, scores + s * kStep);
  }

  // Merges the values under the weights of n rows.
  MTO_FLAT void multiply_values(int n, const float* weights, const Runs& keys, const Merge& merge) {
    uint32_t steps = 0, pairs = 0;
    for (int i = 0; i < keys.n; ++i) {
      for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kStep) steps |= 1u << j / kStep;
    }
    for (int m = 0; m < kSteps / 2; ++m) pairs |= (steps >> 2 * m & 3) != 0 ? 1u << m : 0;
    bool interleaved = p_->v_packed.bits == 4;
    tiles_.shape(tile_rows(n), Int8Tiles::kMaxDepth);
    for (int64_t g = 0; g < v_groups_; ++g) {
      RowWeights rows[kBlock];
      for (int r = 0; r < n; ++r) {
        rows[r] = take_weights(r, n, g, steps, weights + r * kScoreStride);
      }
      int64_t column = g * p_->v_packed.group_size, end = column + p_->v_packed.group_size;
      for (; column < end; column += 2 * kLanes) {
        const uint8_t* right = v_ + column / kLanes * kByteTile;
        multiply(n, Left{weights_, kWeightStride, 64}, right, right + kByteTile,
                 Int8Tiles::kMaxDepth * p_->d_v, pairs);
        for (int r = 0; r < n; ++r) {
          const int32_t* sums = sums_ + r * kLanes;
          Vec factor = broadcast(rows[r].factor), share = broadcast(rows[r].share);
          Vec first = fma(whole_sum(sums, n * kLanes, rows[r].zeros), factor, share);
          Vec second = fma(whole_sum(sums + kHalfSums, n * kLanes, rows[r].zeros), factor, share);
          if (interleaved) interleave(first, second);
          merge(r, column, first);
          merge(r, column + kLanes, second);
        }
      }
    }
  }

 private:
  // Not a power of two, for the sake of the cache.
  static constexpr int64_t kWeightStride = kTile + 64;
  static constexpr int64_t kHalfSums = kParts * kBlock * kLanes;

  // Row part * n + r of a left tile is part `part` of row r.
  struct Left {
    const uint8_t* at;
    int64_t row_bytes, tile_bytes;
  };

  // Of one row and group: the factor that takes parts of weights back, the sum of weights times
  // biases, and the sums of parts times the codes that stand for zero.
  struct RowWeights {
    float factor, share;
    int32_t zeros[kParts];
  };

  int64_t q_block_bytes() const { return p_->d / k_depth_ * kParts * kBlock * 64; }
  static bool fits_one_tile(int n) { return kParts * n <= Int8Tiles::kMaxRows; }
  static int tile_rows(int n) { return fits_one_tile(n) ? kParts * n : n; }
  int block_rows(int row) const { return std::min(kBlock, n_rows_ - row / kBlock * kBlock); }

  MTO_FLAT void multiply_step(int row, int n, int step, float* scores) {
    int64_t tile_bytes = k_depth_ * kLanes, half = kLanes * p_->d;
    int n_tiles = p_->k_packed.group_size / k_depth_;
    const uint8_t* left = q_ + row / kBlock * q_block_bytes();
    const uint8_t* right = k_ + step * kStep * p_->d;
    const float* facts = q_facts_ + row * k_groups_ * 2;
    for (int64_t g = 0; g < k_groups_; ++g) {
      multiply(n, Left{left, 64, kParts * n * 64}, right, right + half, tile_bytes,
               (1u << n_tiles) - 1);
      left += n_tiles * kParts * n * 64;
      right += n_tiles * tile_bytes;
      add_scores(n, g, step, facts, scores);
    }
  }

  // Parts of one query, and for each group the factor of its products and its share of the bias.
  template <bool EvenFirst>
  MTO_FLAT void take_row(int row, int64_t at) {
    int n = block_rows(row), r = row % kBlock;
    uint8_t* block = q_ + row / kBlock * q_block_bytes();
    for (int64_t g = 0, c = 0; g < k_groups_; ++g) {
      __m512i magnitudes = _mm512_setzero_si512();
      Vec sum = zero();
      int64_t end = c + p_->k_packed.group_size;
      for (int64_t i = c; i < end; i += kLanes) {
        Vec values = load_as(p_->type, p_->q.data, at + i);
        magnitudes = _mm512_max_epi32(magnitudes, FixedPoint::magnitude(values));
        sum = add(sum, values);
      }
      FixedPoint fixed(magnitudes);
      float* facts = q_facts_ + (row * k_groups_ + g) * 2;
      facts[0] = p_->scale * fixed.down;
      facts[1] = p_->scale * total(sum);
      for (; c < end; c += kLanes) {
        FixedParts fixed_parts(mul(load_as(p_->type, p_->q.data, at + c), fixed.up));
        uint8_t* tile = block + c / k_depth_ * kParts * n * 64 + c % k_depth_;
        for (int part = 0; part < kParts; ++part) {
          __m128i bytes = fixed_parts.parts[part];
          if (EvenFirst) {
            bytes = _mm_shuffle_epi8(
                bytes, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
          }
          _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + (part * n + r) * 64), bytes);
        }
      }
    }
  }

  void take_operand(const AttentionPacked& packed, int64_t b, int64_t h, int step, int64_t first,
                    int n, int64_t n_groups, float* out) {
    out += step * kStep;
    take_scales(packed.scales, b, h, first, n, n_groups, rows_, out);
    take_scales(packed.biases, b, h, first, n, n_groups, rows_, out + n_groups * kTile);
  }

  // sums_ = the products of left tiles, one behind the other, and two rows of right tiles; only
  // those in the set `tiles`.
  MTO_INLINE void multiply(int n, Left left, const uint8_t* right0, const uint8_t* right1,
                           int64_t right_bytes, uint32_t tiles) const {
    if (fits_one_tile(n)) {
      tile_zero<0>();
      tile_zero<1>();
      for (; tiles != 0; tiles >>= 1) {
        if (tiles & 1) {
          tile_load<4>(left.at, left.row_bytes);
          tile_load<3>(right0, 64);
          tile_load<7>(right1, 64);
          tile_multiply_bytes<0, 4, 3>();
          tile_multiply_bytes<1, 4, 7>();
        }
        left.at += left.tile_bytes;
        right0 += right_bytes;
        right1 += right_bytes;
      }
      tile_store<0>(sums_, 64);
      tile_store<1>(sums_ + kHalfSums, 64);
      return;
    }
    multiply_parts(n, left, right0, right_bytes, tiles, sums_);
    multiply_parts(n, left, right1, right_bytes, tiles, sums_ + kHalfSums);
  }

  static MTO_INLINE void multiply_parts(int n, Left left, const uint8_t* right, int64_t right_bytes,
                                        uint32_t tiles, int32_t* sums) {
    int64_t part = n * left.row_bytes;
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    for (; tiles != 0; tiles >>= 1) {
      if (tiles & 1) {
        tile_load<7>(right, 64);
        tile_load<4>(left.at, left.row_bytes);
        tile_load<5>(left.at + part, left.row_bytes);
        tile_load<6>(left.at + 2 * part, left.row_bytes);
        tile_multiply_bytes<0, 4, 7>();
        tile_multiply_bytes<1, 5, 7>();
        tile_multiply_bytes<2, 6, 7>();
      }
      left.at += left.tile_bytes;
      right += right_bytes;
    }
    tile_store<0>(sums, 64);
    tile_store<1>(sums + n * kLanes, 64);
    tile_store<2>(sums + 2 * n * kLanes, 64);
  }

  MTO_INLINE void add_scores(int n, int64_t g, int step, const float* facts, float* scores) const {
    for (int half = 0; half < 2; ++half) {
      const float* scales = k_scales_ + g * kTile + step * kStep + half * kLanes;
      Vec scale = load(scales), bias = load(scales + k_groups_ * kTile);
      for (int r = 0; r < n; ++r) {
        float* at = scores + r * kScoreStride + half * kLanes;
        Vec product = whole_sum(sums_ + half * kHalfSums + r * kLanes, n * kLanes, {});
        product = mul(product, broadcast(facts[(r * k_groups_ + g) * 2]));
        Vec share = mul(bias, broadcast(facts[(r * k_groups_ + g) * 2 + 1]));
        if (g > 0) share = add(share, load(at));
        store(at, fma(product, scale, share));
      }
    }
  }

  // Weights of one row times the scales of group g, as parts.
  MTO_INLINE RowWeights take_weights(int r, int n, int64_t g, uint32_t steps,
                                     const float* weights) const {
    const float* scales = v_scales_ + g * kTile;
    const float* biases = scales + v_groups_ * kTile;
    __m512i magnitudes = _mm512_setzero_si512();
    Vec sum = zero();
    for (int s = 0; s < kSteps; ++s) {
      if ((steps >> s & 1) == 0) continue;
      for (int j = s * kStep; j < (s + 1) * kStep; j += kLanes) {
        Vec weight = load(weights + j);
        magnitudes =
            _mm512_max_epi32(magnitudes, FixedPoint::magnitude(mul(weight, load(scales + j))));
        sum = fma(weight, load(biases + j), sum);
      }
    }
    FixedPoint fixed(magnitudes);
    __m128i zeros[kParts] = {};
    for (int s = 0; s < kSteps; ++s) {
      bool seen = (steps >> s & 1) != 0;
      for (int j = s * kStep; j < (s + 1) * kStep; j += kLanes) {
        Vec product = seen ? mul(load(weights + j), load(scales + j)) : zero();
        FixedParts parts(mul(product, fixed.up));
        auto codes = reinterpret_cast<const __m128i*>(zeros_ + g * kTile + j);
        for (int part = 0; part < kParts; ++part) {
          uint8_t* at = weights_ + (part * n + r) * kWeightStride + j;
          _mm_storeu_si128(reinterpret_cast<__m128i*>(at), parts.parts[part]);
          zeros[part] = add_products(zeros[part], _mm_loadu_si128(codes), parts.parts[part]);
        }
      }
    }
    RowWeights row{fixed.down, total(sum), {}};
    for (int part = 0; part < kParts; ++part) {
      __m128i pairs = _mm_add_epi32(zeros[part], _mm_srli_si128(zeros[part], 8));
      row.zeros[part] = _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_srli_si128(pairs, 4)));
    }
    return row;
  }

  Int8Tiles tiles_;
  const AttentionParams* p_;
  int64_t k_groups_, v_groups_;
  int k_depth_;
  int n_rows_ = 0;
  uint8_t* q_;
  float* q_facts_;  // [row, group]: factor, share
  uint8_t *k_, *v_;
  float *k_scales_, *v_scales_;  // [scales or biases, group, kTile]
  uint8_t* zeros_;               // [group, kTile]
  float* rows_;
  uint8_t* weights_;  // [part, row of the block, kWeightStride]
  int32_t* sums_;     // [two, part, row, kLanes]
};

}  // namespace
}  // namespace mto::MTO_ISA
