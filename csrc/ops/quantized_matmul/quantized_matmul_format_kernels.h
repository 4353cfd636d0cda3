#pragma once

// Products with matrices of any format: decoded by one function a few columns (rows) at a time,
// into the first-level cache, and multiplied from there. In the orders of quantized_matmul_t.h and
// quantized_matmul_n.h.

#include "ops/quantized_matmul/quantized_matmul_format_params.h"
#include "ops/quantized_matmul/quantized_matmul_n.h"
#include "ops/quantized_matmul/quantized_matmul_t.h"

namespace mto::MTO_ISA {
namespace {

constexpr int64_t round_up_to_block(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// Values k0 .. k0 + depth of columns col .. col + 3, interleaved. Columns past the end stay what
// they were, and their sums are not stored.
inline void decode_columns(const FormatProduct& p, int64_t col, int64_t k0, int64_t depth,
                           float* w) {
  int64_t n_cols = std::min<int64_t>(kCols, p.product.n - col);
  for (int64_t c = 0; c < n_cols; ++c) {
    p.decode(p.matrix, col + c, k0, depth, w + c * kLanes, kCols * kLanes);
  }
}

// x has rows of `stride` floats, zeros after the k-th.
template <int Rows>
MTO_FLAT void few_rows_format_t(const FormatProduct& p, const float* x, int64_t stride, Range n) {
  auto w = static_cast<float*>(thread_scratch(kCols * kTileDepth * sizeof(float)));
  for (int64_t col = n.begin; col < n.end; col += kCols) {
    Vec sums[Rows][kCols];
    unroll<Rows>([&](auto r) { unroll<kCols>([&](auto c) { sums[r.value][c.value] = zero(); }); });
    for (int64_t k0 = 0; k0 < p.product.k; k0 += kTileDepth) {
      int64_t depth = round_up_to_block(std::min(kTileDepth, p.product.k - k0));
      decode_columns(p, col, k0, depth, w);
      for (int64_t i = 0; i < depth / kLanes; ++i) {
        unroll<Rows>([&](auto r) {
          Vec values = load(x + r.value * stride + k0 + i * kLanes);
          unroll<kCols>([&](auto c) {
            Vec& sum = sums[r.value][c.value];
            sum = fma(load(w + (i * kCols + c.value) * kLanes), values, sum);
          });
        });
      }
    }
    unroll<Rows>([&](auto r) { store_sums(p.product, r.value, col, sums[r.value]); });
  }
}

// As interleave_rows, with zeros after the k-th value.
inline void interleave_padded(const Params& p, Range m, int64_t k0, int64_t depth, float* out) {
  float values[kTileDepth];
  int64_t n = std::min(depth, p.k - k0);
  std::fill(values + n, values + depth, 0.0f);
  for (int64_t row = m.begin; row < m.end; ++row) {
    int64_t r = row - m.begin;
    convert_to_float(p.x_type, p.x, row * p.k + k0, n, values);
    float* at = out + r / kRows * kRows * depth + r % kRows * kLanes;
    for (int64_t i = 0; i < depth; i += kLanes, at += kRows * kLanes) store(at, load(values + i));
  }
}

MTO_FLAT void tile_format_t(const FormatProduct& p, Range m, Range n) {
  constexpr int64_t kX = (kTileRows + kRows) * kTileDepth, kW = kCols * kTileDepth;
  constexpr int64_t kPartial = (kTileRows + kRows) * kTileCols * kLanes;
  auto x = static_cast<float*>(thread_scratch((kX + kW + kPartial) * sizeof(float)));
  float* w = x + kX;
  float* partial = w + kW;
  for (int64_t k0 = 0; k0 < p.product.k; k0 += kTileDepth) {
    int64_t depth = round_up_to_block(std::min(kTileDepth, p.product.k - k0));
    bool first = k0 == 0, last = k0 + depth >= p.product.k;
    interleave_padded(p.product, m, k0, depth, x);
    float* sums = partial;
    for (int64_t col = n.begin; col < n.end; col += kCols) {
      decode_columns(p, col, k0, depth, w);
      const float* values = x;
      for (int64_t row = m.begin; row < m.end; row += kRows) {
        with_rows<kRows>(m.end - row, [&](auto rows) {
          inner_t<rows.value>(p.product, values, w, depth, sums, first, last, row, col);
        });
        values += kRows * depth;
        sums += kRows * kCols * kLanes;
      }
    }
  }
}

template <int Rows>
MTO_FLAT void few_rows_format_n(const FormatProduct& p, const float* x, int64_t stride, Range n) {
  int64_t width = round_up_to_block(n.end - n.begin);
  auto sums = static_cast<float*>(thread_scratch((Rows + kDepth) * kFewRowsColsN * sizeof(float)));
  float* w = sums + Rows * kFewRowsColsN;
  std::fill(sums, w, 0.0f);
  auto add = [&](int64_t k, auto depth) {
    for (int d = 0; d < depth.value; ++d) {
      p.decode(p.matrix, k + d, n.begin, width, w + d * kFewRowsColsN, kLanes);
    }
    for (int64_t col = 0; col < width; col += kLanes) {
      unroll<Rows>([&](auto r) {
        float* at = sums + r.value * kFewRowsColsN + col;
        Vec sum = load(at);
        unroll<depth.value>([&](auto d) {
          sum = fma(load(w + d.value * kFewRowsColsN + col),
                    broadcast(x[r.value * stride + k + d.value]), sum);
        });
        store(at, sum);
      });
    }
  };
  int64_t k = 0;
  for (; k + kDepth <= p.product.k; k += kDepth) add(k, Index<kDepth>{});
  for (; k < p.product.k; ++k) add(k, Index<1>{});
  for (int r = 0; r < Rows; ++r) {
    convert_from_float(p.product.x_type, sums + r * kFewRowsColsN, n.end - n.begin, p.product.y,
                       r * p.product.n + n.begin);
  }
}

MTO_FLAT void tile_format_n(const FormatProduct& p, Range m, Range n) {
  constexpr int64_t kX = kTileRows * kTileDepthN, kW = kTileDepthN * kTileColsN;
  constexpr int64_t kPartial = kTileRows * kTileColsN;
  auto x = static_cast<float*>(thread_scratch((kX + kW + kPartial) * sizeof(float)));
  float* w = x + kX;
  float* partial = w + kW;
  int64_t width = n.end - n.begin, padded = round_up_to_block(width), rows = m.end - m.begin;
  std::fill(partial, partial + kPartial, 0.0f);
  for (int64_t k0 = 0; k0 < p.product.k; k0 += kTileDepthN) {
    int64_t depth = std::min(kTileDepthN, p.product.k - k0);
    load_x_block(p.product, m, k0, depth, x);
    for (int64_t k = 0; k < depth; ++k) {
      p.decode(p.matrix, k0 + k, n.begin, padded, w + k * kTileColsN, kLanes);
    }
    multiply_tile_n(x, w, padded, rows, depth, partial);
  }
  for (int64_t r = 0; r < rows; ++r) {
    convert_from_float(p.product.x_type, partial + r * kTileColsN, width, p.product.y,
                       (m.begin + r) * p.product.n + n.begin);
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
