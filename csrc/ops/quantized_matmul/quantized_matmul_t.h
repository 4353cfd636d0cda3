#pragma once

// Transposed: w [n, k], vectors along k. Lane l of a vector sums k = l, l + kLanes, .. in that
// order, then the lanes are added by reduce4.

#include "ops/quantized_matmul/quantized_matmul_inner.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kCols = 4;  // columns of the inner kernels, as many as reduce4 takes

// How far ahead of their use codes are fetched, at least: a memory access takes as long as decoding
// a kilobyte or two.
constexpr int64_t kAheadBytes = 4096;

// n values from `index` on as float32: in place where they are, else converted into `out`.
inline const float* as_float(FloatType type, const void* base, int64_t index, int64_t n,
                             float* out) {
  if (type == FloatType::kFloat32) return static_cast<const float*>(base) + index;
  convert_to_float(type, base, index, n, out);
  return out;
}

// Values first .. first + n of k, whole groups, of Cols columns from `col` on.
template <int Bits, int Cols>
struct Columns {
  const uint8_t* w;
  const float* scales;
  const float* biases;
  int64_t w_stride, group_stride, ahead;

  // Scratch: scales and biases of Cols columns.
  Columns(const Params& p, int64_t col, int64_t first, int64_t n, float* scratch)
      : w(p.w + affine_row_bytes(col * p.k + first, Bits)),
        w_stride(affine_row_bytes(p.k, Bits)),
        group_stride(p.k / p.group_size),
        ahead(std::max(Cols * w_stride, kAheadBytes)) {
    int64_t n_groups = n / p.group_size, index = col * group_stride + first / p.group_size;
    // Rows of scales follow each other: those between the columns of a partial row are converted
    // too.
    int64_t n_values = (Cols - 1) * group_stride + n_groups;
    scales = as_float(p.scales_type, p.scales, index, n_values, scratch);
    biases = as_float(p.biases_type, p.biases, index, n_values, scratch + Cols * group_stride);
    for (int64_t i = 0; i < n_values; i += 16) {
      prefetch(p.scales_type, p.scales, index + Cols * group_stride + i);
      prefetch(p.biases_type, p.biases, index + Cols * group_stride + i);
    }
  }

  static void prefetch(FloatType type, const void* base, int64_t index) {
    __builtin_prefetch(static_cast<const char*>(base) + index * size_of(type));
  }

  // Calls f(vector index, column, weights) for all n values of k.
  template <typename F>
  MTO_INLINE void decode(int64_t n, int group_size, F&& f) const {
    const uint8_t* codes = w;
    int64_t i = 0;
    for (int64_t g = 0; g < n / group_size; ++g) {
      AffineGroup<Bits> group[Cols];
      unroll<Cols>([&](auto c) {
        int64_t at = g + c.value * group_stride;
        group[c.value] = AffineGroup<Bits>::make(scales[at], biases[at]);
        __builtin_prefetch(codes + c.value * w_stride + ahead);
      });
      for (int b = 0; b < group_size / kBlock; ++b) {
        unroll<kVecsPerBlock>([&](auto v) {
          unroll<Cols>([&](auto c) {
            f(i + v.value, c,
              affine_decode<Bits, v.value>(codes + c.value * w_stride, group[c.value]));
          });
        });
        codes += block_bytes(Bits);
        i += kVecsPerBlock;
      }
    }
  }
};

// out[r * kFewRowsCols + c] = the sums of Rows x Cols outputs.
template <int Bits, int Rows, int Cols>
MTO_FLAT void few_rows_cols_t(const Params& p, const float* x, int64_t col, float* scratch,
                              float* out) {
  Columns<Bits, Cols> columns(p, col, 0, p.k, scratch);
  Vec sums[Rows][Cols];
  unroll<Rows>([&](auto r) { unroll<Cols>([&](auto c) { sums[r.value][c.value] = zero(); }); });
  columns.decode(p.k, p.group_size, [&](int64_t i, auto c, Vec weights) {
    unroll<Rows>([&](auto r) {
      Vec& sum = sums[r.value][c.value];
      sum = fma(weights, load(x + r.value * p.k + i * kLanes), sum);
    });
  });
  unroll<Rows>([&](auto r) {
    const auto& row = sums[r.value];
    float four[kCols];
    reduce4(row[0], row[1 % Cols], row[2 % Cols], row[3 % Cols], four);
    unroll<Cols>([&](auto c) { out[r.value * kFewRowsCols + c.value] = four[c.value]; });
  });
}

template <int Bits, int Rows>
void few_rows_t(const Params& p, const float* x, Range n) {
  auto scratch = static_cast<float*>(thread_scratch(8 * p.k / p.group_size * sizeof(float)));
  float out[Rows * kFewRowsCols];
  int64_t col = n.begin;
  for (; col + kCols <= n.end; col += kCols) {
    few_rows_cols_t<Bits, Rows, kCols>(p, x, col, scratch, out + col - n.begin);
  }
  for (; col < n.end; ++col) {
    few_rows_cols_t<Bits, Rows, 1>(p, x, col, scratch, out + col - n.begin);
  }
  for (int r = 0; r < Rows; ++r) {
    convert_from_float(p.x_type, out + r * kFewRowsCols, n.end - n.begin, p.y, r * p.n + n.begin);
  }
}

