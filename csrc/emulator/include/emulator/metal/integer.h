#pragma once

#include "emulator/metal/common.h"

// metal_integer (specification 4, table 6.3), besides abs, clamp, max and min.

EMU_VALUES_BEGIN

namespace emu {

// The type with twice the bits: exact intermediate results.
template <class T>
using Wide =
    metal::conditional_t<__is_unsigned(T),
                         metal::conditional_t<sizeof(T) == 8, unsigned __int128, unsigned long>,
                         metal::conditional_t<sizeof(T) == 8, __int128, long>>;

template <class T>
using unsigned_of = __make_unsigned(T);

template <class T>
constexpr T saturated(Wide<T> value) {
  constexpr T low = metal::numeric_limits<T>::min(), high = metal::numeric_limits<T>::max();
  return value < low ? low : value > high ? high : static_cast<T>(value);
}
// Unsigned differences below zero wrap in Wide.
template <class T>
constexpr T saturated_difference(T x, T y) {
  if constexpr (__is_unsigned(T)) {
    return x < y ? 0 : x - y;
  } else {
    return saturated<T>(static_cast<Wide<T>>(x) - y);
  }
}

template <class T>
constexpr T reversed_bits(T value) {
  unsigned_of<T> from = static_cast<unsigned_of<T>>(value), to = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); i++) {
    to = static_cast<unsigned_of<T>>(to << 1 | (from >> i & 1));
  }
  return static_cast<T>(to);
}

}  // namespace emu

#define EMU_FOR_INTEGERS(X) \
  X(char, char)             \
  X(signed char, char)      \
  X(uchar, uchar)           \
  X(short, short)           \
  X(ushort, ushort)         \
  X(int, int)               \
  X(uint, uint)             \
  X(long, long)             \
  X(ulong, ulong)

