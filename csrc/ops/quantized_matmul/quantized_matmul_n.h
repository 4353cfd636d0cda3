#pragma once

// Not transposed: w [k, n], vectors along n. Each output sums k = 0, 1, .. in that order.

#include "ops/quantized_matmul/quantized_matmul_inner.h"

namespace mto::MTO_ISA {
namespace {

// Values [row, first + i] of a matrix of n columns as float32: n_rows x n_values.
MTO_APART void gather(FloatType type, const void* base, int64_t n, int64_t row, int64_t n_rows,
                      int64_t first, int64_t n_values, float* out) {
  for (int64_t r = 0; r < n_rows; ++r, out += n_values) {
    convert_to_float(type, base, (row + r) * n + first, n_values, out);
  }
}

// At most kTileDepthN rows of w, and of each the columns of `n`: whole groups.
template <int Bits>
struct RowBlock {
  const Params& p;
  Range n;
  int64_t row, n_groups;
  const float* scales;
  const float* biases;

  static constexpr int64_t kScratch = 2 * kTileDepthN * kFewRowsColsN / 32;

  RowBlock(const Params& params, Range columns, int64_t first_row, int64_t n_rows, float* scratch)
      : p(params),
        n(columns),
        row(first_row),
        n_groups((columns.end - columns.begin) / p.group_size) {
    int64_t all_groups = p.n / p.group_size, first = n.begin / p.group_size;
    gather(p.scales_type, p.scales, all_groups, row, n_rows, first, n_groups, scratch);
    scales = scratch;
    scratch += n_rows * n_groups;
    gather(p.biases_type, p.biases, all_groups, row, n_rows, first, n_groups, scratch);
    biases = scratch;
  }

