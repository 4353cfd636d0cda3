// y = x @ dequantize(w).T (transposed) or x @ dequantize(w), weights decoded in registers or cache.
//
// Accumulation is in float32. Transposed: lane l of a vector sums k = l, l + kLanes, .. in that
// order, then the lanes are added by reduce4. Not transposed: each output sums k = 0, 1, .. in that
// order. A weight is fma(code, scale, bias), rounded once to float32; x is converted to float32
// exactly; the sum is rounded once to the type of y. Blocking after Goto and van de Geijn, "Anatomy
// of high-performance matrix multiplication", ACM TOMS 34(3), 2008.

#include "ops/quantized_matmul/quantized_matmul_kernels.h"

#include <algorithm>

#include "cpu/thread_pool.h"
#include "formats/affine_simd.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

namespace mto::MTO_ISA {
namespace {

using Params = QuantizedMatmulParams;

constexpr int kCols = 4;  // columns of the transposed inner kernels, as many as reduce4 takes
// Rows of the inner kernels: kRows x 4 sums, and the operands, fill the registers (32, or 16 on
// AVX2).
constexpr int kRows = kLanes == 8 ? 3 : 6;
constexpr int kFewRows = kLanes == 8 ? 2 : 4;

// Scales and biases of one row of the packed matrix as float32: in place where they are, else
// converted.
struct RowScales {
  const float* scales;
  const float* biases;
  RowScales(const Params& p, int64_t row, int64_t first, int64_t n_row, int64_t n, float* scratch) {
    int64_t index = row * n_row + first;
    scales = as_float(p.scales_type, p.scales, index, n, scratch);
    biases = as_float(p.biases_type, p.biases, index, n, scratch + n);
  }
  static const float* as_float(FloatType type, const void* base, int64_t index, int64_t n,
                               float* out) {
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
  int64_t next;  // bytes from a column to the one that takes its place

  // Values first .. first + n of k; both multiples of the group size.
  Columns(const Params& p, int64_t col, int64_t first, int64_t n, float* scratch) {
    int64_t n_groups = n / p.group_size;
    next = affine_row_bytes(kCols * p.k, Bits);
    for (int c = 0; c < kCols; ++c) {
      int64_t row = std::min(col + c, p.n - 1);
      w[c] = p.w + affine_row_bytes(row * p.k + first, Bits);
      RowScales s(p, row, first / p.group_size, p.k / p.group_size, n_groups,
                  scratch + 2 * c * n_groups);
      scales[c] = s.scales;
      biases[c] = s.biases;
    }
  }

  // Calls f(vector index, column, weights) for all n values of k.
  template <typename F>
  MTO_INLINE void decode(int64_t n, int group_size, F&& f) const {
    int64_t block = 0;
    for (int64_t g = 0; g < n / group_size; ++g) {
      AffineGroup<Bits> group[kCols];
      unroll<kCols>([&](auto c) {
        group[c.value] = AffineGroup<Bits>::make(scales[c.value][g], biases[c.value][g]);
        __builtin_prefetch(w[c.value] + next + block * block_bytes(Bits));
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

MTO_INLINE void store_sums(const Params& p, int64_t row, int64_t col, const Vec (&sums)[kCols]) {
  float out[kCols];
  reduce4(sums[0], sums[1], sums[2], sums[3], out);
  convert_from_float(p.x_type, out, std::min<int64_t>(kCols, p.n - col), p.y, row * p.n + col);
}

template <int Bits, int Rows>
MTO_FLAT void few_rows_t(const Params& p, const float* x, Range n) {
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

// Calls f(Index<rows>) with rows = min(n, Max), a compile-time value.
template <int Max, typename F>
inline void with_rows(int64_t n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_rows<Max - 1>(n, f);
  }
  f(Index<Max>{});
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

template <int Bits>
MTO_FLAT void tile_t(const Params& p, Range m, Range n) {
  // x block, decoded columns, scales of four columns, partial sums; the last rows may be fewer than
  // kRows.
  constexpr int64_t kX = (kTileRows + kRows) * kTileDepth, kW = kCols * kTileDepth;
  constexpr int64_t kScales = 8 * kTileDepth / 32;
  constexpr int64_t kPartial = (kTileRows + kRows) * kTileCols * kLanes;
  auto x = static_cast<float*>(thread_scratch((kX + kW + kScales + kPartial) * sizeof(float)));
  float* w = x + kX;
  float* scales = w + kW;
  float* partial = scales + kScales;
  for (int64_t k0 = 0; k0 < p.k; k0 += kTileDepth) {
    int64_t depth = std::min(kTileDepth, p.k - k0);
    bool first = k0 == 0, last = k0 + depth == p.k;
    interleave_rows(p, m, k0, depth, x);
    float* sums = partial;
    for (int64_t col = n.begin; col < n.end; col += kCols) {
      Columns<Bits> columns(p, col, k0, depth, scales);
      columns.decode(depth, p.group_size, [&](int64_t i, auto c, Vec weights) {
        store(w + (i * kCols + c.value) * kLanes, weights);
      });
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
    int64_t next = affine_row_bytes(Depth * p.n, Bits), col = 0;
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
    for (int64_t r = 0; r < rows; ++r) {
      convert_to_float(p.x_type, p.x, (m.begin + r) * p.k + k0, depth, x + r * kTileDepthN);
    }
    RowBlock<Bits> block(p, n, k0, depth, partial + kPartial);
    for (int64_t k = 0; k < depth; ++k) {
      block.template decode<1>(k, [&](int64_t col, const Vec(&weights)[1]) {
        store(w + k * kTileColsN + col, weights[0]);
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
    convert_from_float(p.x_type, partial + r * kTileColsN, width, p.y,
                       (m.begin + r) * p.n + n.begin);
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
  dispatch_affine_bits(p.bits,
                       [&]<int Bits>() { (p.transpose ? tile_t<Bits> : tile_n<Bits>)(p, m, n); });
}

void convert(FloatType type, const void* x, int64_t n, float* out) {
  convert_to_float(type, x, 0, n, out);
}

}  // namespace

extern const QuantizedMatmulKernels quantized_matmul_kernels;
const QuantizedMatmulKernels quantized_matmul_kernels{few_rows, tile, convert, kFewRows};

}  // namespace mto::MTO_ISA
