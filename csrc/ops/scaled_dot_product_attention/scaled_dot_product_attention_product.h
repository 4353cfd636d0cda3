#pragma once

// Products of matrices that lie in cache. The right operand is cut into panels of kWidth columns,
// row after row; the left one is read element by element, in one of three layouts. Each element of
// a product is one chain of multiply-adds in the order of the depth, whatever else is computed
// beside it. Blocking after Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", ACM TOMS 34(3), 2008.

#include <algorithm>
#include <cstdint>

#include "cpu/simd_math.h"

namespace mto::MTO_ISA {
namespace {

// Rows and vectors of the inner kernel: their sums and the operands fit the registers.
constexpr int kRows = kRegisters == 32 ? 8 : kRegisters == 16 ? 4 : 2;
constexpr int kVecs = kRegisters >= 16 ? 2 : 1;
constexpr int kWidth = kVecs * kLanes;

constexpr int kTile = 256;  // keys whose scores are held at a time
constexpr int kStep = 32;   // keys that are skipped together; bytes of a mask are taken in blocks
constexpr int kSteps = kTile / kStep;
// Floats between rows of scores: not a power of two, so that rows do not compete for cache lines.
constexpr int kScoreStride = kTile + 16;
// Rows that a panel of left rows holds.
constexpr int kLeftWidth = std::max(kLanes, kRows);

// Element (row, depth) of a left operand is at[row * RowStride + depth * DepthStride].
template <int RowStride, int DepthStride>
struct Left {
  const float* at;
  static constexpr int kRowStride = RowStride, kDepthStride = DepthStride;
  Left from(int row) const { return {at + row * RowStride}; }
};
using LeftPanel = Left<1, kLeftWidth>;      // rows of an operand, transposed
using LeftScores = Left<kScoreStride, 1>;   // rows of scores
using LeftColumns = Left<1, kScoreStride>;  // scores, transposed

// Parts of the depth, ascending; what lies between counts as zero.
struct Runs {
  struct Run {
    int begin, end;
  };
  Run runs[32];
  int n = 0;

  void add(int begin, int end) {
    if (n > 0 && runs[n - 1].end == begin) {
      runs[n - 1].end = end;
    } else {
      runs[n++] = {begin, end};
    }
  }
};

// What becomes of the sums of one inner kernel: stored, added, or merged with factors a row.
struct Store {
  float* out;
  int64_t stride;
  Store from(int row, int64_t column) const { return {out + row * stride + column, stride}; }
  MTO_INLINE void operator()(int row, int column, Vec sum) const {
    store(out + row * stride + column, sum);
  }
};

struct Add {
  float* out;
  int64_t stride;
  Add from(int row, int64_t column) const { return {out + row * stride + column, stride}; }
  MTO_INLINE void operator()(int row, int column, Vec sum) const {
    float* at = out + row * stride + column;
    store(at, add(load(at), sum));
  }
};

struct Merge {
  float* out;
  int64_t stride;
  const float* old_factors;
  const float* new_factors;
  Merge from(int row, int64_t column) const {
    return {out + row * stride + column, stride, old_factors + row, new_factors + row};
  }
  MTO_INLINE void operator()(int row, int column, Vec sum) const {
    float* at = out + row * stride + column;
    Vec old = mul(load(at), broadcast(old_factors[row]));
    store(at, fma(sum, broadcast(new_factors[row]), old));
  }
};

// Rows x (Panels panels of Vecs vectors).
template <int Rows, int Vecs, int Panels, typename L, typename Finish>
MTO_FLAT void multiply(L left, const float* panel, int64_t panel_stride, const Runs& runs,
                       Finish finish) {
  Vec sums[Rows][Panels * Vecs];
  unroll<Rows>(
      [&](auto r) { unroll<Panels * Vecs>([&](auto v) { sums[r.value][v.value] = zero(); }); });
  for (int i = 0; i < runs.n; ++i) {
    const float* a = left.at + runs.runs[i].begin * L::kDepthStride;
    const float* b = panel + runs.runs[i].begin * kWidth;
    for (int k = runs.runs[i].begin; k < runs.runs[i].end; ++k) {
      Vec columns[Panels * Vecs];
      unroll<Panels * Vecs>([&](auto v) {
        columns[v.value] = load(b + v.value / Vecs * panel_stride + v.value % Vecs * kLanes);
      });
      unroll<Rows>([&](auto r) {
        Vec factor = broadcast(a[r.value * L::kRowStride]);
        unroll<Panels * Vecs>([&](auto v) {
          sums[r.value][v.value] = fma(factor, columns[v.value], sums[r.value][v.value]);
        });
      });
      a += L::kDepthStride;
      b += kWidth;
    }
  }
  unroll<Rows>([&](auto r) {
    unroll<Panels * Vecs>([&](auto v) {
      constexpr int kColumn = v.value / Vecs * kWidth + v.value % Vecs * kLanes;
      finish(r.value, kColumn, sums[r.value][v.value]);
    });
  });
}

// Calls f(Index<size>, first) for blocks of rows of at most Max, halves of it where fewer are left.
template <int Max, typename F>
inline void row_blocks(int n_rows, F&& f, int first = 0) {
  for (; n_rows - first >= Max; first += Max) f(Index<Max>{}, first);
  if constexpr (Max > 1) row_blocks<Max / 2>(n_rows, f, first);
}

// n_rows x n_columns, whole vectors of columns.
template <typename L, typename Finish>
inline void product(int n_rows, int64_t n_columns, L left, const float* panels,
                    int64_t panel_stride, const Runs& runs, Finish finish) {
  for (int64_t column = 0; column < n_columns; column += kWidth, panels += panel_stride) {
    bool whole = kVecs == 1 || column + kLanes < n_columns;
    row_blocks<kRows>(n_rows, [&](auto rows, int row) {
      auto multiplied =
          whole ? multiply<rows.value, kVecs, 1, L, Finish> : multiply<rows.value, 1, 1, L, Finish>;
      multiplied(left.from(row), panels, panel_stride, runs, finish.from(row, column));
    });
  }
}

// The same for at most kFewRows rows, Panels panels at a time and halves of it where fewer are
// left: one panel has too few sums to keep the units busy while each waits for the one before.
constexpr int kFewRows = 2;

template <int Panels, typename L, typename Finish>
inline void few_rows_product(int n_rows, int64_t n_columns, L left, const float* panels,
                             int64_t panel_stride, const Runs& runs, Finish finish) {
  if constexpr (Panels == 1) {
    product(n_rows, n_columns, left, panels, panel_stride, runs, finish);
  } else {
    int64_t column = 0;
    for (; column + Panels * kWidth <= n_columns; column += Panels * kWidth) {
      row_blocks<kFewRows>(n_rows, [&](auto rows, int row) {
        multiply<rows.value, kVecs, Panels>(left.from(row), panels, panel_stride, runs,
                                            finish.from(row, column));
      });
      panels += Panels * panel_stride;
    }
    few_rows_product<Panels / 2>(n_rows, n_columns - column, left, panels, panel_stride, runs,
                                 finish.from(0, column));
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
