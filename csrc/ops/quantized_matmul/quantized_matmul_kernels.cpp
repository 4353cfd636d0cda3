// y = x @ dequantize(w).T (transposed) or x @ dequantize(w), weights decoded in registers or cache.
//
// Accumulation is in float32. Transposed: lane l of a vector sums k = l, l + kLanes, .. in that order,
// then the lanes are added by reduce4. Not transposed: each output sums k = 0, 1, .. in that order.
// A weight is fma(code, scale, bias), rounded once to float32; x is converted to float32 exactly; the sum
// is rounded once to the type of y. Blocking after Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication", ACM TOMS 34(3), 2008.

#include "ops/quantized_matmul/quantized_matmul_kernels.h"

#include <algorithm>

#include "cpu/thread_pool.h"
#include "formats/affine_simd.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

namespace mto::MTO_ISA {
namespace {

using Params = QuantizedMatmulParams;

constexpr int kCols = 4;  // columns of the transposed inner kernels, as many as reduce4 takes
// Rows of the inner kernels: kRows x 4 sums, and the operands, fill the registers (32, or 16 on AVX2).
constexpr int kRows = kLanes == 8 ? 3 : 6;
constexpr int kFewRows = kLanes == 8 ? 2 : 4;

// Scales and biases of one row of the packed matrix as float32: in place where they are, else converted.
struct RowScales {
  const float* scales;
  const float* biases;
  RowScales(const Params& p, int64_t row, int64_t first, int64_t n_row, int64_t n, float* scratch) {
    int64_t index = row * n_row + first;
    scales = as_float(p.scales_type, p.scales, index, n, scratch);
    biases = as_float(p.biases_type, p.biases, index, n, scratch + n);
  }
  static const float* as_float(FloatType type, const void* base, int64_t index, int64_t n, float* out) {
    if (type == FloatType::kFloat32) return static_cast<const float*>(base) + index;
    convert_to_float(type, base, index, n, out);
    return out;
  }
};


// Four columns; those past the end repeat the last one and are not stored.
template <int Bits>
struct Columns {
  const uint8_t* w[kCols];
  const float* scales[kCols];
  const float* biases[kCols];

  // Values first .. first + n of k; both multiples of the group size.
  Columns(const Params& p, int64_t col, int64_t first, int64_t n, float* scratch) {
    int64_t n_groups = n / p.group_size;
    for (int c = 0; c < kCols; ++c) {
      int64_t row = std::min(col + c, p.n - 1);
      w[c] = p.w + affine_row_bytes(row * p.k + first, Bits);
      RowScales s(p, row, first / p.group_size, p.k / p.group_size, n_groups, scratch + 2 * c * n_groups);
      scales[c] = s.scales;
      biases[c] = s.biases;
    }
  }