  // Calls f(column - n.begin, weights of rows k .. k + Depth - 1 of the block) over all columns.
  template <int Depth, typename F>
  MTO_INLINE void decode(int64_t k, F&& f) const {
    const uint8_t* codes[Depth];
    unroll<Depth>([&](auto d) {
      codes[d.value] = p.w + affine_row_bytes((row + k + d.value) * p.n + n.begin, Bits);
    });
    // A step takes tens of nanoseconds, memory a hundred or more.
    int64_t next = affine_row_bytes(4 * Depth * p.n, Bits), col = 0;
    for (int64_t g = 0; g < n_groups; ++g) {
      AffineGroup<Bits> group[Depth];
      unroll<Depth>([&](auto d) {
        int64_t at = (k + d.value) * n_groups + g;
        group[d.value] = AffineGroup<Bits>::make(scales[at], biases[at]);
        __builtin_prefetch(codes[d.value] + next);
      });
      for (int b = 0; b < p.group_size / kBlock; ++b) {
        unroll<kVecsPerBlock>([&](auto v) {
          Vec weights[Depth];
          unroll<Depth>([&](auto d) {
            weights[d.value] = affine_decode<Bits, v.value>(codes[d.value], group[d.value]);
          });
          f(col + v.value * kLanes, weights);
        });
        unroll<Depth>([&](auto d) { codes[d.value] += block_bytes(Bits); });
        col += kBlock;
      }
    }
  }
};

// Rows of w that are taken together, so that a sum is loaded and stored once for all of them.
constexpr int kDepth = 4;

template <int Bits, int Rows>
MTO_FLAT void few_rows_n(const Params& p, const float* x, Range n) {
  int64_t width = n.end - n.begin;
  constexpr int64_t kSums = Rows * kFewRowsColsN;
  auto sums =
      static_cast<float*>(thread_scratch((kSums + RowBlock<Bits>::kScratch) * sizeof(float)));
  std::fill(sums, sums + kSums, 0.0f);
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepthN) {
    int64_t depth = std::min(kTileDepthN, p.k - k0);
    RowBlock<Bits> block(p, n, k0, depth, sums + kSums);
    auto add = [&](int64_t k, auto rows) {
      block.template decode<rows.value>(k, [&](int64_t col, const Vec(&weights)[rows.value]) {
        unroll<Rows>([&](auto r) {
          float* at = sums + r.value * width + col;
          Vec sum = load(at);
          unroll<rows.value>([&](auto d) {
            sum = fma(weights[d.value], broadcast(x[r.value * p.k + k0 + k + d.value]), sum);
          });
          store(at, sum);
        });
      });
    };
    int64_t k = 0;
    for (; k + kDepth <= depth; k += kDepth) add(k, Index<kDepth>{});
    for (; k < depth; ++k) add(k, Index<1>{});
  }
  for (int r = 0; r < Rows; ++r) {
    convert_from_float(p.x_type, sums + r * width, width, p.y, r * p.n + n.begin);
  }
}

template <int Rows, int Vecs>
MTO_FLAT void inner_n(const float* x, const float* w, int64_t depth, float* partial) {
  Vec sums[Rows][Vecs];
  unroll<Rows>([&](auto r) {
    unroll<Vecs>([&](auto v) {
      sums[r.value][v.value] = load(partial + r.value * kTileColsN + v.value * kLanes);
    });
  });
  for (int64_t k = 0; k < depth; ++k) {
    Vec weights[Vecs];
    unroll<Vecs>([&](auto v) { weights[v.value] = load(w + k * kTileColsN + v.value * kLanes); });
    unroll<Rows>([&](auto r) {
      Vec value = broadcast(x[r.value * kTileDepthN + k]);
      unroll<Vecs>([&](auto v) {
        sums[r.value][v.value] = fma(weights[v.value], value, sums[r.value][v.value]);
      });
    });
  }
  unroll<Rows>([&](auto r) {
    unroll<Vecs>([&](auto v) {
      store(partial + r.value * kTileColsN + v.value * kLanes, sums[r.value][v.value]);
    });
  });
}

template <int Vecs>
void inner_n_rows(const float* x, const float* w, int64_t rows, int64_t depth, float* partial) {
  for (int64_t r = 0; r < rows; r += kRows) {
    with_rows<kRows>(rows - r, [&](auto n_rows) {
      inner_n<n_rows.value, Vecs>(x + r * kTileDepthN, w, depth, partial + r * kTileColsN);
    });
  }
}

// `depth` columns of x from k0 on as float32.
inline void load_x_block(const Params& p, Range m, int64_t k0, int64_t depth, float* x) {
  for (int64_t row = m.begin; row < m.end; ++row, x += kTileDepthN) {
    convert_to_float(p.x_type, p.x, row * p.k + k0, depth, x);
  }
}

// Widths are multiples of 32: 4 vectors, or 2 where 16 lanes leave 32 columns over.
MTO_INLINE void multiply_tile_n(const float* x, const float* w, int64_t width, int64_t rows,
                                int64_t depth, float* partial) {
  for (int64_t c = 0; c < width;) {
    bool wide = width - c >= 4 * kLanes;
    (wide ? inner_n_rows<4> : inner_n_rows<2>)(x, w + c, rows, depth, partial + c);
    c += (wide ? 4 : 2) * kLanes;
  }
}

template <int Bits>
MTO_FLAT void tile_n(const Params& p, Range m, Range n) {
  constexpr int64_t kX = kTileRows * kTileDepthN, kW = kTileDepthN * kTileColsN;
  constexpr int64_t kPartial = kTileRows * kTileColsN;
  auto x = static_cast<float*>(
      thread_scratch((kX + kW + kPartial + RowBlock<Bits>::kScratch) * sizeof(float)));
  float* w = x + kX;
  float* partial = w + kW;
  int64_t width = n.end - n.begin, rows = m.end - m.begin;
  std::fill(partial, partial + kPartial, 0.0f);
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepthN) {
    int64_t depth = std::min(kTileDepthN, p.k - k0);
    load_x_block(p, m, k0, depth, x);
    RowBlock<Bits> block(p, n, k0, depth, partial + kPartial);
    for (int64_t k = 0; k < depth; ++k) {
      block.template decode<1>(k, [&](int64_t col, const Vec(&weights)[1]) {
        store(w + k * kTileColsN + col, weights[0]);
      });
    }
    multiply_tile_n(x, w, width, rows, depth, partial);
  }
  for (int64_t r = 0; r < rows; ++r) {
    convert_from_float(p.x_type, partial + r * kTileColsN, width, p.y,
                       (m.begin + r) * p.n + n.begin);
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
