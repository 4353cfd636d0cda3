#pragma once

// Conversions of single half-precision values by bit arithmetic (round to nearest, ties to even),
// for tails and for instruction sets without them. Sub-normals, infinities and NaN included. In the
// namespace of the instruction set for the reason given in simd.h.

#include <cstdint>
#include <cstring>

namespace mto::MTO_ISA {
namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float float_from_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

inline uint16_t bf16_from_float(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_from_f16(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // 2^112 moves the exponent bias from 15 to 127; the multiplication also normalises sub-normals.
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

inline uint16_t f16_from_float(float value) {
  uint32_t bits = bits_of(value);
  uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 puts the sub-normal's bits, correctly rounded, at the end of the
    // mantissa.
    float shifted = float_of(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace
}  // namespace mto::MTO_ISA
