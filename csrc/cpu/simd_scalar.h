#pragma once

// Plain C++ of four lanes, for processors without the others and as their reference. See simd.h.

#include "common/float_type.h"
#include "cpu/half.h"

namespace mto::scalar {
namespace {

constexpr int kLanes = 4;
constexpr int kLookupBits = 0;

struct Vec {
  float lane[kLanes];
};
struct Codes {
  uint32_t lane[kLanes];
};

inline Vec broadcast(float value) { return {{value, value, value, value}}; }
inline Vec zero() { return broadcast(0.0f); }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(v.lane, p, sizeof(v.lane));
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, v.lane, sizeof(v.lane)); }

// In double, where the product is exact: std::fma is a slow library call on processors without one.
inline Vec fma(Vec a, Vec b, Vec c) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) {
    r.lane[i] = static_cast<float>(static_cast<double>(a.lane[i]) * b.lane[i] + c.lane[i]);
  }
  return r;
}

inline Vec load_as(FloatType type, const void* base, int64_t index) {
  if (type == FloatType::kFloat32) return load(static_cast<const float*>(base) + index);
  auto p = static_cast<const uint16_t*>(base) + index;
  bool f16 = type == FloatType::kFloat16;
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = f16 ? float_from_f16(p[i]) : float_from_bf16(p[i]);
  return v;
}

inline void store_as(FloatType type, void* base, int64_t index, Vec v) {
  if (type == FloatType::kFloat32) return store(static_cast<float*>(base) + index, v);
  auto p = static_cast<uint16_t*>(base) + index;
  bool f16 = type == FloatType::kFloat16;
  for (int i = 0; i < kLanes; ++i)
    p[i] = f16 ? f16_from_float(v.lane[i]) : bf16_from_float(v.lane[i]);
}

inline float reduce(Vec v) { return (v.lane[0] + v.lane[1]) + (v.lane[2] + v.lane[3]); }

inline void reduce4(Vec v0, Vec v1, Vec v2, Vec v3, float* out) {
  out[0] = reduce(v0);
  out[1] = reduce(v1);
  out[2] = reduce(v2);
  out[3] = reduce(v3);
}

template <int Bits, int V>
inline Codes unpack(const uint8_t* block) {
  Codes codes;
  for (int i = 0; i < kLanes; ++i) {
    int bit = (V * kLanes + i) * Bits;
    uint32_t low = block[bit / 8];
    uint32_t high = bit % 8 + Bits > 8 ? block[bit / 8 + 1] : 0;
    codes.lane[i] = (low | high << 8) >> (bit % 8);
  }
  return codes;
}

template <int Bits>
inline Vec to_float(Codes codes) {
  Vec v;
  for (int i = 0; i < kLanes; ++i)
    v.lane[i] = static_cast<float>(codes.lane[i] & ((1u << Bits) - 1));
  return v;
}

}  // namespace
}  // namespace mto::scalar
