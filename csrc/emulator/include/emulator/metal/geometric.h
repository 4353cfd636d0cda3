#pragma once

#include "emulator/metal/common.h"

// metal_geometric (specification 4, table 6.8).

EMU_VALUES_BEGIN

namespace metal {

template <class T, int N>
constexpr T dot(const vec<T, N>& x, const vec<T, N>& y) {
  T sum = x.d[0] * y.d[0];
  for (int i = 1; i < N; i++) sum += x.d[i] * y.d[i];
  return sum;
}
template <class T>
constexpr vec<T, 3> cross(const vec<T, 3>& x, const vec<T, 3>& y) {
  return vec<T, 3>(x.d[1] * y.d[2] - x.d[2] * y.d[1], x.d[2] * y.d[0] - x.d[0] * y.d[2],
                   x.d[0] * y.d[1] - x.d[1] * y.d[0]);
}
template <class T, int N>
constexpr T length_squared(const vec<T, N>& x) {
  return dot(x, x);
}
template <class T, int N>
inline T length(const vec<T, N>& x) {
  return static_cast<T>(sqrt(length_squared(x)));
}
template <class T, int N>
constexpr T distance_squared(const vec<T, N>& x, const vec<T, N>& y) {
  return length_squared(x - y);
}
template <class T, int N>
inline T distance(const vec<T, N>& x, const vec<T, N>& y) {
  return length(x - y);
}
template <class T, int N>
inline vec<T, N> normalize(const vec<T, N>& x) {
  return x * static_cast<T>(rsqrt(length_squared(x)));
}
template <class T, int N>
constexpr vec<T, N> faceforward(const vec<T, N>& n, const vec<T, N>& i,
                                const vec<T, N>& reference) {
  return dot(reference, i) < 0 ? n : -n;
}
template <class T, int N>
constexpr vec<T, N> reflect(const vec<T, N>& i, const vec<T, N>& n) {
  return i - n * (2 * dot(n, i));
}
template <class T, int N>
inline vec<T, N> refract(const vec<T, N>& i, const vec<T, N>& n, T eta) {
  const T cosine = dot(n, i), k = 1 - eta * eta * (1 - cosine * cosine);
  return k < 0 ? vec<T, N>(static_cast<T>(0)) : i * eta - n * (eta * cosine + sqrt(k));
}

namespace fast {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace fast
namespace precise {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace precise

}  // namespace metal

EMU_VALUES_END
