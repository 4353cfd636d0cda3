#pragma once

#include "emulator/metal/common.h"
#include "emulator/metal/vector_names.h"

// metal_pack: vectors of normalized integers (specification 4, section 6.12).

EMU_VALUES_BEGIN

namespace emu {

// The field of `bits` bits at `offset`: unsigned in 0..1, signed in -1..1.
inline float unorm_field(uint word, int offset, int bits) {
  const uint most = (1u << bits) - 1;
  return static_cast<float>(word >> offset & most) / static_cast<float>(most);
}
inline float snorm_field(uint word, int offset, int bits) {
  const int most = (1 << (bits - 1)) - 1;
  const int value = static_cast<int>(word << (32 - offset - bits)) >> (32 - bits);
  return __builtin_fmaxf(static_cast<float>(value) / static_cast<float>(most), -1.0f);
}
inline uint unorm_bits(float x, int offset, int bits) {
  const uint most = (1u << bits) - 1;
  return static_cast<uint>(metal::rint(metal::saturate(x) * static_cast<float>(most))) << offset;
}
inline uint snorm_bits(float x, int offset, int bits) {
  const int most = (1 << (bits - 1)) - 1;
  const float clamped = metal::clamp(x, -1.0f, 1.0f);
  const uint value =
      static_cast<uint>(static_cast<int>(metal::rint(clamped * static_cast<float>(most))));
  return (value & ((1u << bits) - 1)) << offset;
}
inline float from_srgb(float x) {
  return x <= 0.04045f ? x / 12.92f : metal::pow((x + 0.055f) / 1.055f, 2.4f);
}
inline float to_srgb(float x) {
  const float c = metal::saturate(x);
  return c < 0.0031308f ? 12.92f * c : 1.055f * metal::pow(c, 1.0f / 2.4f) - 0.055f;
}

}  // namespace emu

namespace metal {

#define EMU_FOUR(kind)                                                                           \
  inline float4 unpack_##kind##4x8_to_float(uint word) {                                         \
    return float4(emu::kind##_field(word, 0, 8), emu::kind##_field(word, 8, 8),                  \
                  emu::kind##_field(word, 16, 8), emu::kind##_field(word, 24, 8));               \
  }                                                                                              \
  inline half4 unpack_##kind##4x8_to_half(uint word) {                                           \
    return half4(unpack_##kind##4x8_to_float(word));                                             \
  }                                                                                              \
  inline float2 unpack_##kind##2x16_to_float(uint word) {                                        \
    return float2(emu::kind##_field(word, 0, 16), emu::kind##_field(word, 16, 16));              \
  }                                                                                              \
  inline half2 unpack_##kind##2x16_to_half(uint word) {                                          \
    return half2(unpack_##kind##2x16_to_float(word));                                            \
  }                                                                                              \
  inline uint pack_float_to_##kind##4x8(float4 v) {                                              \
    return emu::kind##_bits(v.x, 0, 8) | emu::kind##_bits(v.y, 8, 8) |                           \
           emu::kind##_bits(v.z, 16, 8) | emu::kind##_bits(v.w, 24, 8);                          \
  }                                                                                              \
  inline uint pack_half_to_##kind##4x8(half4 v) { return pack_float_to_##kind##4x8(float4(v)); } \
  inline uint pack_float_to_##kind##2x16(float2 v) {                                             \
    return emu::kind##_bits(v.x, 0, 16) | emu::kind##_bits(v.y, 16, 16);                         \
  }                                                                                              \
  inline uint pack_half_to_##kind##2x16(half2 v) { return pack_float_to_##kind##2x16(float2(v)); }
EMU_FOUR(unorm)
EMU_FOUR(snorm)
#undef EMU_FOUR

inline float4 unpack_unorm4x8_srgb_to_float(uint word) {
  const float4 v = unpack_unorm4x8_to_float(word);
  return float4(emu::from_srgb(v.x), emu::from_srgb(v.y), emu::from_srgb(v.z), v.w);
}
inline uint pack_float_to_srgb_unorm4x8(float4 v) {
  return pack_float_to_unorm4x8(
      float4(emu::to_srgb(v.x), emu::to_srgb(v.y), emu::to_srgb(v.z), v.w));
}
inline float4 unpack_unorm10a2_to_float(uint word) {
  return float4(emu::unorm_field(word, 0, 10), emu::unorm_field(word, 10, 10),
                emu::unorm_field(word, 20, 10), emu::unorm_field(word, 30, 2));
}
inline uint pack_float_to_unorm10a2(float4 v) {
  return emu::unorm_bits(v.x, 0, 10) | emu::unorm_bits(v.y, 10, 10) | emu::unorm_bits(v.z, 20, 10) |
         emu::unorm_bits(v.w, 30, 2);
}
inline float3 unpack_unorm565_to_float(ushort word) {
  return float3(emu::unorm_field(word, 11, 5), emu::unorm_field(word, 5, 6),
                emu::unorm_field(word, 0, 5));
}
inline ushort pack_float_to_unorm565(float3 v) {
  return static_cast<ushort>(emu::unorm_bits(v.x, 11, 5) | emu::unorm_bits(v.y, 5, 6) |
                             emu::unorm_bits(v.z, 0, 5));
}

}  // namespace metal

EMU_VALUES_END