  // Calls f(vector index, column, weights) for all n values of k.
  template <typename F>
  void decode(int64_t n, int group_size, F&& f) const {
    int64_t block = 0;
    for (int64_t g = 0; g < n / group_size; ++g) {
      AffineGroup<Bits> group[kCols];
      unroll<kCols>([&](auto c) {
        group[c.value] = AffineGroup<Bits>::make(scales[c.value][g], biases[c.value][g]);
      });
      for (int b = 0; b < group_size / kBlock; ++b, ++block) {
        unroll<kVecsPerBlock>([&](auto v) {
          unroll<kCols>([&](auto c) {
            const uint8_t* codes = w[c.value] + block * block_bytes(Bits);
            Vec weights = affine_decode<Bits, v.value>(codes, group[c.value]);
            f(block * kVecsPerBlock + v.value, c, weights);
          });
        });
      }
    }
  }
};

inline void store_sums(const Params& p, int64_t row, int64_t col, const Vec (&sums)[kCols]) {
  float out[kCols];
  reduce4(sums[0], sums[1], sums[2], sums[3], out);
  for (int64_t c = 0; c < std::min<int64_t>(kCols, p.n - col); ++c) {
    store_one(p.x_type, p.y, row * p.n + col + c, out[c]);
  }
}

template <int Bits, int Rows>
void few_rows_t(const Params& p, const float* x, Range n) {
  auto scratch = static_cast<float*>(thread_scratch(8 * p.k / p.group_size * sizeof(float)));
  for (int64_t col = n.begin; col < n.end; col += kCols) {
    Columns<Bits> columns(p, col, 0, p.k, scratch);
    Vec sums[Rows][kCols];
    unroll<Rows>([&](auto r) { unroll<kCols>([&](auto c) { sums[r.value][c.value] = zero(); }); });
    columns.decode(p.k, p.group_size, [&](int64_t i, auto c, Vec weights) {
      unroll<Rows>([&](auto r) {
        Vec& sum = sums[r.value][c.value];
        sum = fma(weights, load(x + r.value * p.k + i * kLanes), sum);
      });
    });
    unroll<Rows>([&](auto r) { store_sums(p, r.value, col, sums[r.value]); });
  }
}

// Partial sums of Rows x 4 outputs over one block of k. `partial` holds them between blocks.
template <int Rows>
void inner_t(const Params& p, const float* x, const float* w, int64_t depth, float* partial, bool first,
             bool last, int64_t row, int64_t col) {
  Vec sums[Rows][kCols];
  unroll<Rows>([&](auto r) {
    unroll<kCols>([&](auto c) {
      sums[r.value][c.value] = first ? zero() : load(partial + (r.value * kCols + c.value) * kLanes);
    });
  });
  for (int64_t k = 0; k < depth; k += kLanes) {
    Vec weights[kCols];
    unroll<kCols>([&](auto c) { weights[c.value] = load(w + c.value * kTileDepth + k); });
    unroll<Rows>([&](auto r) {
      Vec values = load(x + r.value * kTileDepth + k);
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

// Calls f(Index<rows>) with rows = min(n, Max), a compile-time value.
template <int Max, typename F>
inline void with_rows(int64_t n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_rows<Max - 1>(n, f);
  }
  f(Index<Max>{});
}

template <int Bits>
void tile_t(const Params& p, Range m, Range n) {
  // x block, decoded columns, scales of four columns, partial sums.
  constexpr int64_t kX = kTileRows * kTileDepth, kW = kCols * kTileDepth, kScales = 8 * kTileDepth / 32;
  constexpr int64_t kPartial = (kTileRows + kRows) * kTileCols * kLanes;  // the last rows may be fewer
  auto x = static_cast<float*>(thread_scratch((kX + kW + kScales + kPartial) * sizeof(float)));
  float* w = x + kX;
  float* scales = w + kW;
  float* partial = scales + kScales;
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepth) {
    int64_t depth = std::min(kTileDepth, p.k - k0);
    bool first = k0 == 0, last = k0 + depth == p.k;
    for (int64_t r = m.begin; r < m.end; ++r) {
      convert_to_float(p.x_type, p.x, r * p.k + k0, depth, x + (r - m.begin) * kTileDepth);
    }
    float* sums = partial;
    for (int64_t col = n.begin; col < n.end; col += kCols) {
      Columns<Bits> columns(p, col, k0, depth, scales);
      columns.decode(depth, p.group_size, [&](int64_t i, auto c, Vec weights) {
        store(w + c.value * kTileDepth + i * kLanes, weights);
      });
      for (int64_t row = m.begin; row < m.end; row += kRows, sums += kRows * kCols * kLanes) {
        with_rows<kRows>(m.end - row, [&](auto rows) {
          const float* values = x + (row - m.begin) * kTileDepth;
          inner_t<rows.value>(p, values, w, depth, sums, first, last, row, col);
        });
      }
    }
  }
}


// Calls f(column, weights of row k0 + 0, .., weights of row k0 + Depth - 1) over the columns of `n`.
template <int Bits, int Depth, typename F>
inline void decode_n(const Params& p, int64_t k0, Range n, F&& f) {
  int64_t n_groups = p.n / p.group_size;
  for (int64_t g = n.begin / p.group_size; g < n.end / p.group_size; ++g) {
    AffineGroup<Bits> group[Depth];
    unroll<Depth>([&](auto d) {
      int64_t index = (k0 + d.value) * n_groups + g;
      group[d.value] = AffineGroup<Bits>::make(load_one(p.scales_type, p.scales, index),
                                               load_one(p.biases_type, p.biases, index));
    });
    for (int64_t col = g * p.group_size; col < (g + 1) * p.group_size; col += kBlock) {
      unroll<kVecsPerBlock>([&](auto v) {
        Vec weights[Depth];
        unroll<Depth>([&](auto d) {
          const uint8_t* codes = p.w + affine_row_bytes((k0 + d.value) * p.n + col, Bits);
          weights[d.value] = affine_decode<Bits, v.value>(codes, group[d.value]);
        });
        f(col + v.value * kLanes, weights);
      });
    }
  }
}

// Rows of w that are taken together, so that a sum is loaded and stored once for all of them.
constexpr int kDepth = 4;

template <int Bits, int Rows>
void few_rows_n(const Params& p, const float* x, Range n) {
  int64_t width = n.end - n.begin;
  auto sums = static_cast<float*>(thread_scratch(Rows * width * sizeof(float)));
  std::fill(sums, sums + Rows * width, 0.0f);
  auto add = [&](int64_t k0, auto depth) {
    decode_n<Bits, depth.value>(p, k0, n, [&](int64_t col, const Vec(&weights)[depth.value]) {
      unroll<Rows>([&](auto r) {
        float* at = sums + r.value * width + col - n.begin;
        Vec sum = load(at);
        unroll<depth.value>([&](auto d) {
          sum = fma(weights[d.value], broadcast(x[r.value * p.k + k0 + d.value]), sum);
        });
        store(at, sum);
      });
    });
  };
  int64_t k0 = 0;
  for (; k0 + kDepth <= p.k; k0 += kDepth) add(k0, Index<kDepth>{});
  for (; k0 < p.k; ++k0) add(k0, Index<1>{});
  for (int r = 0; r < Rows; ++r) {
    for (int64_t i = 0; i < width; i += kLanes) {
      store_as(p.x_type, p.y, r * p.n + n.begin + i, load(sums + r * width + i));
    }
  }
}

template <int Rows, int Vecs>
void inner_n(const float* x, const float* w, int64_t depth, float* partial) {
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

template <int Bits>
void tile_n(const Params& p, Range m, Range n) {
  constexpr int64_t kX = kTileRows * kTileDepthN, kW = kTileDepthN * kTileColsN;
  constexpr int64_t kPartial = kTileRows * kTileColsN;
  auto x = static_cast<float*>(thread_scratch((kX + kW + kPartial) * sizeof(float)));
  float* w = x + kX;
  float* partial = w + kW;
  int64_t width = n.end - n.begin, rows = m.end - m.begin;
  std::fill(partial, partial + kPartial, 0.0f);
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepthN) {
    int64_t depth = std::min(kTileDepthN, p.k - k0);
    for (int64_t r = 0; r < rows; ++r) {
      convert_to_float(p.x_type, p.x, (m.begin + r) * p.k + k0, depth, x + r * kTileDepthN);
    }
    for (int64_t k = 0; k < depth; ++k) {
      decode_n<Bits, 1>(p, k0 + k, n, [&](int64_t col, const Vec(&weights)[1]) {
        store(w + k * kTileColsN + col - n.begin, weights[0]);
      });
    }
    // Widths are multiples of 32: 4 vectors, or 2 where 16 lanes leave 32 columns over.
    for (int64_t c = 0; c < width;) {
      bool wide = width - c >= 4 * kLanes;
      (wide ? inner_n_rows<4> : inner_n_rows<2>)(x, w + c, rows, depth, partial + c);
      c += (wide ? 4 : 2) * kLanes;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += kLanes) {
      store_as(p.x_type, p.y, (m.begin + r) * p.n + n.begin + i, load(partial + r * kTileColsN + i));
    }
  }
}


void few_rows(const Params& p, const float* x, Range n) {
  dispatch_affine_bits(p.bits, [&]<int Bits>() {
    with_rows<kFewRows>(p.m, [&](auto rows) {
      (p.transpose ? few_rows_t<Bits, rows.value> : few_rows_n<Bits, rows.value>)(p, x, n);
    });
  });
}

void tile(const Params& p, Range m, Range n) {
  dispatch_affine_bits(p.bits, [&]<int Bits>() { (p.transpose ? tile_t<Bits> : tile_n<Bits>)(p, m, n); });
}

void convert(FloatType type, const void* x, int64_t n, float* out) { convert_to_float(type, x, 0, n, out); }

}  // namespace

extern const QuantizedMatmulKernels quantized_matmul_kernels;
const QuantizedMatmulKernels quantized_matmul_kernels{few_rows, tile, convert, kFewRows};

}  // namespace mto::MTO_ISA
