#pragma once

#include "emulator/metal/limits.h"

// metal_math: overloads for float, half and their vectors, with the C library's functions in float.
// Apple's own declarations are overloads of that kind (a toolchain's message lists `float
// exp(float)` and three vector overloads as the candidates of precise::exp), so that exp(int) is
// ambiguous and exp(bfloat) is a float, as MLX's bf16_math.h says. Accuracy is the C library's,
// better than Metal guarantees; halves are computed in float and rounded.

EMU_VALUES_BEGIN

namespace emu {

constexpr double kPi = 3.14159265358979323846;

// sin(pi x) and cos(pi x): exact reduction first, as pi x itself would lose the argument.
inline float sin_pi(float x) {
  return static_cast<float>(__builtin_sin(kPi * __builtin_fmod(x, 2)));
}
inline float cos_pi(float x) {
  return static_cast<float>(__builtin_cos(kPi * __builtin_fmod(x, 2)));
}
inline float tan_pi(float x) {
  return static_cast<float>(__builtin_tan(kPi * __builtin_fmod(x, 1)));
}
// Below one also where rounding would give one (specification 4, table 6.4).
inline float fraction(float x) { return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f); }
inline float positive_difference(float x, float y) { return __builtin_fdimf(x, y); }
// x is expected to be positive, else the result is undefined (table 6.4): NaN here.
inline float power_of_positive(float x, float y) { return x < 0 ? NAN : __builtin_powf(x, y); }
inline float median(float x, float y, float z) {
  return __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z));
}

}  // namespace emu

// X(name, expression of float arguments) for the functions of one, two and three floats.
#define EMU_MATH_1(X)                 \
  X(acos, __builtin_acosf(x))         \
  X(acosh, __builtin_acoshf(x))       \
  X(asin, __builtin_asinf(x))         \
  X(asinh, __builtin_asinhf(x))       \
  X(atan, __builtin_atanf(x))         \
  X(atanh, __builtin_atanhf(x))       \
  X(ceil, __builtin_ceilf(x))         \
  X(cos, __builtin_cosf(x))           \
  X(cosh, __builtin_coshf(x))         \
  X(cospi, emu::cos_pi(x))            \
  X(exp, __builtin_expf(x))           \
  X(exp2, __builtin_exp2f(x))         \
  X(exp10, __builtin_powf(10.0f, x))  \
  X(fabs, __builtin_fabsf(x))         \
  X(floor, __builtin_floorf(x))       \
  X(fract, emu::fraction(x))          \
  X(log, __builtin_logf(x))           \
  X(log2, __builtin_log2f(x))         \
  X(log10, __builtin_log10f(x))       \
  X(rint, __builtin_rintf(x))         \
  X(round, __builtin_roundf(x))       \
  X(rsqrt, 1.0f / __builtin_sqrtf(x)) \
  X(sin, __builtin_sinf(x))           \
  X(sinh, __builtin_sinhf(x))         \
  X(sinpi, emu::sin_pi(x))            \
  X(sqrt, __builtin_sqrtf(x))         \
  X(tan, __builtin_tanf(x))           \
  X(tanh, __builtin_tanhf(x))         \
  X(tanpi, emu::tan_pi(x))            \
  X(trunc, __builtin_truncf(x))
#define EMU_MATH_2(X)                     \
  X(atan2, __builtin_atan2f(x, y))        \
  X(copysign, __builtin_copysignf(x, y))  \
  X(divide, x / y)                        \
  X(fdim, emu::positive_difference(x, y)) \
  X(fmax, __builtin_fmaxf(x, y))          \
  X(fmin, __builtin_fminf(x, y))          \
  X(fmod, __builtin_fmodf(x, y))          \
  X(pow, __builtin_powf(x, y))            \
  X(powr, emu::power_of_positive(x, y))
#define EMU_MATH_3(X)                                 \
  X(fma, __builtin_fmaf(x, y, z))                     \
  X(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z))) \
  X(fmin3, __builtin_fminf(x, __builtin_fminf(y, z))) \
  X(fmedian3, emu::median(x, y, z))

#define EMU_FLOAT_1(name, expression) \
  inline float name(float x) { return expression; }
#define EMU_FLOAT_2(name, expression) \
  inline float name(float x, float y) { return expression; }
#define EMU_FLOAT_3(name, expression) \
  inline float name(float x, float y, float z) { return expression; }
#define EMU_HALF_1(name, expression)      \
  inline half name(half value) {          \
    const float x = value;                \
    return static_cast<half>(expression); \
  }
#define EMU_HALF_2(name, expression)          \
  inline half name(half first, half second) { \
    const float x = first, y = second;        \
    return static_cast<half>(expression);     \
  }
// A float fma keeps the whole product of two halves, so rounding its sum once more is exact enough.
#define EMU_HALF_3(name, expression)                      \
  inline half name(half first, half second, half third) { \
    const float x = first, y = second, z = third;         \
    return static_cast<half>(expression);                 \
  }
#define EMU_VECTOR_1(name, expression)                                     \
  template <class T, int N, enable_if_t<emu::is_scalar_float<T>, int> = 0> \
  inline vec<T, N> name(vec<T, N> x) {                                     \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i]));     \
    return x;                                                              \
  }
