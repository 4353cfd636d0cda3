#pragma once

#include "emulator/metal/vector.h"

// metal_limits: numeric_limits and the macros of the numeric headers (specification 4, tables 6.9
// to 6.11).

EMU_VALUES_BEGIN

namespace metal {

template <class T>
struct numeric_limits {
  static constexpr bool is_specialized = false;
};
template <class T>
struct numeric_limits<const T> : numeric_limits<T> {};

#define EMU_INTEGER(T, low, high, n_digits)                                   \
  template <>                                                                 \
  struct numeric_limits<T> {                                                  \
    static constexpr bool is_specialized = true, is_integer = true;           \
    static constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0); \
    static constexpr bool is_exact = true, has_infinity = false;              \
    static constexpr int digits = n_digits, radix = 2;                        \
    static constexpr T min() { return low; }                                  \
    static constexpr T max() { return high; }                                 \
    static constexpr T lowest() { return low; }                               \
    static constexpr T epsilon() { return 0; }                                \
    static constexpr T infinity() { return 0; }                               \
    static constexpr T quiet_NaN() { return 0; }                              \
  };
EMU_INTEGER(bool, false, true, 1)
EMU_INTEGER(char, -128, 127, 7)
EMU_INTEGER(signed char, -128, 127, 7)
EMU_INTEGER(unsigned char, 0, 255, 8)
EMU_INTEGER(short, -32768, 32767, 15)
EMU_INTEGER(unsigned short, 0, 65535, 16)
EMU_INTEGER(int, -2147483647 - 1, 2147483647, 31)
EMU_INTEGER(unsigned int, 0, 4294967295u, 32)
EMU_INTEGER(long, -9223372036854775807l - 1, 9223372036854775807l, 63)
EMU_INTEGER(unsigned long, 0, 18446744073709551615ul, 64)
EMU_INTEGER(long long, -9223372036854775807ll - 1, 9223372036854775807ll, 63)
EMU_INTEGER(unsigned long long, 0, 18446744073709551615ull, 64)
#undef EMU_INTEGER

#define EMU_FLOAT(T, of, min_bits, max_bits, epsilon_bits, infinity_bits, nan_bits, denormal_bits, \
                  n_digits, n_digits10, low_exponent, high_exponent)                               \
  template <>                                                                                      \
  struct numeric_limits<T> {                                                                       \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true;             \
    static constexpr bool is_exact = false, has_infinity = true, has_quiet_NaN = true;             \
    static constexpr int digits = n_digits, digits10 = n_digits10, radix = 2;                      \
    static constexpr int min_exponent = low_exponent, max_exponent = high_exponent;                \
    static constexpr T min() { return of(min_bits); }                                              \
    static constexpr T max() { return of(max_bits); }                                              \
    static constexpr T lowest() { return -of(max_bits); }                                          \
    static constexpr T epsilon() { return of(epsilon_bits); }                                      \
    static constexpr T infinity() { return of(infinity_bits); }                                    \
    static constexpr T quiet_NaN() { return of(nan_bits); }                                        \
    static constexpr T denorm_min() { return of(denormal_bits); }                                  \
    static constexpr T round_error() { return static_cast<T>(0.5f); }                              \
  };
#define EMU_BITS32(bits) __builtin_bit_cast(float, static_cast<uint32_t>(bits))
#define EMU_BITS16(bits) __builtin_bit_cast(half, static_cast<uint16_t>(bits))
EMU_FLOAT(float, EMU_BITS32, 0x00800000, 0x7f7fffff, 0x34000000, 0x7f800000, 0x7fc00000, 1, 24, 6,
          -125, 128)
EMU_FLOAT(half, EMU_BITS16, 0x0400, 0x7bff, 0x1400, 0x7c00, 0x7e00, 1, 11, 3, -13, 16)
EMU_FLOAT(bfloat, bfloat::from_bits, 0x0080, 0x7f7f, 0x3c00, 0x7f80, 0x7fc0, 1, 8, 2, -125, 128)
#undef EMU_FLOAT

}  // namespace metal

EMU_VALUES_END

#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul

#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define FLT_RADIX 2
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define HALF_MAX_EXP 16
#define HALF_MIN_EXP (-13)
#define HALF_RADIX 2
#define HALF_MAX static_cast<half>(65504.0f)
#define HALF_MIN static_cast<half>(0x1.0p-14f)
#define HALF_EPSILON static_cast<half>(0x1.0p-10f)
#define MAXFLOAT FLT_MAX
#define HUGE_VALF __builtin_inff()
#define MAXHALF HALF_MAX
#define HUGE_VALH static_cast<half>(__builtin_inff())
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_E_H static_cast<half>(M_E_F)
#define M_LOG2E_H static_cast<half>(M_LOG2E_F)
#define M_LOG10E_H static_cast<half>(M_LOG10E_F)
#define M_LN2_H static_cast<half>(M_LN2_F)
#define M_LN10_H static_cast<half>(M_LN10_F)
#define M_PI_H static_cast<half>(M_PI_F)
#define M_PI_2_H static_cast<half>(M_PI_2_F)
#define M_PI_4_H static_cast<half>(M_PI_4_F)
#define M_1_PI_H static_cast<half>(M_1_PI_F)
#define M_2_PI_H static_cast<half>(M_2_PI_F)
#define M_2_SQRTPI_H static_cast<half>(M_2_SQRTPI_F)
#define M_SQRT2_H static_cast<half>(M_SQRT2_F)
#define M_SQRT1_2_H static_cast<half>(M_SQRT1_2_F)
