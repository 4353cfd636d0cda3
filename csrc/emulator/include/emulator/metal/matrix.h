#pragma once

#include "emulator/metal/geometric.h"

// metal_matrix: matrix<T, columns, rows>, an array of column vectors (specification 4,
// section 2.3).

EMU_VALUES_BEGIN

namespace metal {

template <class T, int Cols, int Rows>
struct matrix {
  using column = vec<T, Rows>;
  column columns[Cols];

  matrix() = default;
  // On the diagonal, as in Metal.
  constexpr explicit matrix(T value) : columns{} {
    for (int i = 0; i < Cols && i < Rows; i++) columns[i].d[i] = value;
  }
  template <class... C, enable_if_t<sizeof...(C) == Cols && (__is_convertible(C, column) && ...) &&
                                        ((emu::width_of<C> == Rows) && ...),
                                    int> = 0>
  constexpr matrix(const C&... values) : columns{static_cast<column>(values)...} {}
  template <class... S, enable_if_t<sizeof...(S) == Cols * Rows && (Cols * Rows > 1) &&
                                        (emu::is_scalar_number<S> && ...),
                                    long> = 0>
  constexpr matrix(S... values) : columns{} {
    const T all[] = {static_cast<T>(values)...};
    for (int i = 0; i < Cols * Rows; i++) columns[i / Rows].d[i % Rows] = all[i];
  }
  template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
  constexpr explicit matrix(const matrix<U, Cols, Rows>& other) : columns{} {
    for (int i = 0; i < Cols; i++) columns[i] = column(other.columns[i]);
  }

  constexpr column& operator[](int i) { return columns[i]; }
  constexpr const column& operator[](int i) const { return columns[i]; }
};

template <class T, int C, int R>
constexpr matrix<T, C, R> operator+(matrix<T, C, R> a, const matrix<T, C, R>& b) {
  for (int i = 0; i < C; i++) a.columns[i] += b.columns[i];
  return a;
}
template <class T, int C, int R>
constexpr matrix<T, C, R> operator-(matrix<T, C, R> a, const matrix<T, C, R>& b) {
  for (int i = 0; i < C; i++) a.columns[i] -= b.columns[i];
  return a;
}
template <class T, int C, int R, class S, enable_if_t<emu::splats<S, T>, int> = 0>
constexpr matrix<T, C, R> operator*(matrix<T, C, R> a, S b) {
  for (int i = 0; i < C; i++) a.columns[i] *= static_cast<T>(b);
  return a;
}
template <class T, int C, int R, class S, enable_if_t<emu::splats<S, T>, int> = 0>
constexpr matrix<T, C, R> operator*(S a, const matrix<T, C, R>& b) {
  return b * a;
}
template <class T, int C, int R>
constexpr vec<T, R> operator*(const matrix<T, C, R>& a, const vec<T, C>& x) {
  vec<T, R> sum = a.columns[0] * x.d[0];
  for (int i = 1; i < C; i++) sum += a.columns[i] * x.d[i];
  return sum;
}
template <class T, int C, int R>
constexpr vec<T, C> operator*(const vec<T, R>& x, const matrix<T, C, R>& a) {
  vec<T, C> result(static_cast<T>(0));
  for (int i = 0; i < C; i++) result.d[i] = dot(x, a.columns[i]);
  return result;
}
template <class T, int K, int R, int C>
constexpr matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> result(static_cast<T>(0));
  for (int i = 0; i < C; i++) result.columns[i] = a * b.columns[i];
  return result;
}
#define EMU_ASSIGN(op)                                                           \
  template <class T, int C, int R, class S>                                      \
  constexpr matrix<T, C, R>& operator op## = (matrix<T, C, R> & a, const S& b) { \
    return a = a op b;                                                           \
  }
EMU_ASSIGN(+)
EMU_ASSIGN(-)
EMU_ASSIGN(*)
#undef EMU_ASSIGN

template <class T, int C, int R>
constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& a) {
  matrix<T, R, C> result(static_cast<T>(0));
  for (int i = 0; i < C; i++) {
    for (int j = 0; j < R; j++) result.columns[j].d[i] = a.columns[i].d[j];
  }
  return result;
}
template <class T>
constexpr T determinant(const matrix<T, 2, 2>& a) {
  return a.columns[0].d[0] * a.columns[1].d[1] - a.columns[0].d[1] * a.columns[1].d[0];
}
template <class T>
constexpr T determinant(const matrix<T, 3, 3>& a) {
  return dot(a.columns[0], cross(a.columns[1], a.columns[2]));
}
template <class T>
constexpr T determinant(const matrix<T, 4, 4>& a) {
  T sum = 0;
  for (int row = 0; row < 4; row++) {
    matrix<T, 3, 3> rest(static_cast<T>(0));
    for (int i = 0; i < 3; i++) {
      for (int j = 0; j < 3; j++) {
        rest.columns[i].d[j] = a.columns[i + 1].d[j + (j >= row ? 1 : 0)];
      }
    }
    const T term = a.columns[0].d[row] * determinant(rest);
    sum += row % 2 == 0 ? term : -term;
  }
  return sum;
}

}  // namespace metal

#define EMU_MATRIX(T, C, R)                  \
  typedef metal::matrix<T, C, R> T##C##x##R; \
  namespace metal {                          \
  using ::T##C##x##R;                        \
  }
#define EMU_MATRICES(T) \
  EMU_MATRIX(T, 2, 2)   \
  EMU_MATRIX(T, 2, 3)   \
  EMU_MATRIX(T, 2, 4)   \
  EMU_MATRIX(T, 3, 2)   \
  EMU_MATRIX(T, 3, 3)   \
  EMU_MATRIX(T, 3, 4)   \
  EMU_MATRIX(T, 4, 2)   \
  EMU_MATRIX(T, 4, 3)   \
  EMU_MATRIX(T, 4, 4)
EMU_MATRICES(float)
EMU_MATRICES(half)
EMU_MATRICES(bfloat)
#undef EMU_MATRICES
#undef EMU_MATRIX

EMU_VALUES_END