// A scalar operand beside a vector applies to every element (specification 4, section 6.5).
#define EMU_VECTOR_2(name, expression)                                          \
  template <class T, int N, enable_if_t<emu::is_scalar_float<T>, int> = 0>      \
  inline vec<T, N> name(vec<T, N> x, const vec<T, N>& y) {                      \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i], y.d[i]));  \
    return x;                                                                   \
  }                                                                             \
  template <class T, int N, class S,                                            \
            enable_if_t<emu::is_scalar_float<T> && emu::splats<S, T>, int> = 0> \
  inline vec<T, N> name(const vec<T, N>& x, S y) {                              \
    return name(x, vec<T, N>(static_cast<T>(y)));                               \
  }                                                                             \
  template <class T, int N, class S,                                            \
            enable_if_t<emu::is_scalar_float<T> && emu::splats<S, T>, int> = 0> \
  inline vec<T, N> name(S x, const vec<T, N>& y) {                              \
    return name(vec<T, N>(static_cast<T>(x)), y);                               \
  }
#define EMU_VECTOR_3(name, expression)                                                 \
  template <class T, int N, enable_if_t<emu::is_scalar_float<T>, int> = 0>             \
  inline vec<T, N> name(vec<T, N> x, const vec<T, N>& y, const vec<T, N>& z) {         \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i], y.d[i], z.d[i])); \
    return x;                                                                          \
  }

namespace metal {

EMU_MATH_1(EMU_FLOAT_1)
EMU_MATH_2(EMU_FLOAT_2)
EMU_MATH_3(EMU_FLOAT_3)
EMU_MATH_1(EMU_HALF_1)
EMU_MATH_2(EMU_HALF_2)
EMU_MATH_3(EMU_HALF_3)
EMU_MATH_1(EMU_VECTOR_1)
EMU_MATH_2(EMU_VECTOR_2)
EMU_MATH_3(EMU_VECTOR_3)

inline float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }

// Results besides the returned one go through references.
#define EMU_PARTS(T)                                                                          \
  inline T frexp(T x, int& exponent) {                                                        \
    exponent = 0;                                                                             \
    return static_cast<T>(__builtin_frexpf(x, &exponent));                                    \
  }                                                                                           \
  inline T ldexp(T x, int exponent) { return static_cast<T>(__builtin_ldexpf(x, exponent)); } \
  inline int ilogb(T x) { return __builtin_ilogbf(x); }                                       \
  inline T modf(T x, T& whole) {                                                              \
    float part = 0;                                                                           \
    const float fraction = __builtin_modff(x, &part);                                         \
    whole = static_cast<T>(part);                                                             \
    return static_cast<T>(fraction);                                                          \
  }                                                                                           \
  inline T sincos(T x, T& cosine) {                                                           \
    cosine = static_cast<T>(__builtin_cosf(x));                                               \
    return static_cast<T>(__builtin_sinf(x));                                                 \
  }
EMU_PARTS(float)
EMU_PARTS(half)
#undef EMU_PARTS
template <class T, int N>
inline vec<T, N> frexp(vec<T, N> x, vec<int, N>& exponent) {
  for (int i = 0; i < N; i++) x.d[i] = frexp(x.d[i], exponent.d[i]);
  return x;
}
template <class T, int N>
inline vec<T, N> ldexp(vec<T, N> x, const vec<int, N>& exponent) {
  for (int i = 0; i < N; i++) x.d[i] = ldexp(x.d[i], exponent.d[i]);
  return x;
}
template <class T, int N>
inline vec<int, N> ilogb(const vec<T, N>& x) {
  vec<int, N> result(0);
  for (int i = 0; i < N; i++) result.d[i] = ilogb(x.d[i]);
  return result;
}
template <class T, int N>
inline vec<T, N> modf(vec<T, N> x, vec<T, N>& whole) {
  for (int i = 0; i < N; i++) x.d[i] = modf(x.d[i], whole.d[i]);
  return x;
}
template <class T, int N>
inline vec<T, N> sincos(vec<T, N> x, vec<T, N>& cosine) {
  for (int i = 0; i < N; i++) x.d[i] = sincos(x.d[i], cosine.d[i]);
  return x;
}

// metal::fast and metal::precise declare the float functions only: a half argument converts. Both
// compute the same here; fast math's liberties are not modelled.
#define EMU_NAMESPACE(space)                                                       \
  namespace space {                                                                \
  EMU_MATH_1(EMU_FLOAT_1)                                                          \
  EMU_MATH_2(EMU_FLOAT_2)                                                          \
  EMU_MATH_3(EMU_FLOAT_3)                                                          \
  EMU_MATH_1(EMU_VECTOR_1)                                                         \
  EMU_MATH_2(EMU_VECTOR_2)                                                         \
  EMU_MATH_3(EMU_VECTOR_3)                                                         \
  inline float abs(float x) { return __builtin_fabsf(x); }                         \
  inline float max(float x, float y) { return __builtin_fmaxf(x, y); }             \
  inline float min(float x, float y) { return __builtin_fminf(x, y); }             \
  inline float frexp(float x, int& exponent) { return metal::frexp(x, exponent); } \
  inline float ldexp(float x, int exponent) { return metal::ldexp(x, exponent); }  \
  inline int ilogb(float x) { return metal::ilogb(x); }                            \
  inline float modf(float x, float& whole) { return metal::modf(x, whole); }       \
  inline float sincos(float x, float& cosine) { return metal::sincos(x, cosine); } \
  }
EMU_NAMESPACE(fast)
EMU_NAMESPACE(precise)
#undef EMU_NAMESPACE

}  // namespace metal

EMU_VALUES_END
