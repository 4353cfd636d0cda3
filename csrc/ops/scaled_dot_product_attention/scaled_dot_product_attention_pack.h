#pragma once

// Rows of an operand as float32, in the layouts of the products.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_params.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_product.h"

namespace mto::MTO_ISA {
namespace {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Calls f with the type as a constant.
template <typename F>
MTO_INLINE void with_type(FloatType type, F&& f) {
  switch (type) {
    case FloatType::kFloat32:
      return f(Index<static_cast<int>(FloatType::kFloat32)>{});
    case FloatType::kFloat16:
      return f(Index<static_cast<int>(FloatType::kFloat16)>{});
    default:
      return f(Index<static_cast<int>(FloatType::kBFloat16)>{});
  }
}

// Rows of width `d`, row i at element `first + i * stride`.
struct RowSource {
  FloatType type;
  const void* base;
  int64_t first, stride, d;
};

// Keys and values are read but once where rows are few: the rows of a later step are on their way
// while those of this one are packed. To the second cache, which waits for more lines at a time
// than the first does.
inline void prefetch_ahead(const RowSource& rows, int64_t index) {
  constexpr int64_t kRowsAhead = 3 * kStep;
  constexpr int kRead = 0, kSecondCache = 2;
  int64_t ahead = (index + kRowsAhead * rows.stride) * static_cast<int64_t>(size_of(rows.type));
  __builtin_prefetch(static_cast<const char*>(rows.base) + ahead, kRead, kSecondCache);
}

// Panels of Width rows, each transposed: element (row, column) of a panel at column * Width + row.
// Rows n .. n_padded are zeros. All elements are multiplied by `factor`.
template <int Width>
MTO_APART MTO_FLAT void pack_transposed(const RowSource& rows, int n, int n_padded, float factor,
                                        float* out) {
  with_type(rows.type, [&](auto type_index) {
    constexpr auto kType = static_cast<FloatType>(type_index.value);
    Vec factors = broadcast(factor);
    for (int row = 0; row < n_padded; row += kLanes) {
      float* panel = out + row / Width * Width * rows.d + row % Width;
      for (int64_t column = 0; column < rows.d; column += kLanes) {
        int64_t n_columns = std::min<int64_t>(kLanes, rows.d - column);
        Vec square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          int64_t at = rows.first + (row + i) * rows.stride + column;
          prefetch_ahead(rows, at);
          square[i] = row + i < n ? load_part(kType, rows.base, at, n_columns) : zero();
        }
        transpose(square);
        for (int i = 0; i < n_columns; ++i) {
          store(panel + (column + i) * Width, mul(square[i], factors));
        }
      }
    }
  });
}

// Panels of kWidth columns, rows one after the other; panels are `panel_stride` floats apart.
MTO_APART MTO_FLAT void pack_rows(const RowSource& rows, int n, float factor, float* out,
                                  int64_t panel_stride) {
  with_type(rows.type, [&](auto type_index) {
    constexpr auto kType = static_cast<FloatType>(type_index.value);
    Vec factors = broadcast(factor);
    for (int row = 0; row < n; ++row) {
      for (int64_t column = 0; column < rows.d; column += kLanes) {
        float* at = out + column / kWidth * panel_stride + row * kWidth + column % kWidth;
        int64_t index = rows.first + row * rows.stride + column;
        prefetch_ahead(rows, index);
        Vec values = load_part(kType, rows.base, index, rows.d - column);
        store(at, mul(values, factors));
      }
    }
  });
}

// Rows first .. first + n of a left panel, all of it or a part.
MTO_APART void pack_left(const RowSource& rows, int first, int n, float factor, float* panel) {
  if (n == kLeftWidth) return pack_transposed<kLeftWidth>(rows, n, n, factor, panel);
  for (int row = 0; row < n; ++row) {
    for (int64_t column = 0; column < rows.d; ++column) {
      float value = load_one(rows.type, rows.base, rows.first + row * rows.stride + column);
      panel[column * kLeftWidth + first + row] = value * factor;
    }
  }
}

inline RowSource rows_of(const AttentionOperand& operand, int64_t b, int64_t h, int64_t first,
                         int64_t d) {
  return {operand.type, operand.data, operand.offset(b, h, first), operand.row, d};
}

}  // namespace
}  // namespace mto::MTO_ISA
