#pragma once

// What decode functions are made of. C++ and Metal.

#ifndef __METAL_VERSION__
#include <cstdint>
#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif
#endif

// Code compiled for one instruction set is never linked into another: functions of these headers
// are each file's own.
#ifdef __METAL_VERSION__
#define MTO_LOCAL_BEGIN
#define MTO_LOCAL_END
#else
#define MTO_LOCAL_BEGIN namespace {
#define MTO_LOCAL_END }
#endif

namespace mto {
MTO_LOCAL_BEGIN

#ifdef __METAL_VERSION__
#define MTO_TABLE constant constexpr
inline float float_from_bits(uint32_t bits) { return as_type<float>(bits); }
#else
#define MTO_TABLE constexpr
inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
#endif

// A float of 1 + Exponent + Mantissa bits with the IEEE bias and no infinities: sub-normals where
// the exponent is 0.
template <int Exponent, int Mantissa>
inline float small_float(uint32_t code) {
  const int bias = (1 << (Exponent - 1)) - 1;
  uint32_t magnitude = code & ((1u << (Exponent + Mantissa)) - 1);
  float value = float_from_bits((magnitude << (23 - Mantissa)) + ((127u - bias) << 23));
  if (magnitude < 1u << Mantissa) {
    value = float(magnitude) * float_from_bits(uint32_t(128 - bias - Mantissa) << 23);
  }
  return code >> (Exponent + Mantissa) & 1 ? -value : value;
}

// NaN is 0x7F and 0xFF.
inline float float_from_e4m3(uint32_t code) {
  return (code & 0x7f) == 0x7f ? float_from_bits(0x7fc00000u | (code & 0x80) << 24)
                               : small_float<4, 3>(code);
}

// The upper half of a float16.
inline float float_from_e5m2(uint32_t code) {
  uint32_t sign = (code & 0x80) << 24;
  if ((code & 0x7f) == 0x7c) return float_from_bits(sign | 0x7f800000u);
  if ((code & 0x7f) > 0x7c) return float_from_bits(sign | 0x7fc00000u);
  return small_float<5, 2>(code);
}

// 2^(code - 127); NaN is 0xFF. 2^-127 is sub-normal.
inline float float_from_e8m0(uint32_t code) {
  if (code == 0xff) return float_from_bits(0x7fc00000u);
  return float_from_bits(code == 0 ? 0x00400000u : code << 23);
}

// The float16 in two bytes, low byte first.
template <typename Bytes>
inline float float16_at(Bytes bytes) {
#if defined(__F16C__) && !defined(__METAL_VERSION__)
  uint16_t whole;
  std::memcpy(&whole, bytes, sizeof whole);
  return _cvtsh_ss(whole);
#else
  uint32_t half = bytes[0] | uint32_t(bytes[1]) << 8;
  uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  float value = magnitude < 0x400u ? float(magnitude) * float_from_bits(103u << 23)
                                   : float_from_bits((magnitude << 13) + (112u << 23));
  return sign ? -value : value;
#endif
}

// value = fma(code, scale, bias). -0 is the bias that changes nothing, not even -0.
struct ScaleBias {
  float scale, bias;
};
inline ScaleBias scale_alone(float scale) { return {scale, -0.0f}; }

MTO_LOCAL_END
}  // namespace mto
