#pragma once

// Rows of bfloat16 as the operands of products of tiles (cpu/bf16_tiles.h).

#include <array>

#include "cpu/bf16_tiles.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kTileSide = 16;
constexpr int kTileDepth = 32;                      // bfloat16 values in a row of a tile
constexpr int kTileFloats = kTileSide * kTileSide;  // of 4 bytes each
static_assert(kStep == kTileDepth && kStep == 2 * kTileSide && kLanes == kTileSide);

// n <= 32 values from `index` on, and zeros behind them.
MTO_INLINE __m512i load_halves(const void* base, int64_t index, int64_t n) {
  auto values = static_cast<const uint16_t*>(base) + index;
  if (n >= kTileDepth) return _mm512_loadu_si512(values);
  uint16_t part[kTileDepth] = {};
  std::memcpy(part, values, n * sizeof(uint16_t));
  return _mm512_loadu_si512(part);
}

// kStep rows, n of them and zeros, as right tiles whose depth is the rows' width: for each
// kTileDepth columns one tile of rows 0 .. 15 and one of rows 16 .. 31. A pair of values moves as
// one float.
MTO_APART MTO_FLAT void pack_tiles_across(const RowSource& rows, int n, float* out) {
  for (int64_t column = 0; column < rows.d; column += kTileDepth) {
    for (int row = 0; row < kStep; row += kTileSide, out += kTileFloats) {
      Vec square[kTileSide];
      for (int i = 0; i < kTileSide; ++i) {
        int64_t at = rows.first + (row + i) * rows.stride + column;
        prefetch_ahead(rows, at);
        square[i] =
            row + i < n ? _mm512_castsi512_ps(load_halves(rows.base, at, rows.d - column)) : zero();
      }
      transpose(square);
      for (int i = 0; i < kTileSide; ++i) store(out + i * kTileSide, square[i]);
    }
  }
}

// kStep rows, n of them and zeros, as right tiles whose depth is the rows: one for each kTileSide
// columns, and an even number of them.
MTO_APART MTO_FLAT void pack_tiles_along(const RowSource& rows, int n, float* out) {
  alignas(64) static constexpr auto kPairs = [] {
    std::array<uint16_t, 64> indices{};
    for (uint16_t i = 0; i < 64; ++i) indices[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    return indices;
  }();
  __m512i low = _mm512_load_si512(kPairs.data()), high = _mm512_load_si512(kPairs.data() + 32);
  auto load_row = [&](int row, int64_t column) {
    if (row >= n) return _mm512_setzero_si512();
    int64_t at = rows.first + row * rows.stride + column;
    prefetch_ahead(rows, at);
    return load_halves(rows.base, at, rows.d - column);
  };
  for (int64_t column = 0; column < rows.d; column += kTileDepth, out += 2 * kTileFloats) {
    for (int row = 0; row < kStep; row += 2) {
      __m512i even = load_row(row, column), odd = load_row(row + 1, column);
      float* at = out + row / 2 * kTileSide;
      _mm512_storeu_si512(at, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(at + kTileFloats, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

// Rows of an operand of the query heads, as they are, with zeros up to a multiple of kTileDepth
// values: left tiles.
MTO_APART void copy_left_rows(const AttentionParams& p, const AttentionOperand& operand, int64_t b,
                              int64_t kv_head, AttentionRange rows, int64_t d, uint16_t* out) {
  int64_t stride = round_up(d, kTileDepth);
  each_head(p, kv_head, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
    for (int row = 0; row < n; ++row) {
      int64_t at = operand.offset(b, h, i + row);
      for (int64_t c = 0; c < d; c += kTileDepth) {
        _mm512_storeu_si512(out + (first + row) * stride + c,
                            load_halves(operand.data, at + c, d - c));
      }
    }
  });
}

// A pair of left tiles (one, where 16 rows or fewer count) times pairs of right tiles: tiles 0 to 3
// hold the sums of the first rows, then the others.
MTO_INLINE void multiply_tiles(bool two, const uint16_t* left, int64_t left_stride,
                               const float* right) {
  constexpr int64_t kRowBytes = kTileDepth * sizeof(uint16_t);
  tile_load<4>(left, left_stride * sizeof(uint16_t));
  tile_load<6>(right, kRowBytes);
  tile_load<7>(right + kTileFloats, kRowBytes);
  tile_multiply<0, 4, 6>();
  tile_multiply<1, 4, 7>();
  if (!two) return;
  tile_load<5>(left + kTileSide * left_stride, left_stride * sizeof(uint16_t));
  tile_multiply<2, 5, 6>();
  tile_multiply<3, 5, 7>();
}

MTO_INLINE void zero_tiles() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}

MTO_INLINE void load_tiles(const float* sums, int64_t stride) {
  tile_load<0>(sums, stride * sizeof(float));
  tile_load<1>(sums + kTileSide, stride * sizeof(float));
  tile_load<2>(sums + kTileSide * stride, stride * sizeof(float));
  tile_load<3>(sums + kTileSide * stride + kTileSide, stride * sizeof(float));
}

MTO_INLINE void store_tiles(bool two, float* out, int64_t stride) {
  tile_store<0>(out, stride * sizeof(float));
  tile_store<1>(out + kTileSide, stride * sizeof(float));
  if (!two) return;
  tile_store<2>(out + kTileSide * stride, stride * sizeof(float));
  tile_store<3>(out + kTileSide * stride + kTileSide, stride * sizeof(float));
}

}  // namespace
}  // namespace mto::MTO_ISA