MTO_INLINE void store_sums(const Params& p, int64_t row, int64_t col, const Vec (&sums)[kCols]) {
  float out[kCols];
  reduce4(sums[0], sums[1], sums[2], sums[3], out);
  convert_from_float(p.x_type, out, std::min<int64_t>(kCols, p.n - col), p.y, row * p.n + col);
}

// Partial sums of Rows x 4 outputs over one block of k. `partial` holds them between blocks. x and
// w are interleaved: vector i of all rows (columns), then vector i + 1, so that both are read front
// to back.
template <int Rows>
MTO_FLAT void inner_t(const Params& p, const float* x, const float* w, int64_t depth,
                      float* partial, bool first, bool last, int64_t row, int64_t col) {
  Vec sums[Rows][kCols];
  unroll<Rows>([&](auto r) {
    unroll<kCols>([&](auto c) {
      sums[r.value][c.value] =
          first ? zero() : load(partial + (r.value * kCols + c.value) * kLanes);
    });
  });
  for (int64_t i = 0; i < depth / kLanes; ++i, x += kRows * kLanes, w += kCols * kLanes) {
    Vec weights[kCols];
    unroll<kCols>([&](auto c) { weights[c.value] = load(w + c.value * kLanes); });
    unroll<Rows>([&](auto r) {
      Vec values = load(x + r.value * kLanes);
      unroll<kCols>([&](auto c) {
        sums[r.value][c.value] = fma(weights[c.value], values, sums[r.value][c.value]);
      });
    });
  }
  unroll<Rows>([&](auto r) {
    if (last) return store_sums(p, row + r.value, col, sums[r.value]);
    unroll<kCols>([&](auto c) {
      store(partial + (r.value * kCols + c.value) * kLanes, sums[r.value][c.value]);
    });
  });
}

// Rows of x from k0 on as float32, kRows of them interleaved.
inline void interleave_rows(const Params& p, Range m, int64_t k0, int64_t depth, float* out) {
  for (int64_t row = m.begin; row < m.end; ++row) {
    int64_t r = row - m.begin;
    float* at = out + r / kRows * kRows * depth + r % kRows * kLanes;
    for (int64_t i = 0; i < depth; i += kLanes, at += kRows * kLanes) {
      store(at, load_as(p.x_type, p.x, row * p.k + k0 + i));
    }
  }
}

// Four columns, interleaved; those past the end stay what they were, and their sums are not stored.
template <int Bits>
MTO_FLAT void decode_tile(const Params& p, int64_t col, int64_t k0, int64_t depth, float* scratch,
                          float* w) {
  if (col + kCols <= p.n) {
    Columns<Bits, kCols> columns(p, col, k0, depth, scratch);
    columns.decode(depth, p.group_size, [&](int64_t i, auto c, Vec weights) {
      store(w + (i * kCols + c.value) * kLanes, weights);
    });
    return;
  }
  for (int64_t c = 0; col + c < p.n; ++c) {
    Columns<Bits, 1> column(p, col + c, k0, depth, scratch);
    column.decode(depth, p.group_size, [&](int64_t i, auto, Vec weights) {
      store(w + (i * kCols + c) * kLanes, weights);
    });
  }
}

template <int Bits>
MTO_FLAT void tile_t(const Params& p, Range m, Range n) {
  // x block, decoded columns, scales of four columns, partial sums; the last rows may be fewer than
  // kRows.
  constexpr int64_t kX = (kTileRows + kRows) * kTileDepth, kW = kCols * kTileDepth;
  constexpr int64_t kPartial = (kTileRows + kRows) * kTileCols * kLanes;
  int64_t n_scales = 2 * kCols * p.k / p.group_size;
  auto x = static_cast<float*>(thread_scratch((kX + kW + kPartial + n_scales) * sizeof(float)));
  float* w = x + kX;
  float* partial = w + kW;
  float* scales = partial + kPartial;
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepth) {
    int64_t depth = std::min(kTileDepth, p.k - k0);
    bool first = k0 == 0, last = k0 + depth == p.k;
    interleave_rows(p, m, k0, depth, x);
    float* sums = partial;
    for (int64_t col = n.begin; col < n.end; col += kCols) {
      decode_tile<Bits>(p, col, k0, depth, scales, w);
      const float* values = x;
      for (int64_t row = m.begin; row < m.end; row += kRows) {
        with_rows<kRows>(m.end - row, [&](auto rows) {
          inner_t<rows.value>(p, values, w, depth, sums, first, last, row, col);
        });
        values += kRows * depth;
        sums += kRows * kCols * kLanes;
      }
    }
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
