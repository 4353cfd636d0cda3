#pragma once

#include "emulator/metal/math.h"

// metal_common, and the functions that metal_math and metal_integer share: abs, clamp, max, min and
// their forms of three arguments. Overloads an exact type, as for the other functions: min(1, x)
// with an unsigned x is ambiguous here as it is in Metal.

EMU_VALUES_BEGIN

namespace metal {

// On floats these are fmax and fmin: a NaN gives way to a number (specification 4, table 6.4, and
// Apple's headers, which define max on floats by the same builtin as fmax).
#define EMU_EXTREMES(T, greater, lesser)                                   \
  constexpr T max(T x, T y) { return greater; }                            \
  constexpr T min(T x, T y) { return lesser; }                             \
  constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  constexpr T max3(T x, T y, T z) { return max(x, max(y, z)); }            \
  constexpr T min3(T x, T y, T z) { return min(x, min(y, z)); }            \
  constexpr T median3(T x, T y, T z) { return max(min(x, y), min(max(x, y), z)); }
#define EMU_INTEGER(T) EMU_EXTREMES(T, x < y ? y : x, y < x ? y : x)
EMU_INTEGER(char)
EMU_INTEGER(signed char)
EMU_INTEGER(uchar)
EMU_INTEGER(short)
EMU_INTEGER(ushort)
EMU_INTEGER(int)
EMU_INTEGER(uint)
EMU_INTEGER(long)
EMU_INTEGER(ulong)
EMU_INTEGER(long long)
EMU_INTEGER(unsigned long long)
#undef EMU_INTEGER
EMU_EXTREMES(float, __builtin_fmaxf(x, y), __builtin_fminf(x, y))
EMU_EXTREMES(half, static_cast<half>(__builtin_fmaxf(x, y)),
             static_cast<half>(__builtin_fminf(x, y)))
#undef EMU_EXTREMES

#define EMU_MAGNITUDE(T) \
  constexpr T abs(T x) { return x < 0 ? static_cast<T>(-x) : x; }
EMU_MAGNITUDE(char)
EMU_MAGNITUDE(signed char)
EMU_MAGNITUDE(short)
EMU_MAGNITUDE(int)
EMU_MAGNITUDE(long)
EMU_MAGNITUDE(long long)
#undef EMU_MAGNITUDE
#define EMU_IDENTITY(T) \
  constexpr T abs(T x) { return x; }
EMU_IDENTITY(uchar)
EMU_IDENTITY(ushort)
EMU_IDENTITY(uint)
EMU_IDENTITY(ulong)
EMU_IDENTITY(unsigned long long)
#undef EMU_IDENTITY
constexpr float abs(float x) { return __builtin_fabsf(x); }
constexpr half abs(half x) { return static_cast<half>(__builtin_fabsf(x)); }

#define EMU_VECTOR(name)                                                       \
  template <class T, int N>                                                    \
  constexpr vec<T, N> name(vec<T, N> x, const vec<T, N>& y) {                  \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i], y.d[i])); \
    return x;                                                                  \
  }                                                                            \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>  \
  constexpr vec<T, N> name(const vec<T, N>& x, S y) {                          \
    return name(x, vec<T, N>(static_cast<T>(y)));                              \
  }                                                                            \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>  \
  constexpr vec<T, N> name(S x, const vec<T, N>& y) {                          \
    return name(vec<T, N>(static_cast<T>(x)), y);                              \
  }
EMU_VECTOR(max)
EMU_VECTOR(min)
#undef EMU_VECTOR
#define EMU_VECTOR(name)                                                               \
  template <class T, int N>                                                            \
  constexpr vec<T, N> name(vec<T, N> x, const vec<T, N>& y, const vec<T, N>& z) {      \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i], y.d[i], z.d[i])); \
    return x;                                                                          \
  }
EMU_VECTOR(max3)
EMU_VECTOR(min3)
EMU_VECTOR(median3)
EMU_VECTOR(clamp)
#undef EMU_VECTOR
template <class T, int N, class S, class R,
          enable_if_t<emu::splats<S, T> && emu::splats<R, T>, int> = 0>
constexpr vec<T, N> clamp(const vec<T, N>& x, S low, R high) {
  return clamp(x, vec<T, N>(static_cast<T>(low)), vec<T, N>(static_cast<T>(high)));
}
template <class T, int N>
constexpr vec<T, N> abs(vec<T, N> x) {
  for (int i = 0; i < N; i++) x.d[i] = abs(x.d[i]);
  return x;
}

// ---- metal_common (specification 4, table 6.2) ----

#define EMU_COMMON(T)                                                                  \
  constexpr T mix(T x, T y, T a) { return x + (y - x) * a; }                           \
  constexpr T saturate(T x) { return clamp(x, static_cast<T>(0), static_cast<T>(1)); } \
  constexpr T sign(T x) {                                                              \
    return x > 0    ? static_cast<T>(1)                                                \
           : x < 0  ? static_cast<T>(-1)                                               \
           : x == 0 ? x                                                                \
                    : static_cast<T>(0);                                               \
  }                                                                                    \
  constexpr T step(T edge, T x) { return static_cast<T>(x < edge ? 0 : 1); }           \
  constexpr T smoothstep(T edge0, T edge1, T x) {                                      \
    const T t = saturate((x - edge0) / (edge1 - edge0));                               \
    return t * t * (3 - 2 * t);                                                        \
  }
EMU_COMMON(float)
EMU_COMMON(half)
#undef EMU_COMMON
template <class T, int N>
constexpr vec<T, N> saturate(vec<T, N> x) {
  for (int i = 0; i < N; i++) x.d[i] = saturate(x.d[i]);
  return x;
}
template <class T, int N>
constexpr vec<T, N> sign(vec<T, N> x) {
  for (int i = 0; i < N; i++) x.d[i] = sign(x.d[i]);
  return x;
}
template <class T, int N>
constexpr vec<T, N> mix(const vec<T, N>& x, const vec<T, N>& y, const vec<T, N>& a) {
  return x + (y - x) * a;
}
template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>
constexpr vec<T, N> mix(const vec<T, N>& x, const vec<T, N>& y, S a) {
  return mix(x, y, vec<T, N>(static_cast<T>(a)));
}
template <class T, int N>
constexpr vec<T, N> step(const vec<T, N>& edge, vec<T, N> x) {
  for (int i = 0; i < N; i++) x.d[i] = step(edge.d[i], x.d[i]);
  return x;
}
template <class T, int N>
constexpr vec<T, N> smoothstep(const vec<T, N>& edge0, const vec<T, N>& edge1, vec<T, N> x) {
  for (int i = 0; i < N; i++) x.d[i] = smoothstep(edge0.d[i], edge1.d[i], x.d[i]);
  return x;
}

}  // namespace metal

EMU_VALUES_END
