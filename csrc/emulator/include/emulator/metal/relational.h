#pragma once

#include "emulator/metal/common.h"

// metal_relational (specification 4, table 6.1).

EMU_VALUES_BEGIN

namespace metal {

#define EMU_CLASS(name, expression)                                        \
  constexpr bool name(float x) { return expression; }                      \
  constexpr bool name(half x) { return expression; }                       \
  template <class T, int N, enable_if_t<emu::is_scalar_float<T>, int> = 0> \
  constexpr vec<bool, N> name(const vec<T, N>& v) {                        \
    vec<bool, N> result(false);                                            \
    for (int i = 0; i < N; i++) {                                          \
      const T x = v.d[i];                                                  \
      result.d[i] = expression;                                            \
    }                                                                      \
    return result;                                                         \
  }
EMU_CLASS(isnan, x != x)
EMU_CLASS(isinf, __builtin_isinf(static_cast<float>(x)))
EMU_CLASS(isfinite, __builtin_isfinite(static_cast<float>(x)))
EMU_CLASS(signbit, __builtin_signbit(static_cast<float>(x)) != 0)
#undef EMU_CLASS
// Whether a value is subnormal depends on its own type, so not by way of float.
constexpr bool isnormal(float x) { return isfinite(x) && abs(x) >= numeric_limits<float>::min(); }
constexpr bool isnormal(half x) { return isfinite(x) && abs(x) >= numeric_limits<half>::min(); }
#define EMU_ORDER(T)                                              \
  constexpr bool isordered(T x, T y) { return x == x && y == y; } \
  constexpr bool isunordered(T x, T y) { return x != x || y != y; }
EMU_ORDER(float)
EMU_ORDER(half)
#undef EMU_ORDER

template <int N>
constexpr bool all(const vec<bool, N>& x) {
  for (int i = 0; i < N; i++) {
    if (!x.d[i]) return false;
  }
  return true;
}
template <int N>
constexpr bool any(const vec<bool, N>& x) {
  for (int i = 0; i < N; i++) {
    if (x.d[i]) return true;
  }
  return false;
}
template <int N>
constexpr vec<bool, N> not_(const vec<bool, N>& x) {
  return !x;
}

// select(a, b, c) is b where c, else a.
template <class T, enable_if_t<emu::is_scalar_number<T>, int> = 0>
constexpr T select(T x, T y, bool c) {
  return c ? y : x;
}
template <class T, class U,
          enable_if_t<!is_same_v<T, U> && emu::is_scalar_number<T> && emu::is_scalar_number<U> &&
                          (emu::is_scalar_float<T> != emu::is_scalar_float<U>),
                      int> = 0>
constexpr auto select(T x, U y, bool c) {
  using R = conditional_t<emu::is_scalar_float<T>, T, U>;
  return c ? static_cast<R>(y) : static_cast<R>(x);
}
template <class T, int N>
constexpr vec<T, N> select(vec<T, N> x, const vec<T, N>& y, const vec<bool, N>& c) {
  for (int i = 0; i < N; i++) {
    if (c.d[i]) x.d[i] = y.d[i];
  }
  return x;
}
template <class T, int N>
constexpr vec<T, N> select(const vec<T, N>& x, const vec<T, N>& y, bool c) {
  return c ? y : x;
}
template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>
constexpr vec<T, N> select(const vec<T, N>& x, S y, const vec<bool, N>& c) {
  return select(x, vec<T, N>(static_cast<T>(y)), c);
}
template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>
constexpr vec<T, N> select(S x, const vec<T, N>& y, const vec<bool, N>& c) {
  return select(vec<T, N>(static_cast<T>(x)), y, c);
}

}  // namespace metal

EMU_VALUES_END