namespace metal {

#define EMU_INTEGER(T, ...)                                                                      \
  constexpr emu::unsigned_of<T> absdiff(T x, T y) {                                              \
    const emu::Wide<T> a = x, b = y;                                                             \
    return static_cast<emu::unsigned_of<T>>(a < b ? b - a : a - b);                              \
  }                                                                                              \
  constexpr T addsat(T x, T y) { return emu::saturated<T>(static_cast<emu::Wide<T>>(x) + y); }   \
  constexpr T subsat(T x, T y) { return emu::saturated_difference<T>(x, y); }                    \
  constexpr T hadd(T x, T y) { return static_cast<T>((static_cast<emu::Wide<T>>(x) + y) >> 1); } \
  constexpr T rhadd(T x, T y) {                                                                  \
    return static_cast<T>((static_cast<emu::Wide<T>>(x) + y + 1) >> 1);                          \
  }                                                                                              \
  constexpr T mulhi(T x, T y) {                                                                  \
    return static_cast<T>(static_cast<emu::Wide<T>>(x) * y >> 8 * sizeof(T));                    \
  }                                                                                              \
  constexpr T madhi(T x, T y, T z) { return static_cast<T>(mulhi(x, y) + z); }                   \
  constexpr T madsat(T x, T y, T z) {                                                            \
    return emu::saturated<T>(static_cast<emu::Wide<T>>(x) * y + z);                              \
  }                                                                                              \
  constexpr T popcount(T x) {                                                                    \
    return static_cast<T>(__builtin_popcountll(static_cast<emu::unsigned_of<T>>(x)));            \
  }                                                                                              \
  /* Of zero: the width of the type. */                                                          \
  constexpr T clz(T x) {                                                                         \
    return static_cast<T>(x == 0 ? 8 * sizeof(T)                                                 \
                                 : __builtin_clzll(static_cast<emu::unsigned_of<T>>(x)) -        \
                                       (64 - 8 * sizeof(T)));                                    \
  }                                                                                              \
  constexpr T ctz(T x) {                                                                         \
    return static_cast<T>(x == 0 ? 8 * sizeof(T)                                                 \
                                 : __builtin_ctzll(static_cast<emu::unsigned_of<T>>(x)));        \
  }                                                                                              \
  constexpr T reverse_bits(T x) { return emu::reversed_bits(x); }                                \
  constexpr T rotate(T x, T count) {                                                             \
    const unsigned bits = 8 * sizeof(T), n = static_cast<unsigned>(count) % bits;                \
    const auto value = static_cast<emu::unsigned_of<T>>(x);                                      \
    return static_cast<T>(n == 0 ? value : value << n | value >> (bits - n));                    \
  }                                                                                              \
  constexpr T extract_bits(T x, uint offset, uint bits) {                                        \
    if (bits == 0) return 0;                                                                     \
    const uint above = 8 * sizeof(T) - offset - bits;                                            \
    return static_cast<T>(static_cast<T>(x << above) >> (above + offset));                       \
  }                                                                                              \
  constexpr T insert_bits(T base, T insert, uint offset, uint bits) {                            \
    if (bits == 0) return base;                                                                  \
    using U = emu::unsigned_of<T>;                                                               \
    const U ones = static_cast<U>(static_cast<U>(~U(0)) >> (8 * sizeof(T) - bits));              \
    const U mask = static_cast<U>(ones << offset);                                               \
    return static_cast<T>((static_cast<U>(base) & ~mask) |                                       \
                          (static_cast<U>(static_cast<U>(insert) << offset) & mask));            \
  }
EMU_FOR_INTEGERS(EMU_INTEGER)
#undef EMU_INTEGER

constexpr int mul24(int x, int y) { return ((x << 8) >> 8) * ((y << 8) >> 8); }
constexpr uint mul24(uint x, uint y) { return (x & 0xffffff) * (y & 0xffffff); }
constexpr int mad24(int x, int y, int z) { return mul24(x, y) + z; }
constexpr uint mad24(uint x, uint y, uint z) { return mul24(x, y) + z; }

#define EMU_VECTOR(name)                                            \
  template <class T, int N, enable_if_t<__is_integral(T), int> = 0> \
  constexpr vec<T, N> name(vec<T, N> x) {                           \
    for (int i = 0; i < N; i++) x.d[i] = name(x.d[i]);              \
    return x;                                                       \
  }
EMU_VECTOR(popcount)
EMU_VECTOR(clz)
EMU_VECTOR(ctz)
EMU_VECTOR(reverse_bits)
#undef EMU_VECTOR
#define EMU_VECTOR(name)                                                       \
  template <class T, int N, enable_if_t<__is_integral(T), int> = 0>            \
  constexpr vec<T, N> name(vec<T, N> x, const vec<T, N>& y) {                  \
    for (int i = 0; i < N; i++) x.d[i] = static_cast<T>(name(x.d[i], y.d[i])); \
    return x;                                                                  \
  }
EMU_VECTOR(addsat)
EMU_VECTOR(subsat)
EMU_VECTOR(hadd)
EMU_VECTOR(rhadd)
EMU_VECTOR(mulhi)
EMU_VECTOR(rotate)
#undef EMU_VECTOR
template <class T, int N, enable_if_t<__is_integral(T), int> = 0>
constexpr vec<emu::unsigned_of<T>, N> absdiff(const vec<T, N>& x, const vec<T, N>& y) {
  vec<emu::unsigned_of<T>, N> result(0);
  for (int i = 0; i < N; i++) result.d[i] = absdiff(x.d[i], y.d[i]);
  return result;
}
template <class T, int N, enable_if_t<__is_integral(T), int> = 0>
constexpr vec<T, N> extract_bits(vec<T, N> x, uint offset, uint bits) {
  for (int i = 0; i < N; i++) x.d[i] = extract_bits(x.d[i], offset, bits);
  return x;
}
template <class T, int N, enable_if_t<__is_integral(T), int> = 0>
constexpr vec<T, N> insert_bits(vec<T, N> x, const vec<T, N>& insert, uint offset, uint bits) {
  for (int i = 0; i < N; i++) x.d[i] = insert_bits(x.d[i], insert.d[i], offset, bits);
  return x;
}

}  // namespace metal

EMU_VALUES_END
