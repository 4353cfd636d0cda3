#pragma once

// Products of few rows with keys and values where they lie: each is read once, so packing them
// would cost more than it saves. The chains of multiply-adds are those of product(), to the same
// bits.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_pack.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kDirectRows = std::min(4, kRows);

// Calls f with the number of rows as a constant.
template <int Max, typename F>
MTO_INLINE void with_rows(int n_rows, F&& f) {
  if constexpr (Max > 1) {
    if (n_rows < Max) return with_rows<Max - 1>(n_rows, f);
  }
  f(Index<Max>{});
}

// scores[r * kScoreStride + j] = the product of row r and key j of kStep, n of them keys and zeros.
template <int Rows>
MTO_APART MTO_FLAT void multiply_keys_directly(LeftPanel rows, const RowSource& keys, int n,
                                               float* scores) {
  with_type(keys.type, [&](auto type_index) {
    constexpr auto kType = static_cast<FloatType>(type_index.value);
    for (int key = 0; key < kStep; key += kLanes) {
      Vec sums[Rows];
      unroll<Rows>([&](auto r) { sums[r.value] = zero(); });
      for (int64_t column = 0; column < keys.d; column += kLanes) {
        int64_t n_columns = std::min<int64_t>(kLanes, keys.d - column);
        Vec square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          int64_t at = keys.first + (key + i) * keys.stride + column;
          prefetch_ahead(keys, at);
          square[i] = key + i < n ? load_part(kType, keys.base, at, n_columns) : zero();
        }
        transpose(square);
        const float* factors = rows.at + column * LeftPanel::kDepthStride;
        for (int i = 0; i < n_columns; ++i, factors += LeftPanel::kDepthStride) {
          unroll<Rows>([&](auto r) {
            sums[r.value] = fma(broadcast(factors[r.value]), square[i], sums[r.value]);
          });
        }
      }
      unroll<Rows>([&](auto r) { store(scores + r.value * kScoreStride + key, sums[r.value]); });
    }
  });
}

// Columns from `column` on, Vecs vectors, the last of which may end behind a row's end.
template <FloatType Type, int Rows, int Vecs>
MTO_INLINE void multiply_columns(const float* weights, const RowSource& values, const Runs& keys,
                                 int64_t column, const Merge& merge) {
  Vec sums[Rows][Vecs];
  unroll<Rows>([&](auto r) { unroll<Vecs>([&](auto v) { sums[r.value][v.value] = zero(); }); });
  bool whole = column + Vecs * kLanes <= values.d;
  for (int i = 0; i < keys.n; ++i) {
    for (int j = keys.runs[i].begin; j < keys.runs[i].end; ++j) {
      int64_t at = values.first + j * values.stride + column;
      Vec columns[Vecs];
      unroll<Vecs>([&](auto v) {
        int64_t index = at + v.value * kLanes, left = values.d - column - v.value * kLanes;
        prefetch_ahead(values, index);
        columns[v.value] = whole      ? load_as(Type, values.base, index)
                           : left > 0 ? load_part(Type, values.base, index, left)
                                      : zero();
      });
      unroll<Rows>([&](auto r) {
        Vec weight = broadcast(weights[r.value * kScoreStride + j]);
        unroll<Vecs>([&](auto v) {
          sums[r.value][v.value] = fma(weight, columns[v.value], sums[r.value][v.value]);
        });
      });
    }
  }
  unroll<Rows>([&](auto r) {
    unroll<Vecs>([&](auto v) {
      int64_t at = column + v.value * kLanes;
      if (at < values.d) merge(r.value, static_cast<int>(at), sums[r.value][v.value]);
    });
  });
}

// Merges the values, whose first is that of the tile, under the weights of rows.
template <int Rows>
MTO_APART MTO_FLAT void multiply_values_directly(const float* weights, const RowSource& values,
                                                 const Runs& keys, const Merge& merge) {
  // Sums and operands fit the registers.
  constexpr int kVecsAtOnce = std::max(1, kRegisters / 2 / std::max(Rows, 2));
  with_type(values.type, [&](auto type_index) {
    constexpr auto kType = static_cast<FloatType>(type_index.value);
    for (int64_t column = 0; column < values.d; column += kVecsAtOnce * kLanes) {
      multiply_columns<kType, Rows, kVecsAtOnce>(weights, values, keys, column, merge);
    }
  });
}

}  // namespace
}  // namespace mto::MTO_ISA
