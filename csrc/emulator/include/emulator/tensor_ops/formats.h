#pragma once

#include "emulator/metal/common.h"
#include "emulator/metal/macros.h"
#include "emulator/metal/vector_names.h"

// Element types narrower than a byte, fp8 and the block scale: tags, which tensors name as their
// element type while their memory is bytes. Values: OCP Microscaling and OCP FP8 specifications.
// Bit order: the low bits of a byte hold the even element (kernels for M5 in public repositories);
// signed fields are two's complement (unsure, the natural reading).

EMU_SHIM_BEGIN

namespace metal {

struct int4b_format {};
struct uint4b_format {};
#if __METAL_VERSION__ >= 410
struct int2b_format {};
struct uint2b_format {};
struct metal_fp4_e2m1_format {};
struct metal_fp8_e4m3_format {};
struct metal_fp8_e5m2_format {};
struct metal_fp8_ue8m0_format {};
#endif

}  // namespace metal

namespace emu {

// Bits of an element, and the value of a code; `bits` 0: an ordinary type.
template <class T>
struct Format {
  static constexpr int bits = 0;
};

template <int width, bool is_signed>
struct IntegerFormat {
  static constexpr int bits = width;
  static constexpr bool is_integer = true;
  static int decode(uint8_t code) {
    const int value = code & ((1 << width) - 1);
    return is_signed && value >> (width - 1) ? value - (1 << width) : value;
  }
};
template <>
struct Format<metal::int4b_format> : IntegerFormat<4, true> {};
template <>
struct Format<metal::uint4b_format> : IntegerFormat<4, false> {};

#if __METAL_VERSION__ >= 410
template <>
struct Format<metal::int2b_format> : IntegerFormat<2, true> {};
template <>
struct Format<metal::uint2b_format> : IntegerFormat<2, false> {};

// A sign bit, `exponent` bits with the given bias, the rest mantissa. Infinities and NaNs differ
// between the formats and are handled by them.
template <int width, int exponent, int bias>
struct FloatFormat {
  static constexpr int bits = width;
  static constexpr bool is_integer = false;
  static constexpr int mantissa_bits = width - 1 - exponent;

  static float finite(uint8_t code) {
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int power = code >> mantissa_bits & ((1 << exponent) - 1);
    const float value =
        power == 0 ? __builtin_ldexpf(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                   : __builtin_ldexpf(static_cast<float>(mantissa | 1 << mantissa_bits),
                                      power - bias - mantissa_bits);
    return code >> (width - 1) & 1 ? -value : value;
  }
};
template <>
struct Format<metal::metal_fp4_e2m1_format> : FloatFormat<4, 2, 1> {
  static constexpr float max = 6.0f;
  static float decode(uint8_t code) { return finite(code & 0xf); }
};
// The "fn" variant: no infinity, one NaN, largest value 448. That Metal means this one fits a
// report about its packing of values above 448.
template <>
struct Format<metal::metal_fp8_e4m3_format> : FloatFormat<8, 4, 7> {
  static constexpr float max = 448.0f;
  static float decode(uint8_t code) { return (code & 0x7f) == 0x7f ? NAN : finite(code); }
};
template <>
struct Format<metal::metal_fp8_e5m2_format> : FloatFormat<8, 5, 15> {
  static constexpr float max = 57344.0f;
  static float decode(uint8_t code) {
    if ((code & 0x7c) != 0x7c) return finite(code);
    return (code & 3) != 0 ? NAN : code >> 7 ? -INFINITY : INFINITY;
  }
};
template <>
struct Format<metal::metal_fp8_ue8m0_format> {
  static constexpr int bits = 8;
  static constexpr bool is_integer = false;
  static constexpr float max = 0x1.0p127f;
  static float decode(uint8_t code) {
    return code == 255 ? NAN : __builtin_ldexpf(1.0f, code - 127);
  }
};

// The nearest code, ties to the even one, saturating; a NaN keeps being one where the format has
// it.
template <class F>
inline uint8_t encode(float value) {
  uint8_t best = 0;
  float distance = INFINITY;
  for (int code = 0; code < 1 << Format<F>::bits; code++) {
    const float here = Format<F>::decode(static_cast<uint8_t>(code));
    if (value != value && here != here) return static_cast<uint8_t>(code);
    const float off = __builtin_fabsf(here - metal::clamp(value, -Format<F>::max, Format<F>::max));
    const bool sign_fits = __builtin_signbitf(here) == __builtin_signbitf(value);
    if (off < distance || (off == distance && sign_fits && (code & 1) == 0)) {
      distance = off;
      best = static_cast<uint8_t>(code);
    }
  }
  return best;
}
#endif

template <class T>
constexpr bool is_packed_format = Format<__remove_cv(T)>::bits != 0;
template <class T>
constexpr bool is_subbyte = is_packed_format<T> && Format<__remove_cv(T)>::bits < 8;

// What memory of elements T consists of.
template <class T, bool packed = is_packed_format<T>>
struct StorageOf {
  using type = T;
};
template <class T>
struct StorageOf<T, true> {
  using type = metal::conditional_t<__is_const(T), const uint8_t, uint8_t>;
};

}  // namespace emu

#if __METAL_VERSION__ >= 410
namespace metal {

// packed_metal_fp8_e4m3<4> and its kin: N codes in the fewest bytes, for pack and unpack.
template <class Format, int N>
struct packed_format {
  static constexpr int bytes = (N * emu::Format<Format>::bits + 7) / 8;
  using storage_type = conditional_t<bytes == 1, uchar, packed_vec<uchar, bytes == 1 ? 2 : bytes>>;

  packed_format() = default;
  constexpr explicit packed_format(storage_type value) : storage(value) {}
  constexpr storage_type as_storage_type() const { return storage; }

  storage_type storage;
};
template <int N>
using packed_metal_fp4_e2m1 = packed_format<metal_fp4_e2m1_format, N>;
template <int N>
using packed_metal_fp8_e4m3 = packed_format<metal_fp8_e4m3_format, N>;
template <int N>
using packed_metal_fp8_e5m2 = packed_format<metal_fp8_e5m2_format, N>;
template <int N>
using packed_metal_fp8_ue8m0 = packed_format<metal_fp8_ue8m0_format, N>;

template <class Format, class T, int N>
inline packed_format<Format, N> pack(const vec<T, N>& values) {
  constexpr int bits = emu::Format<Format>::bits;
  uint8_t bytes[packed_format<Format, N>::bytes] = {};
  for (int i = 0; i < N; i++) {
    const uint8_t code = emu::encode<Format>(static_cast<float>(values.d[i]));
    bytes[i * bits / 8] |= static_cast<uint8_t>(code << i * bits % 8);
  }
  packed_format<Format, N> result;
  __builtin_memcpy(static_cast<void*>(&result.storage), bytes, sizeof(bytes));
  return result;
}
template <class T, class Format, int N>
inline vec<T, N> unpack(const packed_format<Format, N>& packed) {
  constexpr int bits = emu::Format<Format>::bits;
  uint8_t bytes[packed_format<Format, N>::bytes];
  __builtin_memcpy(bytes, static_cast<const void*>(&packed.storage), sizeof(bytes));
  vec<T, N> result(static_cast<T>(0));
  for (int i = 0; i < N; i++) {
    const uint8_t code = static_cast<uint8_t>(bytes[i * bits / 8] >> i * bits % 8);
    result.d[i] = static_cast<T>(emu::Format<Format>::decode(code));
  }
  return result;
}

}  // namespace metal
#endif

EMU_SHIM_END
