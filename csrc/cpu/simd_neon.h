#pragma once

// Armv8-A NEON: 4 lanes. See simd.h for the contract.

#include <arm_neon.h>

#include "common/float_type.h"
#include "cpu/half.h"

namespace mto::neon {
namespace {

using Vec = float32x4_t;
using Codes = uint32x4_t;
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
constexpr int kLookupBits = 0;

inline Vec zero() { return vdupq_n_f32(0.0f); }
inline Vec broadcast(float value) { return vdupq_n_f32(value); }
inline Vec load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, Vec v) { vst1q_f32(p, v); }
inline Vec gather(const float* p, int n) {
  const float lanes[4] = {p[0], p[n], p[2 * n], p[3 * n]};
  return vld1q_f32(lanes);
}
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
// Not vminq, nor vminnmq: the one gives NaN for a NaN, the other for a signalling NaN.
inline Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Vec nearest(Vec v) { return vrndnq_f32(v); }
// 2^n by its exponent bits.
inline Vec scaled(Vec v, Vec n) {
  int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
  return vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
}
inline Vec select(Vec a, Vec b, Vec x, Vec y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
inline float total(Vec v) { return vaddvq_f32(v); }
inline float lowest(Vec v) { return vminvq_f32(v); }
inline float highest(Vec v) { return vmaxvq_f32(v); }

inline Vec load_as(FloatType type, const void* base, int64_t index) {
  if (type == FloatType::kFloat32) return load(static_cast<const float*>(base) + index);
  uint16x4_t half = vld1_u16(static_cast<const uint16_t*>(base) + index);
  if (type == FloatType::kFloat16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
  return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

inline uint16x4_t bf16_from_vec(Vec v) {
  uint32x4_t bits = vreinterpretq_u32_f32(v);
  uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}

inline void store_as(FloatType type, void* base, int64_t index, Vec v) {
  if (type == FloatType::kFloat32) return store(static_cast<float*>(base) + index, v);
  bool f16 = type == FloatType::kFloat16;
  vst1_u16(static_cast<uint16_t*>(base) + index,
           f16 ? vreinterpret_u16_f16(vcvt_f16_f32(v)) : bf16_from_vec(v));
}

inline void reduce4(Vec v0, Vec v1, Vec v2, Vec v3, float* out) {
  store(out, vpaddq_f32(vpaddq_f32(v0, v1), vpaddq_f32(v2, v3)));
}

inline void transpose(Vec (&rows)[4]) {
  float32x4x2_t r01 = vtrnq_f32(rows[0], rows[1]), r23 = vtrnq_f32(rows[2], rows[3]);
  rows[0] = vcombine_f32(vget_low_f32(r01.val[0]), vget_low_f32(r23.val[0]));
  rows[1] = vcombine_f32(vget_low_f32(r01.val[1]), vget_low_f32(r23.val[1]));
  rows[2] = vcombine_f32(vget_high_f32(r01.val[0]), vget_high_f32(r23.val[0]));
  rows[3] = vcombine_f32(vget_high_f32(r01.val[1]), vget_high_f32(r23.val[1]));
}

// Four codes of at most 8 bits lie in 32 bits that start at a byte; the window is moved back where
// it would pass the end of the block of 32.
template <int Bits, int V>
struct Window {
  static constexpr int kFirst = V * Bits / 2;
  static constexpr int kLast = 4 * Bits - 4;
  static constexpr int kOffset = kFirst < kLast ? kFirst : kLast;
  alignas(16) int32_t shifts[4] = {};  // negative: vshlq then shifts right
  constexpr Window() {
    for (int i = 0; i < 4; ++i) shifts[i] = 8 * kOffset - 4 * V * Bits - Bits * i;
  }
};

template <int Bits, int V>
inline Codes unpack(const uint8_t* block) {
  using W = Window<Bits, V>;
  static constexpr W window;
  uint32_t word;
  std::memcpy(&word, block + W::kOffset, 4);
  return vshlq_u32(vdupq_n_u32(word), vld1q_s32(window.shifts));
}

inline Codes as_codes(Vec v) { return vreinterpretq_u32_f32(v); }
template <int N>
inline Codes shift_left(Codes codes) {
  return vshlq_n_u32(codes, N);
}
template <int N>
inline Codes shift_right(Codes codes) {
  return vshlq_u32(codes, vdupq_n_s32(-N));  // vshrq_n_u32 takes no 0
}
inline Codes join(Codes a, Codes b) { return vorrq_u32(a, b); }
template <int Bits>
inline Codes low_bits(Codes codes) {
  return vandq_u32(codes, vdupq_n_u32((1u << Bits) - 1));
}

template <int Bits>
inline Vec to_float(Codes codes) {
  return vcvtq_f32_u32(vandq_u32(codes, vdupq_n_u32((1u << Bits) - 1)));
}

// The conversion gives 0 for negative values and NaN.
template <int Bits>
inline Codes to_codes(Vec v) {
  return vminq_u32(vcvtnq_u32_f32(v), vdupq_n_u32((1u << Bits) - 1));
}

// Sixteen codes, a byte each, become two streams of eight.
template <int Bits>
inline uint64x2_t join_bytes(uint8x16_t codes) {
  if constexpr (Bits == 8) {
    return vreinterpretq_u64_u8(codes);
  } else {
    uint16x8_t bytes = vreinterpretq_u16_u8(codes);
    uint32x4_t pairs = vreinterpretq_u32_u16(vsliq_n_u16(bytes, vshrq_n_u16(bytes, 8), Bits));
    uint64x2_t quads = vreinterpretq_u64_u32(vsliq_n_u32(pairs, vshrq_n_u32(pairs, 16), 2 * Bits));
    return vsliq_n_u64(quads, vshrq_n_u64(quads, 32), 4 * Bits);
  }
}

template <int Bits>
inline void pack(const Codes (&codes)[8], uint8_t* block) {
  auto narrow = [](Codes a, Codes b) { return vmovn_high_u32(vmovn_u32(a), b); };
  auto append = [&block](uint64_t eight) {
    std::memcpy(block, &eight, Bits);
    block += Bits;
  };
  for (int i = 0; i < 8; i += 4) {
    uint16x8_t low = narrow(codes[i], codes[i + 1]), high = narrow(codes[i + 2], codes[i + 3]);
    uint64x2_t eights = join_bytes<Bits>(vmovn_high_u16(vmovn_u16(low), high));
    append(vgetq_lane_u64(eights, 0));
    append(vgetq_lane_u64(eights, 1));
  }
}

using Table = uint8x16x4_t;

template <typename F>
inline Table make_table(const float* levels, F&& f) {
  Table table;
  for (int i = 0; i < 4; ++i) table.val[i] = vreinterpretq_u8_f32(f(load(levels + 4 * i)));
  return table;
}

// The four bytes of a float.
inline Vec table_lookup(Codes codes, const Table& table) {
  uint32x4_t first = vandq_u32(codes, vdupq_n_u32(15));
  uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), first, 0x04040404);
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
}

template <int Bits>
inline Vec gathered(Codes codes, const float* levels) {
  uint32_t lanes[kLanes];
  float values[kLanes];
  vst1q_u32(lanes, vandq_u32(codes, vdupq_n_u32((1u << Bits) - 1)));
  for (int i = 0; i < kLanes; ++i) values[i] = levels[lanes[i]];
  return load(values);
}

inline Codes upper_nibble(Codes codes) { return vshrq_n_u32(codes, 4); }

}  // namespace
}  // namespace mto::neon
