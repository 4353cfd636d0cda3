#pragma once

// Plain C++ in loops over sixteen lanes, for processors without the others and as their reference.
// See simd.h.

#include <algorithm>

#include "common/float_type.h"
#include "cpu/half.h"

namespace mto::scalar {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 8;  // what a compiler can make of it: little to unroll, quick to compile
constexpr int kLookupBits = 0;

struct Vec {
  float lane[kLanes];
};
struct Codes {
  uint32_t lane[kLanes];
};

inline Vec broadcast(float value) {
  Vec v;
  for (float& lane : v.lane) lane = value;
  return v;
}
inline Vec zero() { return broadcast(0.0f); }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(v.lane, p, sizeof(v.lane));
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, v.lane, sizeof(v.lane)); }

inline Vec gather(const float* p, int n) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = p[i * n];
  return v;
}

// In double, where the product is exact: std::fma is a slow library call on processors without one.
inline Vec fma(Vec a, Vec b, Vec c) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) {
    r.lane[i] = static_cast<float>(static_cast<double>(a.lane[i]) * b.lane[i] + c.lane[i]);
  }
  return r;
}

template <typename F>
inline Vec each(Vec a, Vec b, F&& f) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.lane[i] = f(a.lane[i], b.lane[i]);
  return r;
}

inline Vec add(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x + y; });
}
inline Vec mul(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x * y; });
}
inline Vec sub(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x - y; });
}
inline Vec div(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x / y; });
}
inline Vec min(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline Vec max(Vec a, Vec b) {
  return each(a, b, [](float x, float y) { return x > y ? x : y; });
}

// Adding 2^23 leaves no fraction bits; larger numbers are whole.
inline Vec nearest(Vec v) {
  for (float& x : v.lane) {
    float magic = x < 0 ? -0x1p23f : 0x1p23f;
    x = x > -0x1p23f && x < 0x1p23f ? (x + magic) - magic : x;
  }
  return v;
}

// 2^n by its exponent bits.
inline Vec scaled(Vec v, Vec n) {
  return each(v, n, [](float x, float exponent) {
    uint32_t biased = static_cast<uint32_t>(bits_of(exponent + 0x1.8p23f)) + 127u;
    return x * float_of(biased << 23);
  });
}

inline Vec select(Vec a, Vec b, Vec x, Vec y) {
  for (int i = 0; i < kLanes; ++i) x.lane[i] = a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i];
  return x;
}

inline float lowest(Vec v) { return *std::min_element(v.lane, v.lane + kLanes); }
inline float highest(Vec v) { return *std::max_element(v.lane, v.lane + kLanes); }

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

inline float reduce(Vec v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v.lane[i] += v.lane[i + half];
  }
  return v.lane[0];
}

inline float total(Vec v) { return reduce(v); }

inline void transpose(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) std::swap(rows[i].lane[j], rows[j].lane[i]);
  }
}

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

inline Codes as_codes(Vec v) {
  Codes codes;
  std::memcpy(codes.lane, v.lane, sizeof(codes.lane));
  return codes;
}
template <int N>
inline Codes shift_left(Codes codes) {
  for (uint32_t& code : codes.lane) code <<= N;
  return codes;
}
template <int N>
inline Codes shift_right(Codes codes) {
  for (uint32_t& code : codes.lane) code >>= N;
  return codes;
}
inline Codes join(Codes a, Codes b) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] |= b.lane[i];
  return a;
}
template <int Bits>
inline Codes low_bits(Codes codes) {
  for (uint32_t& code : codes.lane) code &= (1u << Bits) - 1;
  return codes;
}

template <int Bits>
inline Vec to_float(Codes codes) {
  Vec v;
  for (int i = 0; i < kLanes; ++i)
    v.lane[i] = static_cast<float>(codes.lane[i] & ((1u << Bits) - 1));
  return v;
}

// Adding 2^23 leaves no fraction bits: the sum is rounded to the nearest integer, ties to even, and
// ends with it.
template <int Bits>
inline Codes to_codes(Vec v) {
  constexpr uint32_t kMax = (1u << Bits) - 1;
  Vec clamped = min(max(v, zero()), broadcast(kMax));
  Codes codes;
  for (int i = 0; i < kLanes; ++i) codes.lane[i] = bits_of(clamped.lane[i] + 0x1p23f) & kMax;
  return codes;
}

template <int Bits>
inline void pack(const Codes (&codes)[32 / kLanes], uint8_t* block) {
  for (int i = 0; i < 32; i += 8, block += Bits) {
    uint64_t eight = 0;
    for (int j = 0; j < 8; ++j) {
      uint64_t code = codes[(i + j) / kLanes].lane[(i + j) % kLanes];
      eight |= code << (j * Bits);
    }
    std::memcpy(block, &eight, Bits);
  }
}

using Table = Vec;

template <typename F>
inline Table make_table(const float* levels, F&& f) {
  return f(load(levels));
}

inline Vec table_lookup(Codes codes, const Table& table) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = table.lane[codes.lane[i] & 15];
  return v;
}

template <int Bits>
inline Vec gathered(Codes codes, const float* levels) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = levels[codes.lane[i] & ((1u << Bits) - 1)];
  return v;
}

inline Codes upper_nibble(Codes codes) {
  for (uint32_t& lane : codes.lane) lane >>= 4;
  return codes;
}

}  // namespace
}  // namespace mto::scalar
